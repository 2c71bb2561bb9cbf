"""What a result may depend on besides the code, as far as a driver has to find it out."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zoneinfo import TZPATH

import msgspec

from tailrace.core.engine import tape


def environment() -> dict[str, str]:
    """All of it, by name: Python, msgspec, time zone data."""
    here = tape.environment(timezones_version())
    return {name: str(value) for name, value in msgspec.structs.asdict(here).items()}


@cache
def timezones_version() -> str:
    """The version of the time zone data that ``zoneinfo`` reads here (``2025b``); empty where nothing tells."""
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
