"""The lines of docs/upgrades.md: each is tried by a function that bears its first cell."""

from __future__ import annotations

from collections.abc import Callable

from tests.core.versions import Restart

LINES: dict[str, Callable[[Restart], None]] = {}
"""By the first cell of the row: what tries it, on local state or on state restored from the changelog."""


def line(name: str) -> Callable[[Callable[[Restart], None]], Callable[[Restart], None]]:
    def add(tried: Callable[[Restart], None]) -> Callable[[Restart], None]:
        assert name not in LINES
        LINES[name] = tried
        return tried

    return add
