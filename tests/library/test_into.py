"""``into=``: events of a topic are filled by name from results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import Harness


class Shown(msgspec.Struct, tr.Keyed[str], frozen=True):
    ad: tr.Key[str]
    at: tr.EventTime[int]
    campaign: str
    place: int


class Click(msgspec.Struct, tr.Keyed[str], frozen=True):
    ad: tr.Key[str]
    at: tr.EventTime[int]
    user: str | None


class Both(msgspec.Struct, tr.Keyed[str], frozen=True):
    """What a join of both gives; either may be missing."""

    ad: tr.Key[str]
    at: tr.EventTime[int]
    user: str | None
    campaign: str | None
    place: float | None
    right: Click | None
    source: str = "join"


class Case(msgspec.Struct, frozen=True):
    ad: tr.Key[str]
    user: str | None
    campaign: str | None
    since: int
    repeated: tuple[int, ...]


JOINS: dict[str, Callable[[tr.App, Any, Any, Any], Any]] = {
    "join": lambda app, left, right, to: app.join("j", left, right, within=(-9, 20), how="full", into=to),
    "window": lambda app, left, right, to: app.window_join(
        "j", left, right, tr.windows.tumbling(30), how="full", into=to
    ),
    "asof": lambda app, left, right, to: app.asof("j", left, right, keep=25, into=to),
}


@pytest.mark.parametrize(
    ("name", "times"), [("join", (5, 15, 27)), ("window", (29, 29, 29)), ("asof", (5, None, 7))]
)
def test_a_topic_gets_the_fields_of_both_by_name(name: str, times: tuple[int | None, ...]) -> None:
    app = tr.App("ads", partitions=1)
    shown, clicks, to = app.topic("shown", Shown), app.topic("clicks", Click), app.topic("both", Both)
    assert JOINS[name](app, shown, clicks, to) is to
    ann, bob = Click("a", 1, "ann"), Click("b", 6, "bob")
    wanted: list[tuple[Any, ...]] = [
        ("a", "ann", "spring", 7, ann),
        ("b", "bob", None, None, bob),
        ("c", None, "may", 2, None),
    ]
    with Harness(app) as h:
        h.send(clicks, ann, bob)
        h.send(shown, Shown("a", 5, "spring", 7), Shown("c", 7, "may", 2))
        h.end_of_input()
        found = [
            Both(key, time, *fields)
            for time, (key, *fields) in zip(times, wanted, strict=True)
            if time is not None
        ]
        assert sorted(h.emitted(to), key=lambda one: one.ad) == found
        h.replay()


def test_a_topic_gets_the_fields_of_a_case_by_name() -> None:
    app = tr.App("cases", partitions=1)
    shown, clicks, cases = app.topic("shown", Shown), app.topic("clicks", Click), app.topic("cases", Case)
    assert app.gather("g", shown, clicks, within=10, into=cases) is cases
    with Harness(app) as h:
        h.send(clicks, Click("a", 1, "ann"), Click("a", 2, "bob"), Click("b", 3, "cid"))
        h.send(shown, Shown("a", 4, "spring", 1))
        h.end_of_input()
        assert h.emitted(cases) == [Case("a", "ann", "spring", 1, (0, 1)), Case("b", "cid", None, 3, (0, 0))]


@pytest.mark.parametrize("by", ["user", lambda click: click.user])
def test_a_topic_gets_the_fields_of_an_event_and_of_what_is_looked_up_at_its_time(by: Any) -> None:
    class Rate(msgspec.Struct, frozen=True):
        user: tr.Key[str]
        rate: float

    class Rated(msgspec.Struct, frozen=True):
        ad: tr.Key[str]
        at: tr.EventTime[int]
        rate: float | None

    app = tr.App("rates", partitions=1)
    clicks, rated = app.topic("clicks", Click), app.topic("rated", Rated)
    rates = app.topic("rates", Rate, broadcast=True)
    assert app.lookup("l", clicks, rates, by=by, into=rated) is rated
    with Harness(app) as h:
        h.send(rates, Rate("ann", 0.5))
        h.send(clicks, Click("a", 1, "ann"), Click("a", 2, "bob"))
        h.send(rates, Rate("ann", 0.7))
        h.crash()
        h.send(clicks, Click("a", 3, "ann"), Click("a", 4, None))
        rates_then = {1: 0.5, 2: None, 3: 0.7, 4: None}
        assert h.emitted(rated) == [Rated("a", at, rate) for at, rate in rates_then.items()]
        h.replay()
