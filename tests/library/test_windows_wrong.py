"""What would give wrong results is refused: accumulators that are shared, loops, fields with two values, exchanged inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.core.errors import DefinitionError, IncompatibleStateError
from tailrace.testing import Harness


class Reading(msgspec.Struct, tr.Keyed[str], frozen=True):
    room: tr.Key[str]
    at: tr.EventTime[int]


class Span(msgspec.Struct, frozen=True):
    room: tr.Key[str]
    start: int


class Count(msgspec.Struct):
    number: int = 0


class Times(agg.Aggregate[Reading, tuple[int | list[int], ...], int]):
    """Its accumulators can be changed in place."""

    def start(self) -> tuple[int | list[int], ...]:
        return ()

    def result(self, acc: tuple[int | list[int], ...]) -> int:
        return len(acc)


def counted(acc: Count, event: Reading) -> Count:
    acc.number += 1
    return acc


def rooms() -> tuple[tr.App, tr.Topic[Reading, str]]:
    app = tr.App("rooms", partitions=1)
    return app, app.topic("readings", Reading)


def window(aggregate: Any, **options: Any) -> None:
    app, readings = rooms()
    app.window("w", readings, windows.tumbling(9), aggregate, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: agg.reduce(counted, Count()), "Count, which can change in place"),
        (lambda: agg.reduce(lambda acc, _: acc, []), "type list, which can change in place"),
        (lambda: window(Times()), r"Times has the type .*list\[int\].*, which can"),
        (lambda: window(agg.several(times=Times())), r"Times has the type .*list\[int\].*, which can"),
        (lambda: tr.windowed(windows.tumbling(9), Times()), r"Times has the type .*list\[int\].*, which can"),
    ],
)
def test_an_accumulator_that_can_change_in_place_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        make()


def test_an_operator_does_not_write_to_its_own_input() -> None:
    app, readings = rooms()
    with pytest.raises(DefinitionError, match="'readings', its own input"):
        app.window("late", readings, windows.tumbling(10), agg.count(), late=readings)
    with pytest.raises(DefinitionError, match="'readings', its own input"):
        app.dedupe("once", readings, by="room", within=10, late=readings)
    with pytest.raises(DefinitionError, match="'readings', its own input"):
        app.join("pairs", readings, app.topic("others", Reading), within="1m", late=readings)


@pytest.mark.parametrize(
    "declare",
    [
        lambda app, rooms: app.window("w", rooms, windows.tumbling("1h"), agg.count()),
        lambda app, rooms: app.running("w", rooms, agg.count()),
        lambda app, rooms: app.throttle("w", rooms, every="1h"),
        lambda app, rooms: app.limit("w", rooms, 1, per="1h"),
        lambda app, rooms: app.dedupe("w", rooms, by="at", within="1h"),
        lambda app, rooms: app.top("w", rooms, 1, by="room", of="at"),
    ],
)
def test_an_operator_with_state_takes_no_table(declare: Any) -> None:
    app = tr.App("rooms", partitions=1)
    with pytest.raises(
        DefinitionError, match="takes the table 'latest': each new value of a key would count"
    ):
        declare(app, app.table("latest", Reading))


def test_the_values_of_a_table_are_looked_up_and_sampled() -> None:
    app = tr.App("rooms", partitions=1)
    latest = app.table("latest", Reading)
    app.lookup("found", latest, app.topic("spans", Span, broadcast=True), by="room")
    app.sample("some", latest, by="room", fraction=0.5)
    assert {one.name for one in app.plan().operators} >= {"found", "some"}


def test_a_field_with_two_values_is_refused() -> None:
    app, readings = rooms()
    starts = agg.several(start=agg.count())
    with pytest.raises(DefinitionError, match=r"cannot fill the field 'start' .* two values"):
        app.window("spans", readings, windows.tumbling(10), starts, into=app.topic("spans", Span))


class Sale(msgspec.Struct, frozen=True):
    region: str
    shop: str
    at: tr.EventTime[int]
    tags: frozenset[int] = frozenset()
    parts: dict[str, int] = msgspec.field(default_factory=dict)


class Total(msgspec.Struct, frozen=True):
    shop: str
    region: str
    start: int
    value: int
    kind: str


@pytest.mark.parametrize(
    "key", [("shop", "region", "start"), ("region", "start", "shop"), ("start", "shop", "region")]
)
def test_the_parts_of_a_key_are_filled_by_their_names(key: tuple[str, ...]) -> None:
    app = tr.App("sales", partitions=1)
    sales, totals = app.topic("sales", Sale, key=("region", "shop")), app.table("totals", Total, key=key)
    app.window("sums", sales, windows.tumbling(10), agg.count(), into=totals)
    with Harness(app) as h:
        h.send(sales, Sale("north", "Ada", 1), Sale("south", "Bob", 2), Sale("north", "Ada", 3))
        h.end_of_input()
        assert set(h.table(totals).values()) == {
            Total("Ada", "north", 0, 2, "final"),
            Total("Bob", "south", 0, 1, "final"),
        }


@pytest.mark.parametrize("key", [("shop", "region"), ("shop", "region", "start"), ("shop", "kind")])
def test_a_key_that_has_no_parts_fills_no_parts(key: tuple[str, ...]) -> None:
    app = tr.App("sales", partitions=1)
    sales, totals = app.topic("sales", Sale, key="shop"), app.topic("totals", Total, key=key)
    with pytest.raises(DefinitionError, match=f"cannot fill shop, {key[1]} in the topic 'totals'.*type str"):
        app.window("sums", sales, windows.tumbling(10), agg.count(), into=totals)


@pytest.mark.parametrize("error", [None, 0.02])
@pytest.mark.parametrize("of", [lambda sale: sale.tags, lambda sale: sale.parts])
def test_equal_values_are_not_distinct_however_they_were_written(of: Any, error: float | None) -> None:
    app = tr.App("sales", partitions=1)
    sales, totals = app.topic("sales", Sale, key="shop"), app.topic("totals", Total, key="shop")
    counts = app.window("sums", sales, windows.tumbling(10), agg.distinct(of, error=error))

    @app.process(counts)
    def publish(one: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
        ctx.emit(totals, Total(one.key, "", one.start, one.value, one.kind))

    with Harness(app) as h:
        for tags, parts in (("[0,8]", '{"a":1,"b":2}'), ("[8,0]", '{"b":2,"a":1}')):
            record = f'{{"region":"north","shop":"Ada","at":1,"tags":{tags},"parts":{parts}}}'
            h.send_raw(sales, record.encode(), b"Ada")
        h.end_of_input()
        assert [one.value for one in h.emitted(totals)] == [1]


@pytest.mark.parametrize(
    "declare",
    [
        lambda app, *inputs: app.join("j", *inputs, within="1m"),
        lambda app, *inputs: app.window_join("j", *inputs, windows.tumbling("1h")),
        lambda app, *inputs: app.asof("j", *inputs, keep="1m"),
        lambda app, *inputs: app.gather("j", *inputs, within="1m"),
    ],
)
def test_what_was_kept_of_the_left_input_is_not_read_for_the_right_one(declare: Any) -> None:
    def app_of(*names: str) -> tuple[tr.App, tr.Topic[Reading, str]]:
        app = tr.App("joins", partitions=1)
        topics = {name: app.topic(name, Reading) for name in ("a", "b")}
        declare(app, *[topics[name] for name in names])
        return app, topics["a"]

    app, a = app_of("a", "b")
    with Harness(app) as h:
        h.send(a, Reading("attic", 5))
        snapshot = h.snapshot()
    Harness(app, start=snapshot).close()
    with pytest.raises(IncompatibleStateError, match="of b, a"):
        Harness(app_of("b", "a")[0], start=snapshot)


def test_a_harness_that_begins_with_waiting_events_takes_all_others() -> None:
    app = tr.App("rooms", partitions=1)
    readings = app.topic("readings", Reading, out_of_order="5s")
    handled: list[int] = []

    @app.actor
    class Room(tr.Actor, order="event-time"):
        @tr.process(readings)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            handled.append(event.at)

    with Harness(app, checked=False, commit_every=1) as h:
        h.send(readings, Reading("attic", 90_000))
        h.restart(h.snapshot())
        h.send(readings, *[Reading("attic", at) for at in range(100_000, 106_000, 300)])
        h.end_of_input()
    assert handled == [90_000, *range(100_000, 106_000, 300)]


def test_a_window_takes_late_events_until_its_lateness_is_over_and_not_a_millisecond_less() -> None:
    """A timer of the next window fires one millisecond before the first one is freed."""
    app = tr.App("exact", partitions=1)
    readings = app.topic("readings", Reading)
    counted = app.window("counted", readings, windows.tumbling(10), agg.count(), lateness=11)
    found: list[tuple[int, int, str]] = []

    @app.process(counted)
    def note(one: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
        found.append((one.start, one.value, one.kind))

    with Harness(app, checked=False) as h:
        h.send(readings, Reading("a", 1_000_000), Reading("a", 1_000_012))
        h.advance_watermark(1_000_019)
        h.send(readings, Reading("a", 1_000_005))
        h.advance_watermark(1_000_020)
        h.send(readings, Reading("a", 1_000_006))
        assert found == [(1_000_000, 1, "final"), (1_000_010, 1, "final"), (1_000_000, 2, "correction")]
        assert h.dropped == 1
