"""Hash seeds decide ``hash()`` of a text, and so the order of a set. A process keeps its seed for its whole life.

A handler that depends on the seed gives other results in another process. So a run that is repeated for comparison gets another
seed. A process has a random seed, unless the environment sets one.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

HASH_SEED: Final = "PYTHONHASHSEED"
"""The environment variable that sets the seed of a process."""
_SEEDS = (1, 2)


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
