"""A letter may be about one operator of several that take its record: in canonical order the others handle the record once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.records import Output
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import any_app, lived
from tests.history.rebuilding.lived import done, fields, live, rebuilt

BROKEN: set[str] = set()
"""The actors that fail at an order of 13 cents."""


class Bought(msgspec.Struct, frozen=True):
    who: tr.Key[str]
    at: tr.EventTime[int]
    cents: int


def made(second: str) -> str:
    """Two actors that sum up the same orders; the first one is ordered."""
    app = tr.App("two-sums", partitions=1, on_error="dead-letter")
    orders = app.topic("orders", Bought)
    for name, order in (("first", "event-time"), ("second", second)):
        _summing(app, orders, name, order)
    return any_app.place(app)


def _summing(app: tr.App, orders: Any, name: str, order: Any) -> None:
    @app.actor(name=name)
    class Sum(tr.Actor, order=order):
        cents: int = 0

        @tr.process(orders)
        def bought(self, event: Bought, ctx: tr.Context[str]) -> None:
            if event.cents == 13 and name in BROKEN:
                raise ValueError("bad luck")
            self.cents += event.cents


@pytest.mark.parametrize("second", ["event-time", "arrival"])
@pytest.mark.parametrize(
    ("broken", "redriven"),
    [
        ({"first"}, {"first"}),
        ({"first", "second"}, set[str]()),
        ({"first", "second"}, {"first"}),
        ({"first", "second"}, {"second"}),
    ],
)
def test_each_operator_handles_a_record_once_whichever_of_them_had_failed(
    tmp_path: Path, second: str, broken: set[str], redriven: set[str]
) -> None:
    app = made(second)
    records = [Bought("ab"[n % 2], 1_000 + n, 13 if n % 5 == 2 else n) for n in range(20)]
    outputs = [Output("orders", one.who.encode(), msgspec.json.encode(one), one.at) for one in records]
    lived.append(tmp_path, outputs, {"orders": 1})
    BROKEN.update(broken)
    lived.live_on(tmp_path, app)
    BROKEN.clear()
    lived.close(tmp_path, "two-sums", "redriven", lambda one: one.operators in redriven)
    lived.live_on(tmp_path, app)
    expected = {
        (actor, who): {"cents": sum(one.cents for one in records if one.who == who)}
        for actor in ("first", "second")
        for who in "ab"
    }
    _, snapshot = done(tmp_path, app, order="canonical")
    assert fields(rebuilt(snapshot)) == expected
    lived.live_on(tmp_path, app, replace=str(tmp_path / "snapshots"))
    lived.close(tmp_path, "two-sums", "dropped")
    assert fields(live(tmp_path, find_app(app).plan())) == expected
