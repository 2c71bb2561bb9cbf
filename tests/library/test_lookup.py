"""``app.lookup``: each event with the newest event of a key of a broadcast topic."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import Harness


class Rate(msgspec.Struct, tr.Keyed[str], frozen=True):
    currency: tr.Key[str]
    rate: float


class Sale(msgspec.Struct, tr.Keyed[int], frozen=True):
    shop: tr.Key[int]
    at: tr.EventTime[int]
    currency: str | None
    amount: int


class Worth(msgspec.Struct, frozen=True):
    shop: tr.Key[int]
    at: tr.EventTime[int]
    rate: float | None


CURRENCIES = ["EUR", "USD", "CHF", "JPY"]


def shops(by: str | Callable[[Sale], str | None]) -> tr.App:
    app = tr.App("shops", partitions=3)
    sales = app.topic("sales", Sale)
    rates = app.topic("rates", Rate, broadcast=True)
    worths = app.topic("worths", Worth)
    rated = app.lookup("rated", sales, rates, by=by)

    @app.process(rated)
    def publish(found: tr.Pair[Sale, Rate | None], ctx: tr.Context[int]) -> None:
        ctx.emit(worths, Worth(ctx.key, found.left.at, None if found.right is None else found.right.rate))

    return app


@pytest.mark.parametrize("by", ["currency", lambda sale: sale.currency])
@pytest.mark.parametrize("how", [{}, {"checked": False}])
def test_each_event_meets_the_rate_of_its_time(by: Any, how: Any) -> None:
    """The oracle is a dict of the newest rates."""
    app, dice, known, expected = shops(by), random.Random(1), dict[str, float](), list[Worth]()
    with Harness(app, **how) as h:
        for at in range(200):
            if dice.random() < 0.3:
                currency, known_rate = dice.choice(CURRENCIES[:3]), dice.random()
                known[currency] = known_rate
                h.send(app.topics["rates"], Rate(currency, known_rate))
            sale = Sale(dice.randrange(20), at, dice.choice([*CURRENCIES, None]), 1)
            h.send(app.topics["sales"], sale)
            expected.append(Worth(sale.shop, at, known.get(sale.currency or "")))
            if dice.random() < 0.1:
                h.crash()
        found: list[Worth] = h.emitted(app.topics["worths"])
        assert sorted(found, key=lambda one: one.at) == expected
        assert len({one.rate for one in found}) > 20
        assert not h.replay().differences.count
