"""PyArrow, imported at its first use, so that programs without archives run without that extra.

It has no types: its names are ``Any`` to both checkers.
"""

from __future__ import annotations

import importlib
from typing import Any

from tailrace.core.errors import MissingExtraError


class _Module:
    """In place of a module until one of its attributes is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        try:
            module = importlib.import_module(self._name)
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "archives need the package pyarrow, which is not installed",
                hint="pip install 'tailrace[parquet]'",
            ) from error
        return getattr(module, attribute)


pa: Any = _Module("pyarrow")
compute: Any = _Module("pyarrow.compute")
parquet: Any = _Module("pyarrow.parquet")
