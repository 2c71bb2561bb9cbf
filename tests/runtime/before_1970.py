"""Events before 1970."""

from __future__ import annotations

import msgspec

YEAR_MS = 31_556_952_000


FIRST_MS = -500 * YEAR_MS


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


TIMES_MS = (FIRST_MS, FIRST_MS + 1, -100 * YEAR_MS - 1, -86_400_001, -86_400_000, -1_001, -1, 0, 1)
