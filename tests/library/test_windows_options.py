"""Windows: calendars, early results, empty windows, the field, many panes, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.library.panes import IN_FIELD
from tailrace.testing import Harness
from tests.library import oracle_windows as oracle

FAR = (-(10**15), 10**15)
HOUR_MS = 3_600_000


class Reading(msgspec.Struct, tr.Keyed[str], frozen=True):
    room: tr.Key[str]
    at: tr.EventTime[int]
    value: float


class Given(msgspec.Struct, frozen=True):
    room: tr.Key[str]
    start: int
    end: int
    value: float
    kind: str


def rooms(out_of_order: int = 0) -> tuple[tr.App, tr.Topic[Reading, str], tr.Topic[Given, Any]]:
    app = tr.App("rooms", partitions=1)
    readings = app.topic("readings", Reading, out_of_order=out_of_order, time_range=FAR)
    return app, readings, app.topic("given", Given, time_range=FAR)


def value(event: Reading) -> float:
    return event.value


# --- calendars ---


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/Havana", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu"]
)
@pytest.mark.parametrize("unit", ["daily", "weekly", "monthly"])
def test_calendar_windows_are_those_of_the_local_date(unit: Any, zone: str) -> None:
    def of(time_ms: int) -> date:
        day = (
            (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms))
            .astimezone(ZoneInfo(zone))
            .date()
        )
        return {"daily": day, "weekly": day - timedelta(days=day.weekday()), "monthly": day.replace(day=1)}[
            unit
        ]

    make: Callable[..., windows.Calendar] = getattr(windows, unit)
    calendar, random = make(zone=zone), Random(1)
    for _ in range(1_500):
        time_ms = random.randrange(-(10**12), 2 * 10**12)
        start, end = calendar.at(time_ms)
        assert start <= time_ms < end
        assert of(start) == of(end - 1) == of(time_ms)
        assert of(start - 1) != of(time_ms) != of(end)
        assert calendar.at(end)[0] == end
    hours = {(end - start) // HOUR_MS for start, end in map(calendar.at, range(0, 10**12, 20 * HOUR_MS))}
    if (unit, zone) == ("daily", "Europe/Berlin"):
        assert hours == {23, 24, 25}


@pytest.mark.parametrize(
    ("zone", "unit", "change"),
    [
        ("America/St_Johns", "daily", datetime(2010, 11, 7, 2, 31, tzinfo=UTC)),
        ("America/Moncton", "daily", datetime(2006, 10, 29, 3, 1, tzinfo=UTC)),
        ("Antarctica/Casey", "daily", datetime(2010, 3, 4, 15, tzinfo=UTC)),
        ("America/St_Johns", "monthly", datetime(2009, 11, 1, 2, 31, tzinfo=UTC)),
        ("America/St_Johns", "weekly", datetime(2010, 11, 1, 2, 31, tzinfo=UTC)),
        ("Pacific/Kwajalein", "daily", datetime(1969, 9, 30, 13, tzinfo=UTC)),
        ("Pacific/Apia", "weekly", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    ],
)
def test_where_clocks_go_back_over_midnight_a_window_ends_at_the_first_one(
    zone: str, unit: str, change: datetime
) -> None:
    make: Callable[..., windows.Calendar] = getattr(windows, unit)
    middle, minute = round(change.timestamp() * 1000), 60_000
    times = range(middle - 26 * HOUR_MS, middle + 26 * HOUR_MS, minute)

    def unit_of(time_ms: int) -> date:
        day = datetime.fromtimestamp(time_ms / 1000, ZoneInfo(zone)).date()
        return {"daily": day, "weekly": day - timedelta(days=day.weekday()), "monthly": day.replace(day=1)}[
            unit
        ]

    latest, wanted = date.min, list[date]()  # once a day has begun, the one before does not come again
    for time_ms in times:
        latest = max(latest, unit_of(time_ms))
        wanted.append(latest)
    found = [make(zone=zone).at(one) for one in times]
    for (start, end), time_ms in zip(found, times, strict=True):
        assert start <= time_ms < end
    assert len(set(found)) == len(set(wanted)) == len(set(zip(found, wanted, strict=True)))
    for (_, end), (start, _) in pairwise(found):
        assert start <= end
    app, readings, given = rooms()
    app.window("days", readings, make(zone=zone), agg.count(), into=given)
    with Harness(app) as h:
        h.send(readings, *(Reading("a", one, 1.0) for one in times))
        h.end_of_input()
        assert [one.value for one in h.emitted(given)] == [wanted.count(one) for one in dict.fromkeys(wanted)]
        assert h.dropped == 0


def test_a_day_of_25_hours_is_one_window() -> None:
    app, readings, given = rooms()
    app.window("days", readings, windows.daily(zone="Europe/Berlin"), agg.total(value), into=given)
    begin = int(datetime(2024, 10, 27, tzinfo=ZoneInfo("Europe/Berlin")).timestamp() * 1000)
    with Harness(app) as h:
        h.send(readings, *[Reading("a", begin + n * HOUR_MS, 1.0) for n in range(26)])
        assert h.emitted(given) == [Given("a", begin, begin + 25 * HOUR_MS, 25.0, "final")]


# --- early results, empty windows ---


@pytest.mark.parametrize("which", [windows.tumbling(100_000), windows.sessions(100_000), windows.global_()])
def test_early_results_come_by_the_clock_if_something_has_changed(which: Any) -> None:
    app, readings, given = rooms()
    app.window("w", readings, which, agg.count(), early_clock="10s", into=given)
    with Harness(app) as h:
        h.send(readings, Reading("a", 1, 1.0), Reading("b", 1, 1.0))
        assert h.emitted(given) == []
        h.advance_clock_by("10s")
        assert {(one.room, one.value, one.kind) for one in h.emitted(given)} == {
            ("a", 1, "early"),
            ("b", 1, "early"),
        }
        h.advance_clock_by("60s")
        assert len(h.emitted(given)) == 2
        h.send(readings, Reading("a", 2, 1.0), Reading("a", 3, 1.0))
        h.crash()
        h.advance_clock_by("10s")
        assert [(one.room, one.value, one.kind) for one in h.emitted(given)[2:]] == [("a", 3, "early")]
        h.send(readings, Reading("a", 4, 1.0))
        h.end_of_input()
        if not isinstance(which, windows.Count):
            assert [one.kind for one in h.emitted(given)[3:]] == ["final", "final"]
            assert h.keys(app.actors["w"]) == []  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # an actor
        h.replay()


@pytest.mark.parametrize("lateness", [0, 5])
@pytest.mark.parametrize("kind", ["tumbling", "sliding", "sessions"])
def test_an_event_is_late_for_a_window_at_the_instant_at_which_it_is_freed(kind: str, lateness: int) -> None:
    options: dict[str, Any] = {"lateness": lateness} if lateness else {}
    which: Any = {
        "tumbling": windows.tumbling(10),
        "sliding": windows.sliding(10, every=5),
        "sessions": windows.sessions(5),
    }[kind]
    freed = {"tumbling": 9, "sliding": 9, "sessions": 8}[kind] + lateness
    for watermark in (freed - 1, freed):
        app, readings, given = rooms()
        app.window("w", readings, which, agg.count(), into=given, **options)
        with Harness(app) as h:
            h.send(readings, Reading("other", watermark + 1, 1.0), Reading("a", 3, 1.0))
            assert h.watermark() == watermark
            assert h.dropped == (watermark == freed)


@pytest.mark.parametrize("lateness", [0, HOUR_MS])
def test_events_of_1970_and_of_this_century_have_their_windows(lateness: int) -> None:
    """The timers and results of a window are those of its events: none is refused as a duration or as seconds."""
    decades = 22_000 * 24 * HOUR_MS
    for first in (19, 2_000_000_000):
        options: dict[str, Any] = {"lateness": lateness} if lateness else {}
        app, readings, given = rooms(out_of_order=decades)
        app.window("w", readings, windows.tumbling(10), agg.count(), into=given, **options)
        with Harness(app) as h:
            h.send(
                readings,
                Reading("a", first, 1.0),
                Reading("a", 1_703_600_000_000, 1.0),
                Reading("a", first, 1.0),
            )
            h.end_of_input()
            assert [(one.start, one.value) for one in h.emitted(given)] == [
                (first // 10 * 10, 2),
                (1_703_600_000_000, 1),
            ]


# --- many panes ---


def send_in_slices(
    h: Harness, readings: tr.Topic[Reading, str], events: list[Reading], random: Random
) -> None:
    """All events, with crashes in between, and the end of input."""
    for at in range(0, len(events), 16):
        h.send(readings, *events[at : at + 16])
        if random.random() < 0.2:
            h.crash()
    h.end_of_input()


@pytest.mark.one_seed_in(10)
def test_long_sliding_windows_are_made_of_blocks_and_come_out_the_same(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        lateness = random.choice([0, 0, 40, 700])
        options: dict[str, Any] = {"lateness": lateness} if lateness else {}
        every, offset = random.choice([(10, 0), (10, 3), (20, 7), (30, 0)])
        size, spread = every * random.choice([11, 40, 90, 150]), random.choice([300, 1_500])
        app, readings, given = rooms(out_of_order=spread // random.choice([1, 8]))
        app.window(
            "w",
            readings,
            windows.sliding(size, every=every, offset=offset),
            agg.total(value),
            into=given,
            **options,
        )
        now, events = 8_000_000_000, list[Reading]()
        for _ in range(200):
            now += random.choice([0, 3, 10, 10, 25]) if random.random() < 0.97 else 2 * size
            events.append(
                Reading(
                    "a", now - random.choice([0, 0, random.randrange(spread)]), float(random.randrange(9))
                )
            )
        with Harness(app, checked=seed % 2 == 0) as h:
            send_in_slices(h, readings, events, random)
            disorder = readings.settings.out_of_order_ms
            all_ = oracle.arrivals([("a", one.at, one) for one in events], disorder)["a"]
            found = oracle.spans(all_, oracle.sliding(size, every, offset), _total, lateness)
            results = [(one.start, one.end, one.value, one.kind) for one in h.emitted(given)]
            assert sorted(results) == sorted(found.results)
            assert h.dropped == len(found.dropped)
            assert h.keys(app.actors["w"]) == []  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # an actor


def _total(pairs: list[tuple[int, Any]]) -> float:
    return math.fsum(one.value for _, one in pairs)


@pytest.mark.one_seed_in(30)
@pytest.mark.parametrize("kind", ["tumbling", "sliding", "sessions"])
def test_more_panes_than_a_field_holds_are_as_good_as_few(seeds: range, kind: str) -> None:
    for seed in seeds:
        random = Random(seed)
        lateness = random.choice([0, 700])
        options: dict[str, Any] = {"lateness": lateness} if lateness else {}
        app, readings, given = rooms(out_of_order=2_000)
        which: Any = {
            "tumbling": windows.tumbling(10),
            "sliding": windows.sliding(30, every=10),
            "sessions": windows.sessions(5),
        }[kind]
        app.window("w", readings, which, agg.total(value), into=given, **options)
        times = [8_000_000_000 + random.randrange(1_500) for _ in range(120)] + [
            8_000_000_000 + random.randrange(4_000) for _ in range(120)
        ]
        events = [Reading("a", at, float(random.randrange(9))) for at in times]
        with Harness(app, checked=seed % 2 == 0) as h:
            send_in_slices(h, readings, events, random)
            all_ = oracle.arrivals([("a", one.at, one) for one in events], 2_000)["a"]
            if kind == "sessions":
                found = oracle.sessions(all_, 5, _total, lateness=lateness)
            else:
                of = oracle.tumbling(10) if kind == "tumbling" else oracle.sliding(30, 10)
                found = oracle.spans(all_, of, _total, lateness)
            assert Counter(h.emitted(given)) == Counter(Given("a", *one) for one in found.results), seed
            assert h.dropped == len(found.dropped)
            assert h.keys(app.actors["w"]) == []  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # an actor
            h.replay()


def test_a_key_with_many_open_windows_holds_few_of_them_with_its_instance() -> None:
    app, readings, _ = rooms(out_of_order=10**9)
    app.window("w", readings, windows.tumbling(10), agg.count())
    with Harness(app) as h:
        h.send(readings, *[Reading("a", 10 * n, 1.0) for n in range(1_000)])
        actor: Any = app.actors["w"]
        state: Any = h.state(actor, "a")
        assert len(state.panes) == IN_FIELD
        assert len(list(state.spilled)) == 1_000 - IN_FIELD


# --- the field ---


def fields(aggregate: agg.Aggregate[Reading, Any, float], which: Any) -> tuple[tr.App, Any, Any]:
    app, readings, given = rooms(out_of_order=100)

    @app.actor
    class Room(tr.Actor):
        hours: tr.Windows[Reading, float] = tr.windowed(which, aggregate)

        @tr.process(readings)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            if event.value < 0:
                open_ = self.hours.open()
                ctx.emit(given, Given(ctx.key, -1, len(open_), math.fsum(open_.values()), "open"))
                return
            self.hours.add(event)

        @tr.on_window(hours)
        def hour(self, hour: tr.Windowed[str, float], ctx: tr.Context[str]) -> None:
            ctx.emit(given, Given(ctx.key, hour.start, hour.end, hour.value, hour.kind))

    return app, readings, given


def test_a_handler_reads_what_is_open() -> None:
    app, readings, given = fields(agg.total(value), windows.sliding(60, every=20))
    with Harness(app) as h:
        h.send(readings, Reading("a", 1_000, 1.0), Reading("a", 1_030, 2.0), Reading("a", 1_031, -1.0))
        # [960, 1020) and [980, 1040) and [1000, 1060) hold 1; the last two and [1020, 1080) hold 2
        assert h.emitted(given) == [Given("a", -1, 4, 1.0 + 3.0 + 3.0 + 2.0, "open")]
        h.send(readings, Reading("b", 1_160, 5.0), Reading("b", 1_045, 7.0), Reading("b", 1_160, -1.0))
        # those of 1160 begin at 1120, 1140 and 1160; 1045 is in [1020, 1080) and [1040, 1100), while [1000, 1060) has closed
        assert h.emitted(given)[-1] == Given("b", -1, 5, 5.0 + 5.0 + 5.0 + 7.0 + 7.0, "open")


def test_an_ordered_aggregate_in_a_field_needs_an_ordered_actor() -> None:
    app, readings, _ = fields(agg.reduce(lambda acc, e: acc + e.value, 0.0), windows.tumbling(50))
    with (
        Harness(app) as h,
        pytest.raises(tr.HandlerError, match="needs its events in the order of event time"),
    ):
        h.send(readings, Reading("a", 1_000, 1.0))


def test_a_handler_of_a_sum_may_name_the_one_type_that_it_has() -> None:
    app, readings, _ = rooms()
    sums: Any = app.window("w", readings, windows.tumbling(100), agg.total(lambda one: int(one.value)))
    values: list[int] = []

    @app.process(sums)
    def take(window: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
        values.append(window.value)

    with Harness(app) as h:
        h.send(readings, Reading("a", 1, 2.0), Reading("a", 2, 3.0))
        h.end_of_input()
    assert values == [5]


class Wrong(agg.Aggregate[Reading, int, int]):
    def start(self) -> int:
        return 0

    def add(self, acc: int, event: Reading, time_ms: int) -> int:
        return "1"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]  # the mistake

    def result(self, acc: int) -> int:
        return acc


def test_an_aggregate_of_another_type_is_an_error_of_the_handler() -> None:
    app, readings, _ = rooms()
    app.window("w", readings, windows.tumbling(100), Wrong())
    with Harness(app, checked=False) as h, pytest.raises(tr.HandlerError, match="not of the declared type"):
        h.send(readings, Reading("a", 1, 1.0))


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


class Hour(msgspec.Struct, frozen=True):
    start: int
    value: int
    kind: str


@pytest.mark.parametrize("key", ["start", "value", ("start", "value")])
def test_a_key_that_is_a_field_of_the_result_has_its_value(key: Any) -> None:
    app = tr.App("clicks", partitions=1)
    clicks = app.topic(
        "clicks",
        msgspec.defstruct("Click", [("user", int), ("at", int)], frozen=True),
        key="user",
        event_time="at",
    )
    hours = app.topic("hours", Hour, key=key)
    app.window("hourly", clicks, windows.tumbling(10), agg.count(), into=hours)
    with Harness(app) as h:
        h.send(clicks, clicks.type(7, 101), clicks.type(8, 103), clicks.type(7, 125))
        h.end_of_input()
        assert h.emitted(hours) == [Hour(100, 1, "final"), Hour(100, 1, "final"), Hour(120, 1, "final")]


def test_the_parts_of_a_key_are_filled_by_their_names_behind_a_stream() -> None:
    app = tr.App("sales", partitions=1)
    sales, totals = (
        app.topic("sales", Sale, key=("region", "shop")),
        app.topic("totals", Total, key=("shop", "region")),
    )
    few = app.limit("few", app.dedupe("once", sales, within=1, by="at"), 9, per="1h")
    app.window("sums", few, windows.tumbling(10), agg.count(), into=totals)
    with Harness(app) as h:
        h.send(sales, Sale("north", "Ada", 1))
        h.end_of_input()
        assert h.emitted(totals) == [Total("Ada", "north", 0, 1, "final")]


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


def test_a_harness_that_begins_with_waiting_events_takes_all_others() -> None:
    app, readings, _ = rooms(out_of_order=5_000)
    handled: list[int] = []

    @app.actor
    class Room(tr.Actor, order="event-time"):
        @tr.process(readings)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            handled.append(event.at)

    with Harness(app, checked=False, commit_every=1) as h:
        h.send(readings, Reading("attic", 90_000, 1.0))
        h.restart(h.snapshot())
        h.send(readings, *[Reading("attic", at, 1.0) for at in range(100_000, 106_000, 300)])
        h.end_of_input()
    assert handled == [90_000, *range(100_000, 106_000, 300)]
