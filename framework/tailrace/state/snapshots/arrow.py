"""PyArrow for snapshots, imported at its first use. It has no types: its names are ``Any`` to both checkers."""

from __future__ import annotations

from typing import Any

from tailrace.core.extras import ExtraModule

pa: Any = ExtraModule("pyarrow", "snapshots", "parquet")
compute: Any = ExtraModule("pyarrow.compute", "snapshots", "parquet")
dataset: Any = ExtraModule("pyarrow.dataset", "snapshots", "parquet")
filesystems: Any = ExtraModule("pyarrow.fs", "snapshots", "parquet")
parquet: Any = ExtraModule("pyarrow.parquet", "snapshots", "parquet")
