"""The environment that results depend on besides the code: versions of Python, msgspec and the time zone data."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zoneinfo import TZPATH

import msgspec

from tailrace.core.engine import tape


def environment() -> dict[str, str]:
    """The versions of Python, msgspec and the time zone data, by name."""
    here = tape.environment(timezones_version())
    return {name: str(value) for name, value in msgspec.structs.asdict(here).items()}


@cache
def timezones_version() -> str:
    """The version of the time zone data that ``zoneinfo`` reads here, such as ``2025b``; empty if it is not known."""
    for folder in map(Path, TZPATH):
        if not folder.is_dir():
            continue
        for name in ("tzdata.zi", "+VERSION"):
            try:
                with (folder / name).open(encoding="ascii", errors="replace") as file:
                    return file.readline().removeprefix("# version").strip()
            except OSError:
                continue
        return ""
    try:
        return f"tzdata {version('tzdata')}"
    except PackageNotFoundError:
        return ""
