"""State as of a time, for all keys and for some at times of their own, compared with plain Python over all events."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
import pytest
from msgspec.structs import replace

import tailrace as tr
from tailrace.core.errors import OffsetGoneError, OptionError, UsageError
from tailrace.history.rebuilding.request import Source, Tables
from tailrace.lab.export import Destination, ExportReport, History, StateOptions, export_state
from tailrace.lab.points import export_points
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import any_app, lived
from tests.lab import moments
from tests.lab.moments import BEGIN_MS, IDLE_MS, KEPT_MS, MINUTE_MS, PARTITIONS

MOMENTS = "tests.lab.moments:app"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ACTORS = ("Account", "Group", "Feed")


def instant(at_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=at_ms)


def history_of(folder: Path, app: str = MOMENTS, as_of_ms: int | None = None) -> History:
    return History(app=app, source=Source(log=str(folder / "log")), as_of_ms=as_of_ms, workers=1)


def as_of(folder: Path, at_ms: int, app: str = MOMENTS) -> dict[str, dict[str, dict[str, Any]]]:
    """By actor and key, the exported state as of a time."""
    to = folder / f"as-of-{at_ms}"
    report = export_state(
        find_app(app).plan(), history_of(folder, app, at_ms), Destination(to), StateOptions()
    )
    assert report.as_of_ms == at_ms
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for table in report.tables:
        actor, _, name = table.name.partition("_")
        for row in pq.read_table(to / table.name).to_pylist():
            assert row.pop("as_of") == instant(at_ms)
            key = row.pop("key")
            if name == "recent":
                found[actor][key][name].append(row["value"])
            elif name == "by":
                found[actor][key][name][row["entry"]] = row["value"]
            else:
                empty: dict[str, Any] = {"recent": [], "by": {}} if actor == "Account" else {}
                found.setdefault(actor, {})[key] = {**row, **empty}
    return found


def at_points(
    folder: Path, table: Any, actor: str, app: str = MOMENTS, *, tables: Tables = "auto"
) -> tuple[ExportReport, list[dict[str, Any]]]:
    """The rows for some points."""
    to = folder / f"at-{len([*folder.glob('at-*')])}"
    to.mkdir()
    pq.write_table(table, to / "points.parquet")
    report = export_points(
        find_app(app).plan(),
        replace(history_of(folder, app), tables=tables),
        Destination(to / "out"),
        [actor] if actor else [],
        to / "points.parquet",
    )
    rows = pq.read_table(to / "out" / report.tables[0].name).to_pylist()
    for row in rows:
        if row.get("by") is not None:
            row["by"] = dict(row["by"])
    return report, rows


def table_of(points: list[tuple[str, int]]) -> Any:
    """A file of keys and times."""
    return pa.table({"key": [key for key, _ in points], "time": [instant(at) for _, at in points]})


def filled(folder: Path, seed: int, count: int = 150) -> list[moments.Event]:
    """A log with a history. No service has run on it."""
    events = moments.history(seed, count)
    names = [moments.ticks.name, moments.tocks.name, moments.facts.name]
    lived.append(folder, moments.outputs(events), dict.fromkeys(names, PARTITIONS))
    return events


def times_around(random: Random, events: list[moments.Event]) -> list[int]:
    """Times at and around events, timers and expiries, before all and after all of them."""
    places = [one.at + more for one in events for more in (0, IDLE_MS, KEPT_MS)]
    found = [at + more for at in random.sample(places, 40) for more in (-1, 0, 1)]
    return [*found, BEGIN_MS - 1, max(places) + 1]


@pytest.mark.one_seed_in(40)
def test_the_states_are_those_that_follow_from_exactly_the_events_up_to_the_time(
    tmp_path: Path, seeds: range
) -> None:
    """For each key at a time of its own, from one run; and for all keys at one time."""
    for seed in seeds:
        folder, random = tmp_path / str(seed), Random(seed)
        events = filled(folder, seed)
        times = times_around(random, events)
        for actor in ACTORS:
            keys = [*("abc" if actor == "Group" else moments.NAMES), "nobody"]
            points = [(random.choice(keys), at) for at in random.sample(times, 60)]
            report, found = at_points(folder, table_of(points), actor)
            expected = [moments.states(events, at)[actor].get(key) for key, at in points]
            for (key, at), row, state in zip(points, found, expected, strict=True):
                assert (row.pop("key"), row.pop("time")) == (key, instant(at))
                assert row == (dict.fromkeys(row) if state is None else state), (actor, key, at)
            missing = sum(one is None for one in expected)
            assert 0 < missing < 40, "some keys have no state yet"
            assert f"{missing} rows without state at the time: nulls" in report.notes
        for at in (random.choice(events).at, *random.sample(times, 2)):
            expected_at = {name: one for name, one in moments.states(events, at).items() if one}
            assert as_of(folder, at) == expected_at


def test_the_rows_of_a_file_keep_their_order_and_columns(tmp_path: Path) -> None:
    """A field whose name the file has gets an underscore. Times of any unit and zone are instants."""
    events = filled(tmp_path, 1)
    last = max(one.at for one in events if isinstance(one, moments.Tick))
    key = next(one.key for one in events if isinstance(one, moments.Tick) and one.at == last)
    times = pa.array([instant(last + 10), instant(last - 1), instant(last)], pa.timestamp("ns", "Asia/Tokyo"))
    table = pa.table({"total": [7, 8, 9], "time": times, "key": [key] * 3, "_total": ["x", "y", "z"]})
    _, found = at_points(tmp_path, table, "Account")
    assert [list(row)[:4] for row in found] == [["total", "time", "key", "_total"]] * 3
    assert [(row["total"], row["_total"]) for row in found] == [(7, "x"), (8, "y"), (9, "z")]
    expected = [moments.states(events, at)["Account"].get(key) for at in (last, last - 1, last)]
    assert [row["__total"] for row in found] == [None if one is None else one["total"] for one in expected]
    assert expected[0] != expected[1]
    assert at_points(tmp_path, table.slice(0, 0), "Account")[1] == []


def test_an_actor_that_handles_on_arrival_has_what_came_before_anything_later(tmp_path: Path) -> None:
    """What came after a later event, and a timer that fires after it, is not there; at the latest time everything is."""
    app = tr.App("beats", partitions=1)
    facts = app.topic("facts", moments.Fact, out_of_order="1m")

    @app.actor
    class Heart(tr.Actor):
        seen: list[int] = tr.field(default_factory=list)
        rang: int = 0

        @tr.process(facts)
        def fact(self, event: moments.Fact, ctx: tr.Context[str]) -> None:
            self.seen = [*self.seen, event.at // MINUTE_MS]
            ctx.set_timer(event.at + MINUTE_MS)

        @tr.on_timer
        def ring(self, ctx: tr.Context[str]) -> None:
            self.rang += 1

    reference = any_app.place(app)
    events = [moments.Fact("a", at * MINUTE_MS // 2) for at in (2, 8, 7, 20)]
    lived.append(tmp_path, moments.outputs(events), {"facts": 1})
    points = [("a", at * MINUTE_MS) for at in (1, 2, 3, 4, 9, 10)]
    _, found = at_points(tmp_path, table_of(points), "Heart", reference)
    assert [(row["seen"], row["rang"]) for row in found] == [
        ([1], 0),
        ([1], 0),  # the event of minute 4 came before its timer was due
        ([1], 0),
        ([1, 4, 3], 1),
        ([1, 4, 3], 1),
        ([1, 4, 3, 10], 3),
    ]
    assert as_of(tmp_path, 3 * MINUTE_MS, reference) == {"Heart": {"a": {"seen": [1], "rang": 1}}}


def test_reference_data_is_no_event_for_the_time_of_a_point(tmp_path: Path) -> None:
    """It may be later than all events, and read before them. An actor that takes nothing else has no states on the way."""
    app = tr.App("priced", partitions=1)
    facts = app.topic("facts", moments.Fact, out_of_order="1m")
    prices = app.topic("prices", moments.Tick, watermark=False)

    @app.actor
    class Item(tr.Actor, order="event-time"):
        price: int = 0
        count: int = 0

        @tr.process(facts)
        def fact(self, event: moments.Fact, ctx: tr.Context[str]) -> None:
            self.count += 1

        @tr.process(prices)
        def priced(self, event: moments.Tick, ctx: tr.Context[str]) -> None:
            self.price = event.amount

    @app.actor
    class Price(tr.Actor):
        amount: int = 0

        @tr.process(prices)
        def priced(self, event: moments.Tick, ctx: tr.Context[str]) -> None:
            self.amount = event.amount

    reference = any_app.place(app)
    events = [moments.Fact("a", at * MINUTE_MS) for at in (1, 2, 3)]
    price = moments.Tick("a", 3 * MINUTE_MS, 7)
    lived.append(
        tmp_path,
        [*moments.outputs(events), moments.outputs([price])[0]._replace(topic="prices")],
        {"facts": 1, "prices": 1},
    )
    points = [("a", at * MINUTE_MS) for at in (0, 1, 2, 3)]
    _, found = at_points(tmp_path, table_of(points), "Item", reference, tables="first")
    assert [(row["price"], row["count"]) for row in found] == [(7, 0), (7, 1), (7, 2), (7, 3)]
    with pytest.raises(UsageError, match=r"Price takes nothing but reference data.*--as-of"):
        at_points(tmp_path, table_of(points), "Price", reference)


def test_a_circle_is_refused_and_the_way_along_the_tape_is_named(tmp_path: Path) -> None:
    app = tr.App("circles", partitions=1)
    facts = app.topic("facts", moments.Fact)

    @app.actor
    class Again(tr.Actor):
        @tr.process(facts)
        def fact(self, event: moments.Fact, ctx: tr.Context[str]) -> None:
            ctx.send(Again, ctx.key, event)

        @tr.on_message
        def again(self, event: moments.Fact, ctx: tr.Context[str]) -> None:
            """Nothing."""

    reference = any_app.place(app)
    lived.append(tmp_path, moments.outputs([moments.Fact("a", 1)]), {"facts": 1})
    for run in (
        lambda: as_of(tmp_path, 1, reference),
        lambda: at_points(tmp_path, table_of([("a", 1)]), "Again", reference),
    ):
        with pytest.raises(OptionError, match="reads what it writes itself") as refused:
            run()
        assert "tailrace rebuild --order tape, for an earlier state with --until TIME" in refused.value.hint
    assert not [*tmp_path.glob("as-of-*")]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"time": [EPOCH]}, r"key.*with key \(the key of Account\) and time \(a timestamp\) in each row"),
        ({"key": ["a"], "at": [EPOCH]}, "time"),
        ({"key": ["a", None], "time": [EPOCH, EPOCH]}, "row 2: Expected `str`, got `null`"),
        ({"key": ["a"], "time": pa.array([None], pa.timestamp("us"))}, "row 1: Expected `int`, got `null`"),
        ({"key": [1], "time": [EPOCH]}, "row 1: Expected `str`, got `int`.*the key of Account"),
        *[
            ({"key": ["a"], "time": [time]}, f"the column time is of {type_}.* and not of timestamps")
            for time, type_ in [
                (1_388_534_400, "int64"),
                (1_388_534_400.0, "double"),
                ("2014-01-01T00:00:00Z", "string"),
                (Decimal(1_388_534_400), "decimal128"),
                (date(2014, 1, 1), "date32"),
            ]
        ],
    ],
)
def test_points_that_make_no_sense_are_refused(tmp_path: Path, table: dict[str, Any], said: str) -> None:
    filled(tmp_path, 1, 5)
    with pytest.raises(UsageError, match=said):
        at_points(tmp_path, pa.table(table), "Account")
    with pytest.raises(
        UsageError, match=r"points are of one actor. Name it \(--actor\): Account, Feed, Group"
    ):
        at_points(tmp_path, table_of([]), "")
    assert not [*tmp_path.glob("at-*/out")]


def test_history_whose_beginning_is_deleted_is_refused_unless_it_is_to_be_left_out(tmp_path: Path) -> None:
    events = filled(tmp_path, 1)
    log = EmbeddedLog(tmp_path / "log", create=False)
    number = next(one for one in range(PARTITIONS) if log.end_offset("ticks", one) > 3)
    log.delete_before("ticks", number, 3)
    log.close()
    for run in (
        lambda: as_of(tmp_path, BEGIN_MS),
        lambda: at_points(tmp_path, table_of([("a1", BEGIN_MS)]), "Account"),
    ):
        with pytest.raises(OffsetGoneError, match=r"deleted offsets 0 to 2.*--archive.*--after-deleted"):
            run()
    kept = Source(log=str(tmp_path / "log"), after_deleted=True)
    last_ms = max(one.at for one in events)
    history = History(app=MOMENTS, source=kept, as_of_ms=last_ms, workers=1)
    report = export_state(moments.app.plan(), history, Destination(tmp_path / "out"), StateOptions())
    assert any("offsets 0 to 2 of ticks" in note for note in report.notes)
