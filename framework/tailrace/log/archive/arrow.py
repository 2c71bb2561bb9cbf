"""PyArrow, imported when it is first used, so that who reads no archive runs without that extra.

It comes without types: what stands here is ``Any`` to both checkers.
"""

from __future__ import annotations

import importlib
from typing import Any

from tailrace.core.errors import MissingExtraError


class _Module:
    """Stands for a module until something of it is asked for."""

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
