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


def test_what_cannot_be_joined_is_refused_when_it_is_declared() -> None:
    app = tr.App("joins")
    a, b = app.topic("a", A), app.topic("b", B)
    slow = app.topic("slow", B, watermark=False)
    numbers = app.topic("numbers", B, key="n", key_type=int)
    dropping = app.topic("dropping", B, late="drop")
    early = app.window("early", b, tr.windows.tumbling("1h"), tr.agg.count(), early=5)
    join: Any = app.join
    for inputs, options, said in (
        ((a, b), {"within": ("2s", "1s")}, "within"),
        ((a, b), {"within": "0s"}, "within"),
        ((a, b), {"within": "-5s"}, "within"),
        ((a, b), {"within": ("1s",)}, "within"),
        ((a, b), {"within": "1 parsec"}, "not a duration"),
        ((a, b), {"within": "1s", "how": "outer"}, "outer"),
        ((a, a), {"within": "1s"}, "twice"),
        ((a, slow), {"within": "1s"}, "watermark=False"),
        ((a, app.topic("shared", B, broadcast=True)), {"within": "1s"}, "broadcast|keys"),
        ((a, app.table("last", B)), {"within": "1s"}, "is a table"),
        ((a, numbers), {"within": "1s"}, "keys of type int"),
        ((a, early), {"within": "1s"}, "early results"),
        ((a, b), {"within": "1s", "late": a}, "late="),
        ((a, b), {"within": "1s", "late": (a,)}, "2 inputs"),
        ((a, dropping), {"within": "1s", "late": (None, b)}, "takes them away"),
    ):
        with pytest.raises(tr.DefinitionError, match=said):
            join("j", *inputs, **options)
    others: Any = app
    for refused in (
        lambda: others.window_join("j", a, b, windows.sliding("1h", every="10m")),
        lambda: others.asof("j", a, b, keep="0s"),
        lambda: others.gather("j", a, within="1s"),
        lambda: others.gather("j", a, b, within="0s"),
    ):
        with pytest.raises(tr.DefinitionError, match="the operator 'j'"):
            refused()
    join("j", a, b, within=("-1s", "2s"))
    with pytest.raises(tr.DefinitionError):
        join("j", a, b, within="1s")


def test_other_bounds_do_not_read_what_was_kept_for_these() -> None:
    def app_of(**options: Any) -> tr.App:
        app = tr.App("joins", partitions=1)
        app.join("j", app.topic("a", A), app.topic("b", B), **options)
        return app

    before = app_of(within=("0s", "10m"))
    with Harness(before) as h:
        h.send(before.topics["a"], A("k", BEGIN_MS, 1), A("k", BEGIN_MS + 5, 1))
        h.advance_watermark(BEGIN_MS + 5)
        snapshot = h.snapshot()
    Harness(app_of(within=("0s", "10m")), start=snapshot).close()
    for options in ({"within": ("0s", "11m")}, {"within": ("0s", "10m"), "how": "left"}):
        with pytest.raises(tr.TailraceError, match="join: inner, from 0ms to 10m"):
            Harness(app_of(**options), start=snapshot)


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
