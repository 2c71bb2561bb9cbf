"""``app.limit``, ``top``, ``running`` and ``throttle``: limits, ties, odd numbers, refusals. What they give is a law of the random programs."""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.testing import COMMIT, CRASH, RELOAD, Harness
from tests.library.oracle_rolling import Event, actor_of


class Named(msgspec.Struct, frozen=True):
    """What the streams of these tests give, in one form."""

    key: tr.Key[str]
    what: list[Any]
    at: int


def test_the_rest_of_a_limit_goes_to_its_topic_or_is_counted() -> None:
    for routes in (True, False):
        app = tr.App("rolling", partitions=1)
        events = app.topic("events", Event, key_type=str)
        out, rest = (app.topic(name, Event, key_type=str) for name in ("out", "rest"))
        options: dict[str, Any] = {"rest": rest} if routes else {}

        @app.process(app.limit("few", events, 1, per=10, **options))
        def publish(event: Event, ctx: tr.Context[str]) -> None:
            ctx.emit(out, event)  # noqa: B023  # it is called at once

        with Harness(app) as h:
            sent = [Event("a", at, "x") for at in (1, 2, 9, 10, 11)]
            h.send(events, *sent)
            assert h.emitted(out) == [sent[0], sent[3]]
            left = [sent[1], sent[2], sent[4]]
            assert h.emitted(rest) == (left if routes else [])
            assert h.metrics.get("few.limited", 0) == (0 if routes else 3)


def test_a_limit_keeps_more_open_periods_than_its_field_holds() -> None:
    app = tr.App("rolling", partitions=1)
    events = app.topic("events", Event, key_type=str, out_of_order=1_000)
    out = app.topic("out", Event, key_type=str)

    @app.process(app.limit("few", events, 1, per=10))
    def publish(event: Event, ctx: tr.Context[str]) -> None:
        ctx.emit(out, event)

    times = [Random(1).randrange(1_000) for _ in range(50)] + list(range(0, 1_000, 10))
    with Harness(app, checked=False) as h:
        h.send(events, *(Event("a", at, "x") for at in times))
        h.crash()
        h.send(events, *(Event("a", at, "x") for at in times))
        assert sorted(one.at // 10 for one in h.emitted(out)) == list(range(100))
        state: Any = h.state(actor_of(app, "few"), "a")
        assert len(state.panes) + len(state.spilled) == 100
        h.end_of_input()
        assert h.keys(actor_of(app, "few")) == []


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Vote(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    colour: Colour
    weight: int | None = 1


def weight_of_none() -> Any:
    return "x"


def test_names_with_equal_sums_go_by_the_order_of_keys_and_not_a_number_is_last() -> None:
    app = tr.App("votes", partitions=1)
    votes = app.topic("votes", Vote, key_type=str, format="msgpack")
    named = app.topic("named", Named, key_type=str, format="msgpack")

    @app.process(
        app.top(
            "best",
            votes,
            2,
            by="colour",
            of=lambda one: float("nan") if one.weight == 0 else one.weight or weight_of_none(),
        )
    )
    def publish(event: tr.Top[str], ctx: tr.Context[str]) -> None:
        ctx.emit(named, Named(ctx.key, [one.value for one, _ in event.best], event.at))

    red, blue = Colour.RED, Colour.BLUE
    with Harness(app) as h:
        h.send(
            votes,
            Vote("a", 1, red),
            Vote("a", 2, blue),
            Vote("a", 3, red),
            Vote("a", 4, red, -5),
            Vote("a", 5, blue, 0),
        )
        wanted = [["red"], ["blue", "red"], ["red", "blue"], ["blue", "red"], ["red", "blue"]]
        assert [one.what for one in h.emitted(named)] == wanted
        with pytest.raises(tr.HandlerError, match="a sum takes int and float, not str"):
            h.send(votes, Vote("a", 6, red, None))


@pytest.mark.parametrize("fault", [None, COMMIT, CRASH, RELOAD])
@pytest.mark.parametrize("checked", [True, False])
def test_best_names_without_a_number_change_once_whatever_strikes_them(fault: Any, checked: bool) -> None:
    app = tr.App("rolling", partitions=1)
    events = app.topic("events", Event, key_type=str, format="msgpack")
    named = app.topic("named", Named, key_type=str, format="msgpack")

    @app.process(app.top("best", events, 2, by="id", of="amount"))
    def publish(one: tr.Top[str], ctx: tr.Context[str]) -> None:
        ctx.emit(named, Named(ctx.key, [name for name, _ in one.best], one.at))

    amounts = [("x", float("nan")), ("x", 1.0), ("x", float("nan")), ("y", float("inf")), ("x", float("inf"))]
    with Harness(app, checked=checked) as h:
        for at, (name, amount) in enumerate(
            [*amounts, ("z", 1.0), ("x", 1.0), ("y", 1.0), ("y", float("-inf"))]
        ):
            h.run([(events, Event("a", at, name, amount)), *([] if fault is None else [fault])])
        wanted = [(["x"], 0), (["y", "x"], 3), (["y", "z"], 5), (["z", "x"], 8)]
        assert [(one.what, one.at) for one in h.emitted(named)] == wanted
        h.replay()


class Total(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    value: float
    end: tr.EventTime[int]


def test_a_running_aggregate_may_go_into_a_topic() -> None:
    app = tr.App("rolling", partitions=1)
    events = app.topic("events", Event, key_type=str)
    totals = app.topic("totals", Total, key_type=str)
    assert app.window("totals-so-far", events, windows.global_(), agg.count(), early=1, into=totals) is totals
    with Harness(app) as h:
        h.send(events, Event("a", 5, "x"), Event("b", 6, "x"), Event("a", 9, "x"))
        assert h.emitted(totals) == [Total("a", 1, 5), Total("b", 1, 6), Total("a", 2, 9)]


def test_another_limit_may_go_on_over_stored_state() -> None:
    def app_of(n: int) -> Any:
        app = tr.App("rolling", partitions=1)
        events = app.topic("events", Event, key_type=str)
        out = app.topic("out", Event, key_type=str)

        @app.process(app.limit("few", events, n, per="1m"))
        def publish(event: Event, ctx: tr.Context[str]) -> None:
            ctx.emit(out, event)

        return app, events, out

    app, events, _ = app_of(1)
    with Harness(app) as h:
        h.send(events, Event("a", 1, "x"))
        snapshot = h.snapshot()
    app, events, out = app_of(2)
    with Harness(app, start=snapshot) as h:
        h.send(events, Event("a", 2, "y"), Event("a", 3, "z"))
        assert [one.id for one in h.emitted(out)] == ["y"]


def test_a_late_event_of_a_full_period_is_late_and_not_too_much() -> None:
    app = tr.App("rolling", partitions=1)
    events, out = app.topic("events", Event, key_type=str), app.topic("out", Event, key_type=str)
    rest, late = app.topic("rest", Event, key_type=str), app.topic("late", Event, key_type=str)

    @app.process(app.limit("few", events, 1, per=10, rest=rest, late=late))
    def publish(event: Event, ctx: tr.Context[str]) -> None:
        ctx.emit(out, event)

    sent = [Event("a", at, "x") for at in (1, 2, 9, 10, 3, 11, 30, 12)]
    with Harness(app) as h:
        h.send(events, *sent)
        assert [one.at for one in h.emitted(out)] == [1, 10, 30]
        assert [one.at for one in h.emitted(rest)] == [2, 9, 11]
        assert [one.at for one in h.emitted(late)] == [3, 12]
