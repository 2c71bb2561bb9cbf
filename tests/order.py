"""The order in which the workers of pytest-xdist run the tests, which none of them depends on.

The scheduler ``worksteal`` gives each worker an equal number of tests that follow each other. Who has done its own takes half of
what another has left, from the end. So what is long must be begun early, and what is left for the end must be short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def long_first(long: Sequence[T], others: Sequence[T], workers: int) -> list[T]:
    """All tests in one order, of which each worker's stretch begins with its share of the long ones."""
    rest = list(others)
    order: list[T] = []
    total = len(long) + len(others)
    for worker in range(workers):
        share = long[worker::workers]
        # The stretches of the scheduler: what is left, evenly over the workers that are left.
        room = max(0, (total - len(order)) // (workers - worker) - len(share))
        order += [*share, *rest[:room]]
        del rest[:room]
    return order
