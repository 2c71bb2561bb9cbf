"""Dead letters in a harness: a test that does not read them fails."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import Harness, System


class Order(msgspec.Struct, tr.Keyed[str], frozen=True):
    shop: tr.Key[str]
    cents: int


app = tr.App("shop", partitions=1, on_error="dead-letter")
orders = app.topic("orders", Order)


@app.actor
class Shop(tr.Actor):
    cents: int = 0

    @tr.process(orders)
    def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
        del ctx
        if order.cents < 0:
            raise ValueError("negative")
        self.cents += order.cents


@contextmanager
def unread(number: int) -> Generator[None]:
    said = rf"shop has {number} dead letters? that the test has not read\. The last one: ValueError: negative"
    with pytest.raises(AssertionError, match=said):
        yield


def test_a_letter_that_a_test_has_not_read_fails_it() -> None:
    with Harness(app) as h:
        h.send(orders, Order("a", 1))
    with unread(2), Harness(app) as h:
        h.send(orders, Order("a", -1), Order("a", -2))
    with unread(1), Harness(app) as h:
        h.send(orders, Order("a", -1))
        assert len(h.dead_letters()) == 1
        h.send(orders, Order("a", -2))
    with Harness(app) as h:
        h.send(orders, Order("a", -1))
        assert [one.error for one in h.dead_letters()] == ["ValueError: negative"]


def test_another_error_of_the_test_is_the_one_that_is_shown() -> None:
    with pytest.raises(KeyError), Harness(app) as h:
        h.send(orders, Order("a", -1))
        raise KeyError


def test_after_a_start_from_a_snapshot_the_letters_are_new_ones() -> None:
    with unread(2), Harness(app) as h:
        h.send(orders, Order("a", 1))
        before = h.snapshot()
        h.send(orders, Order("a", -1))
        assert len(h.dead_letters()) == 1
        h.restart(before)
        h.send(orders, Order("a", -2))


def test_each_app_of_a_system_is_looked_at() -> None:
    other = tr.App("other", partitions=1)
    other_orders = other.topic("orders", Order)

    @other.process(other_orders)
    def take(order: Order, ctx: tr.Context[str]) -> None: ...

    with unread(1), System(other, app) as system:
        system.send(orders, Order("a", -1))
    with System(other, app) as system:
        system.send(orders, Order("a", -1))
        assert len(system[app].dead_letters()) == 1
