"""What operators keep and replace: events that can be changed are refused, and results that would replace those of another window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.core.errors import DefinitionError
from tailrace.testing import Harness


class Changing(msgspec.Struct, tr.Keyed[str]):
    key: tr.Key[str]
    at: tr.EventTime[int]
    value: int = 0


class Holding(msgspec.Struct, tr.Keyed[str], frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    value: int = 0
    names: tuple[dict[str, int], ...] = ()


class Frozen(msgspec.Struct, tr.Keyed[str], frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    value: int = 0
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None: ...


class Mine(agg.Aggregate[Any, Changing | None, int]):
    def start(self) -> Changing | None:
        return None

    def add(self, acc: Changing | None, event: Changing, time_ms: int) -> Changing | None:
        return event

    def merge(self, a: Changing | None, b: Changing | None) -> Changing | None:
        return b

    def result(self, acc: Changing | None) -> int:
        return 0 if acc is None else acc.value


def value_of(event: Any) -> int:
    return event.value  # type: ignore[no-any-return]


KEEPING: dict[str, Callable[[Any, Any, Any], Any]] = {
    "latest": lambda app, a, _: app.window("w", a, windows.tumbling(9), agg.latest(a.type)),
    "first": lambda app, a, _: app.window("w", a, windows.count(9), agg.first(a.type)),
    "min_by": lambda app, a, _: app.window("w", a, windows.sessions(9), agg.min_by(a.type, value_of)),
    "max_by": lambda app, a, _: app.running("w", a, agg.max_by(a.type, value_of)),
    "collect": lambda app, a, _: app.window("w", a, windows.tumbling(9), agg.collect(a.type)),
    "several": lambda app, a, _: app.window(
        "w", a, windows.tumbling(9), agg.several(n=agg.count(), last=agg.latest(a.type))
    ),
    "reduce": lambda app, a, _: app.window(
        "w", a, windows.tumbling(9), agg.reduce(lambda acc, one: (*acc, one), a.type("", 0))
    ),
    "throttle": lambda app, a, _: app.throttle("w", a, every=9),
    "field": lambda _, a, __: tr.windowed(windows.tumbling(9), agg.latest(a.type)),
    "join": lambda app, a, b: app.join("w", a, b, within=9),
    "left of a join": lambda app, a, b: app.join("w", b, a, within=9, how="left"),
    "window join": lambda app, a, b: app.window_join("w", a, b, windows.tumbling(9)),
    "asof": lambda app, a, b: app.asof("w", a, b, keep=9),
    "gather": lambda app, a, b: app.gather("w", a, b, within=9),
}
PASSING: dict[str, Callable[[Any, Any, Any], Any]] = {
    "count": lambda app, a, _: app.window("w", a, windows.tumbling(9), agg.count()),
    "top": lambda app, a, _: app.top("w", a, 3, by="value", of="value"),
    "top of a window": lambda app, a, _: app.window(
        "w", a, windows.tumbling(9), agg.top(3, value_of, value_of)
    ),
    "dedupe": lambda app, a, _: app.dedupe("w", a, by="value", within=9),
    "limit": lambda app, a, _: app.limit("w", a, 3, per=9),
}


def inputs_of(event: Any) -> tuple[tr.App, Any, Any]:
    app = tr.App("kept", partitions=1)
    return app, app.topic("a", event), app.topic("b", Frozen)


@pytest.mark.parametrize("event", [Changing, Holding])
@pytest.mark.parametrize("name", KEEPING)
def test_an_operator_does_not_keep_events_that_another_handler_can_change(name: str, event: Any) -> None:
    with pytest.raises(DefinitionError, match=r"which can change in place.*frozen=True, and tuples"):
        KEEPING[name](*inputs_of(event))
    KEEPING[name](*inputs_of(Frozen))


def test_an_accumulator_of_ones_own_that_is_such_an_event_is_refused() -> None:
    app, a, _ = inputs_of(Changing)
    with pytest.raises(DefinitionError, match="Changing is not frozen"):
        app.window("w", a, windows.tumbling(9), Mine())


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("first", [False, True])
def test_an_event_that_another_handler_changes_gives_the_same_where_it_is_not_kept(
    name: str, first: bool
) -> None:
    def results(crash: bool) -> list[Any]:
        app, a, _ = inputs_of(Changing)
        given, out = app.topic("given", Frozen), None

        def change(event: Any, ctx: Any) -> None:
            event.value = 99

        def give(one: Any, ctx: Any) -> None:
            ctx.emit(given, Frozen(ctx.key, ctx.event_time, 0, (repr(one).replace("value=99", "value=1"),)))

        if not first:
            out = PASSING[name](app, a, None)
        change.__annotations__ = give.__annotations__ = {}
        app.process(a, name="change", emits=())(change)
        out = PASSING[name](app, a, None) if out is None else out
        app.process(out, name="give", emits=(given,))(give)
        with Harness(app) as h:
            for at in range(20):
                h.send(a, Changing("k", at, 1))
                if crash:
                    h.crash()
            h.end_of_input()
            h.replay()
            found: list[Any] = h.emitted(given)
            return found

    assert results(crash=False) == results(crash=True)


class Kept(msgspec.Struct, frozen=True):
    key: str
    start: int
    end: int
    value: int


REVISED = [{"lateness": 50}, {"early": 2}, {"early_clock": "1s"}]


@pytest.mark.parametrize("options", REVISED)
def test_a_result_does_not_replace_that_of_another_window(options: Any) -> None:
    app, a, _ = inputs_of(Frozen)
    for key in ("key", ("key", "value")):
        table: Any = app.table(
            f"by {key}".replace(" ", "-").translate(str.maketrans("", "", "(',)")), Kept, key=key
        )
        with pytest.raises(DefinitionError, match=r"replaces that of any window.*add start to the key"):
            app.window("w", a, windows.tumbling(10), agg.count(), into=table, **options)
    app.window("topic", a, windows.tumbling(10), agg.count(), into=app.topic("t", Kept, key="key"), **options)
    table = app.table("last", Kept, key="key")
    app.window("final", a, windows.tumbling(10), agg.count(), into=table)
    app.running("running", a, agg.count(), into=app.table("all", Kept, key="key"))


@pytest.mark.parametrize("key", [("key", "start"), ("end", "key")])
def test_a_table_by_window_has_the_last_value_of_each(key: Any, seeds: range) -> None:
    from random import Random

    for seed in seeds[:20]:
        random = Random(seed)
        app = tr.App("kept", partitions=1)
        events = app.topic("events", Frozen, out_of_order=20)
        table: Any = app.table("counts", Kept, key=key)
        app.window("w", events, windows.tumbling(10), agg.count(), into=table, lateness=500)
        sent = [Frozen(random.choice("ab"), max(0, 2 * n - random.randrange(90))) for n in range(150)]
        expected: dict[tuple[str, int], int] = {}
        for one in sent:
            expected[one.key, one.at // 10 * 10] = expected.get((one.key, one.at // 10 * 10), 0) + 1
        with Harness(app) as h:
            h.send(events, *sent)
            h.end_of_input()
            assert {(one.key, one.start): one.value for one in h.table(table).values()} == expected
