"""PyArrow for archives, imported at its first use. It has no types."""

from __future__ import annotations

from typing import Any

from tailrace.core.extras import ExtraModule

pa: Any = ExtraModule("pyarrow", "archives", "parquet")
compute: Any = ExtraModule("pyarrow.compute", "archives", "parquet")
parquet: Any = ExtraModule("pyarrow.parquet", "archives", "parquet")
