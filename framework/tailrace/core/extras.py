"""Modules of an extra, imported at their first use: programs that do not use them run without the extra."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
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
            raise _missing(self._what, self._extra, package) from error
        value = getattr(module, attribute)
        setattr(self, attribute, value)  # asked for once
        return value


def check_installed(what: str, extra: str, *packages: str) -> None:
    """Raise MissingExtraError if ``what`` needs a package that is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise _missing(what, extra, package)


def _missing(what: str, extra: str, package: str) -> MissingExtraError:
    what = f"{what} need the package {package}, which is not installed"
    return MissingExtraError(what, hint=f"pip install 'tailrace[{extra}]'")
