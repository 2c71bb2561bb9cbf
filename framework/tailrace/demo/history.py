"""Payments of some cards, and the alerts that they must lead to, computed by plain Python."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final, TypeAlias

Paid: TypeAlias = tuple[str, int, int]
"""A card, a time in milliseconds since 1970, and an amount in cents."""

BEGIN_MS: Final = 1_760_000_000_000
HOUR_MS: Final = 3_600_000
DAYS: Final = 14
CARDS: Final = 5_000
LIMIT: Final = 100_000
LATEST_MS: Final = 600_000
"""How late a payment may arrive."""


def payments(count: int, seed: int = 0) -> list[Paid]:
    """Payments in the order of their arrival. The last ones are of one cent: event time passes all others, in every partition."""
    random = Random(seed)
    times = sorted(BEGIN_MS + random.randrange(DAYS * 24 * HOUR_MS) for _ in range(count))
    made = [(f"card-{random.randrange(CARDS):04}", at_ms, random.randrange(1, 90_000)) for at_ms in times]
    arrived = [at_ms + random.randrange(LATEST_MS) for at_ms in times]
    end_ms = BEGIN_MS + DAYS * 24 * HOUR_MS + LATEST_MS + 1_000
    last = [(f"card-{number:04}", end_ms, 1) for number in range(100)]
    return [made[number] for number in sorted(range(count), key=arrived.__getitem__)] + last


def expected(paid: Iterable[Paid]) -> list[Paid]:
    """The payments that exceed the limit of their card: a loop over all of them, in the order of their times."""
    found: list[Paid] = []
    spent: dict[str, int] = {}
    until_ms: dict[str, int] = {}
    for card, at_ms, cents in sorted(paid, key=lambda one: one[1]):
        if at_ms > until_ms.get(card, 0):  # the timer fires after the payments of its time
            spent[card] = 0
        if not spent[card]:
            until_ms[card] = at_ms + HOUR_MS
        spent[card] += cents
        if spent[card] > LIMIT:
            found.append((card, at_ms, cents))
    return sorted(found)
