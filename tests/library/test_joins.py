"""Joins: failed timers, many partners, what is refused. What they give is a law of the random programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import windows
from tailrace.testing import Harness

BEGIN_MS = 1_700_000_000_000


class A(msgspec.Struct, tr.Keyed[str], frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    n: int


class B(A, frozen=True):
    pass


class Given(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: int
    parts: str


def shown(*parts: Any) -> str:
    return " ".join(f"{type(one).__name__}{one.n}" if hasattr(one, "n") else repr(one) for one in parts)


OPERATORS: dict[str, Callable[[tr.App, Any, Any], tr.Stream[Any, str]]] = {
    "inner": lambda app, a, b: app.join("j", a, b, within=("-5ms", "30ms")),
    "full": lambda app, a, b: app.join("j", a, b, within="30ms", how="full"),
    "window": lambda app, a, b: app.window_join("j", a, b, windows.tumbling(60), how="full"),
    "asof": lambda app, a, b: app.asof("j", a, b, keep="30ms"),
    "gather": lambda app, a, b: app.gather("j", a, b, within="60ms"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_timer_that_has_failed_leaves_nothing_that_a_later_event_meets(name: str) -> None:
    app = tr.App("joins", partitions=1, on_error="dead-letter-all")
    a, b, given = app.topic("a", A), app.topic("b", B), app.topic("given", Given)

    @app.process(OPERATORS[name](app, a, b))
    def publish(one: Any, ctx: tr.Context[str]) -> None:
        if ctx.event_time < BEGIN_MS + 1_000:
            raise ValueError("not today")
        ctx.emit(
            given, Given(ctx.key, ctx.event_time, "" if name == "gather" else shown(one.left, one.right))
        )

    with Harness(app, checked=False) as h:
        h.send(a, A("k", BEGIN_MS, 1))
        h.advance_watermark(BEGIN_MS + 2_000)
        later = BEGIN_MS + 6_000
        h.send(b, B("k", later + 1, 3))
        h.send(a, A("k", later + 2, 2))
        h.end_of_input()
        found = [one.parts for one in h.emitted(given)]
        assert found == ([""] if name == "gather" else ["A2 B3"])
        actor: Any = app.actors["j"]
        assert h.keys(actor) == []
        assert len(h.dead_letters()) == (name != "inner")


def test_one_event_may_have_thousands_of_partners_beyond_what_is_kept_in_a_field() -> None:
    app = tr.App("joins", partitions=1)
    a, b = app.topic("a", A), app.topic("b", B)
    given = app.topic("given", Given)

    @app.process(app.join("j", a, b, within="1s", how="full"))
    def publish(both: tr.Pair[A | None, B | None], ctx: tr.Context[str]) -> None:
        ctx.emit(given, Given(ctx.key, ctx.event_time, shown(both.left, both.right)))

    with Harness(app, checked=False) as h:
        h.send(a, *(A("k", BEGIN_MS + n // 10, n) for n in range(3_000)))
        h.send(b, B("k", BEGIN_MS + 500, 0), B("k", BEGIN_MS + 60_000, 1))
        h.commit()
        h.crash()
        h.end_of_input()
        assert [one.parts for one in h.emitted(given)] == [*(f"A{n} B0" for n in range(3_000)), "None B1"]
        actor: Any = app.actors["j"]
        assert h.keys(actor) == []


def test_only_streams_that_form_a_circle_have_a_limit_of_deliveries() -> None:
    app = tr.App("circle", partitions=1)
    a, again = app.topic("a", A), app.stream("again", A, key_type=str)

    @app.process(a)
    def begin(event: A, ctx: tr.Context[str]) -> None:
        ctx.emit(again, event)

    @app.process(again)
    def repeat(event: A, ctx: tr.Context[str]) -> None:
        ctx.emit(again, event)

    with Harness(app) as h, pytest.raises(tr.TailraceError, match="more than 1000 deliveries"):
        h.send(a, A("k", BEGIN_MS, 1))


@pytest.mark.parametrize("join", ["interval", "window"])
@pytest.mark.parametrize("some", [3, 16, 17, 40])
def test_what_has_no_match_is_given_in_the_order_of_time_then_of_arrival(join: str, some: int) -> None:
    app = tr.App("joins", partitions=1)
    a, b, given = app.topic("a", A), app.topic("b", B), app.topic("given", Given)
    stream: tr.Stream[Any, str] = (
        app.join("j", a, b, within=("0ms", "30ms"), how="left")
        if join == "interval"
        else app.window_join("j", a, b, windows.tumbling(60), how="left")
    )

    @app.process(stream)
    def publish(one: tr.Pair[A, B | None], ctx: tr.Context[str]) -> None:
        ctx.emit(given, Given(ctx.key, ctx.event_time, shown(one.left, one.right)))

    begin = BEGIN_MS // 60 * 60
    times = [begin] * some if join == "interval" else [begin + 50 * n // some for n in range(some)]
    with Harness(app) as h:
        h.send(a, *(A("k", at, n) for n, at in enumerate(times)))
        h.end_of_input()
        assert [one.parts for one in h.emitted(given)] == [f"A{n} None" for n in range(some)]
