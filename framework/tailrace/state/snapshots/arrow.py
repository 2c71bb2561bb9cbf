"""pyarrow, imported at its first use, so that programs without snapshots run without that extra.

It has no types: its names are ``Any`` to both checkers, and each use annotates arguments and results.
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
                f"snapshots need the package {(error.name or self._name).partition('.')[0]}, which is not "
                "installed",
                hint="pip install 'tailrace[parquet]'",
            ) from error
        value = getattr(module, attribute)
        setattr(self, attribute, value)  # asked for once
        return value


pa: Any = _Module("pyarrow")
compute: Any = _Module("pyarrow.compute")
dataset: Any = _Module("pyarrow.dataset")
filesystems: Any = _Module("pyarrow.fs")
parquet: Any = _Module("pyarrow.parquet")
