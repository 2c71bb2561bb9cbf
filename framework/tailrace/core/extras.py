"""Modules of an extra, imported at their first use: programs that do not use them run without the extra."""

from __future__ import annotations

import importlib
from typing import Any

from tailrace.core.errors import MissingExtraError


class ExtraModule:
    """In place of a module until one of its attributes is read; ``what`` needs it."""

    def __init__(self, name: str, what: str, extra: str) -> None:
        self._name, self._what, self._extra = name, what, extra

    def __getattr__(self, attribute: str) -> Any:
        try:
            module = importlib.import_module(self._name)
        except ModuleNotFoundError as error:
            package = (error.name or self._name).partition(".")[0]
            raise MissingExtraError(
                f"{self._what} need the package {package}, which is not installed",
                hint=f"pip install 'tailrace[{self._extra}]'",
            ) from error
        value = getattr(module, attribute)
        setattr(self, attribute, value)  # asked for once
        return value
