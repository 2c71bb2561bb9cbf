"""PyArrow, which comes without types: ``Any`` to both checkers. Importing this without it says what to install."""

from __future__ import annotations

import importlib
from typing import Any

from tailrace.core.errors import MissingExtraError


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "archives need the package pyarrow, which is not installed",
            mend="pip install 'tailrace[parquet]'",
        ) from error


pa: Any = _module("pyarrow")
compute: Any = _module("pyarrow.compute")
parquet: Any = _module("pyarrow.parquet")
