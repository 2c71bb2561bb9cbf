"""The environment that results depend on besides the code: versions of Python, msgspec and the time zone data, and hash seeds.

Hash seeds decide ``hash()`` of a text, and so the order of a set. A process keeps its seed for its whole life: a random one, unless
the environment sets it. A handler that depends on the seed gives other results in another process. So a run that is repeated for
comparison gets another seed.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from zoneinfo import TZPATH

import msgspec

from tailrace.core.engine import tape

HASH_SEED: Final = "PYTHONHASHSEED"
"""The environment variable that sets the seed of a process."""
_SEEDS = (1, 2)


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


def given_seed() -> str | None:
    """The seed that the environment sets for this process and its children; None if their seeds are random."""
    given = os.environ.get(HASH_SEED, "")
    return None if given in ("", "random") else given


def another_seed() -> int:
    """A seed other than the one that the environment sets."""
    return next(seed for seed in _SEEDS if str(seed) != given_seed())


@contextmanager
def started_with(seed: int | None) -> Generator[None]:
    """Processes started inside the block have this hash seed; None does not change the environment."""
    before = os.environ.get(HASH_SEED)
    if seed is not None:
        os.environ[HASH_SEED] = str(seed)
    try:
        yield
    finally:
        os.environ.pop(HASH_SEED, None)
        if before is not None:
            os.environ[HASH_SEED] = before
