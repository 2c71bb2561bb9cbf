"""What a misspelt name was meant to be."""

from __future__ import annotations

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import HandlerError, QueryError
from tailrace.core.suggestions import did_you_mean, nearest
from tailrace.testing import Harness

NAMES = ("departures", "arrivals", "overdue-flights", "startingOffsets")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("depatures", "departures"),
        ("departure", "departures"),
        ("Arrivals", "arrivals"),
        ("overdue_flights", "overdue-flights"),
        ("overdueflights", "overdue-flights"),
        ("startingofsets", "startingOffsets"),
        ("weather", None),
        ("", None),
        (17, None),
    ],
)
def test_the_nearest_name_is_found_if_one_is_near(given: object, meant: str | None) -> None:
    assert nearest(given, NAMES) == meant


def test_a_sentence_comes_before_what_else_is_said() -> None:
    assert did_you_mean("arivals", NAMES, "There are two.") == "Did you mean 'arrivals'? There are two."
    assert did_you_mean("arivals", NAMES) == "Did you mean 'arrivals'?"
    assert did_you_mean("weather", NAMES, "There are two.") == "There are two."
    assert did_you_mean("weather", NAMES) == did_you_mean("weather", ()) == ""


class Event(msgspec.Struct):
    key: str
    timer: str


@pytest.fixture
def harness() -> Harness:
    app = tr.App("clocks", partitions=1)
    events = app.topic("events", Event, key="key")

    @app.actor
    class Clock(tr.Actor):
        @tr.process(events)
        def heard(self, event: Event, ctx: tr.Context[str]) -> None:
            ctx.set_timer(ctx.event_time, event.timer)

        @tr.on_timer("overdue")
        def overdue(self, ctx: tr.Context[str]) -> None: ...

        @tr.on_timer
        def unnamed(self, ctx: tr.Context[str]) -> None: ...

        @tr.query
        def status(self) -> str:
            return ""

    return Harness(app)


def test_a_timer_that_no_handler_takes(harness: Harness) -> None:
    events = harness.plan.topics["events"]
    with harness, pytest.raises(HandlerError, match=r"does not handle. Did you mean 'overdue'\? Give Clock"):
        harness.send(events, Event("a", "overdeu:1"))


def test_a_query_that_is_not_there(harness: Harness) -> None:
    events = harness.plan.topics["events"]
    with harness:
        harness.send(events, Event("a", "overdue"))
        (actor,) = harness.plan.by_class
        with pytest.raises(QueryError, match=r"no query 'statsu' .*Did you mean 'status'\? It has: status"):
            harness.query(actor, "a", "statsu")
