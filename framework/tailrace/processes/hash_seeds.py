"""Hash seeds: what the order of a set, and ``hash()`` of a text, follow from. Each process has one, for its whole life.

A handler that depends on it gives other results in another process. So whatever is run again to be compared is run under
another seed than the first time. A process takes one by chance, unless the environment gives it one.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

HASH_SEED: Final = "PYTHONHASHSEED"
"""The variable that gives a process its seed."""
_SEEDS = (1, 2)


def given_seed() -> str | None:
    """The seed that the environment gives to this process and to those it starts; None if they take one by chance."""
    given = os.environ.get(HASH_SEED, "")
    return None if given in ("", "random") else given


def another_seed() -> int:
    """A seed that is not the one that the environment gives."""
    return next(seed for seed in _SEEDS if str(seed) != given_seed())


@contextmanager
def started_with(seed: int | None) -> Generator[None]:
    """Processes started meanwhile have this hash seed; None leaves the environment as it is."""
    if seed is None:
        yield
        return
    before = os.environ.get(HASH_SEED)
    os.environ[HASH_SEED] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[HASH_SEED]
        else:
            os.environ[HASH_SEED] = before
