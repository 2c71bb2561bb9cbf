"""State as of a time, compared with plain Python that knows what was known when."""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Literal, cast

import msgspec
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
import pytest

import tailrace as tr
from tailrace.core.errors import OffsetGoneError, UsageError
from tailrace.history.reading.beginnings import Beginning
from tailrace.lab.export import Destination, ExportReport, StateOptions, export_points, export_state
from tailrace.lab.passes import check_after
from tailrace.runtime.preparing import prepare_log
from tailrace.state.snapshots import Snapshot
from tailrace.testing import Harness
from tests.lab import yard
from tests.runtime.state_world import KEYS, ROUNDS, World
from tests.runtime.tallies import ticks

ANY = StateOptions(any_environment=True)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE_MS = 60_000


def in_ms(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


def as_of(h: Harness, folder: Path, at_ms: int) -> ExportReport:
    return export_state(h.plan, h.log, Destination(folder), msgspec.structs.replace(ANY, as_of_ms=at_ms))


def at_points(
    h: Harness, folder: Path, table: Any, actor: str = ""
) -> tuple[ExportReport, list[dict[str, Any]]]:
    """The rows for some points."""
    folder.mkdir()
    pq.write_table(table, folder / "points.parquet")
    options = msgspec.structs.replace(ANY, actors=(actor,) if actor else ())
    report = export_points(h.plan, h.log, Destination(folder / "out"), options, folder / "points.parquet")
    return report, pq.read_table(folder / "out" / report.tables[0].name).to_pylist()


@pytest.mark.one_seed_in(20)
def test_state_as_of_a_time_is_what_was_known_before_anything_later(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        h, events = yard.lived(seed, 220)
        with h:
            for minutes in (-10, 0, 13, 61, 200):
                at = yard.BEGIN + timedelta(minutes=minutes)
                report = as_of(h, tmp_path / f"{seed}-{minutes}", in_ms(at))
                found = {
                    (row["key_1"], row["key_2"]): (
                        row["count"],
                        row["took"],
                        row["last"],
                        row["share"],
                        row["as_of"],
                    )
                    for row in pq.read_table(tmp_path / f"{seed}-{minutes}" / "Slot").to_pylist()
                }
                known = yard.lives(events, at)
                assert found == {
                    key: (one["count"], one["took"], one["last"], one["share"], at)
                    for key, one in known.items()
                }
                assert bool(report.notes) is (minutes == 200)
                entries = pq.read_table(tmp_path / f"{seed}-{minutes}" / "Slot_by").to_pylist()
                assert sum(row["value"] for row in entries) == sum(one["count"] for one in known.values())


def points_of(seed: int, count: int) -> list[tuple[str, int, datetime, int]]:
    random = Random(seed)
    return [
        (
            random.choice((*yard.NAMES, "nowhere")),
            random.randrange(-1, 2),
            yard.BEGIN
            + timedelta(milliseconds=random.randrange(-60_000, 80 * MINUTE_MS, random.choice((1, 10_000)))),
            number,
        )
        for number in range(count)
    ]


def table_of(points: list[tuple[str, int, datetime, int]]) -> Any:
    names = ("key_1", "key_2", "time", "kind")
    return pa.table(
        {name: list(column) for name, column in zip(names, zip(*points, strict=True), strict=True)}
    )


@pytest.mark.one_seed_in(20)
def test_each_point_has_the_state_of_its_key_at_its_time(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        h, events = yard.lived(seed, 220)
        points = points_of(seed, 60)
        with h:
            report, found = at_points(h, tmp_path / str(seed), table_of(points))
        missing = 0
        for (name, slot, at, number), row in zip(points, found, strict=True):
            own = [row.pop(column) for column in ("key_1", "key_2", "time", "kind")]
            assert own == [name, slot, at, number]
            row["kind"] = row.pop(
                "__kind"
            )  # as the points have a column of the name of the field, and the state one more
            known = yard.lives(events, at).get((name, slot))
            missing += known is None
            if known is None:
                assert set(row.values()) == {None}
                continue
            by = {(key["_1"], key["_2"]): value for key, value in row.pop("by")}
            told = {"weight": Decimal(row["weight"]), "ratio-of": yard.told(row["ratio-of"]), "by": by}
            assert {**row, **told} == known
        assert f"{missing} rows without state at the time: nulls" in report.notes


class Beat(msgspec.Struct, frozen=True):
    who: tr.Key[str]
    at: tr.EventTime[int]


def beats(order: Literal["arrival", "event-time"]) -> tuple[tr.App, Any, Any]:
    app = tr.App("beats", partitions=1)
    one, other = (app.topic(name, Beat, out_of_order="1m") for name in ("one", "other"))

    @app.actor
    class Heart(tr.Actor, order=order):
        count: int = 0
        last: int = tr.field(default=0, ttl="10m")
        seen: tr.MapState[str, int] = tr.field(ttl="10m")

        @tr.process(one, other)
        def beat(self, event: Beat, ctx: tr.Context[str]) -> None:
            self.count += 1
            self.last = event.at
            self.seen["here"] = event.at

    return app, one, other


def test_what_expires_later_is_there(tmp_path: Path) -> None:
    """The expiry comes by the watermark alone, without an event that is later."""
    app, one, _ = beats("arrival")
    with Harness(app) as h:
        h.send(one, Beat("a", MINUTE_MS))
        h.advance_watermark(60 * MINUTE_MS)
        h.commit()
        times = [at * MINUTE_MS for at in (1, 10, 11, 12)]
        _, found = at_points(h, tmp_path / "at", pa.table({"key": ["a"] * 4, "time": times}))
    assert [(row["count"], row["last"], row["seen"]) for row in found] == [
        (1, MINUTE_MS, [("here", MINUTE_MS)]),
        (1, MINUTE_MS, [("here", MINUTE_MS)]),
        (1, 0, []),
        (1, 0, []),
    ]


def test_expiries_are_no_timers(tmp_path: Path) -> None:
    app, one, _ = beats("arrival")
    with Harness(app) as h:
        h.send(one, Beat("a", MINUTE_MS), Beat("b", 2 * MINUTE_MS))
        h.commit()
        options = msgspec.structs.replace(ANY, timers=True)
        report = export_state(
            h.plan, h.log, Destination(tmp_path / "out"), msgspec.structs.replace(options, as_of_ms=MINUTE_MS)
        )
        stored = export_state(h.plan, h.log, Destination(tmp_path / "now"), options)
    assert [(one.name, one.rows) for one in report.tables] == [("Heart", 1), ("Heart_seen", 1), ("timers", 0)]
    assert [(one.name, one.rows) for one in stored.tables] == [("Heart", 2), ("Heart_seen", 2), ("timers", 0)]
    (entry,) = pq.read_table(tmp_path / "out" / "Heart_seen").to_pylist()
    assert entry["expires"] == EPOCH + timedelta(minutes=11)


def test_events_that_wait_for_their_turn_are_handled_by_then(tmp_path: Path) -> None:
    """An ordered actor has all events up to the time, although one input was read far ahead of the other."""
    app, one, other = beats("event-time")
    with Harness(app) as h:
        h.send(one, *(Beat("a", at * MINUTE_MS) for at in range(0, 40, 2)))
        h.send(other, *(Beat("a", at * MINUTE_MS) for at in range(1, 40, 2)))
        h.commit()
        _, found = at_points(
            h, tmp_path / "at", pa.table({"key": ["a"] * 3, "time": [0, 7 * MINUTE_MS, 20 * MINUTE_MS]})
        )
    assert [row["count"] for row in found] == [1, 8, 21]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"key_1": ["a"], "time": [1]}, r"key_2.*key_1, key_2 \(the key of Slot\)"),
        ({"key_1": ["a"], "key_2": [1]}, "time"),
        ({"key_1": ["a", "a"], "key_2": [1, None], "time": [1, 2]}, "row 2 .* has no key of Slot"),
        (
            {"key_1": ["a"], "key_2": [1], "time": pa.array([None], pa.int64())},
            "row 1 .* has no time: it is null or NaT",
        ),
        (
            {"key_1": ["a"], "key_2": [1], "time": [1_388_534_400]},
            "integers such as 1388534400, which is 1970-01-17.* is it in seconds",
        ),
        *[
            (
                {"key_1": ["a"], "key_2": [1], "time": [1_388_534_400_000 * unit]},
                "is it in microseconds or nanoseconds",
            )
            for unit in (1_000, 1_000_000)
        ],
        *[
            ({"key_1": ["a"], "key_2": [1], "time": [time]}, f"the column time is of {type_}")
            for time, type_ in [
                (1_388_534_400.0, "double"),
                (1_388_534_400_000.0, "double"),
                ("2014-01-01T00:00:00Z", "string"),
                ("1388534400", "string"),
                (Decimal(1_388_534_400), "decimal128"),
                (date(2014, 1, 1), "date32"),
            ]
        ],
        ({"key_1": [1], "key_2": [1], "time": [1]}, "row 1 .* has no key of Slot"),
    ],
)
def test_points_that_make_no_sense_are_refused(tmp_path: Path, table: dict[str, Any], said: str) -> None:
    h, _ = yard.lived(1, 5)
    with h, pytest.raises(UsageError, match=said):
        at_points(h, tmp_path / "at", pa.table(table))
    assert [one.name for one in (tmp_path / "at").iterdir()] == ["points.parquet"]


def test_a_time_before_the_snapshot_that_history_begins_with_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    with closing(world.log):
        world.live()
        world.take()
        other = world.app.renamed("other").plan()
        prepare_log(world.log, other, create_declared=True)
        world.run(other, start=world.start())
        world.log.append_all(ticks(KEYS, ROUNDS, ROUNDS))
        world.run(other)
        with pytest.raises(
            UsageError, match=r"begins with a snapshot that may have events up to .* is asked for"
        ):
            export_state(
                other, world.log, Destination(tmp_path / "early"), msgspec.structs.replace(ANY, as_of_ms=0)
            )
        assert not (tmp_path / "early").exists()
        export_state(
            other, world.log, Destination(tmp_path / "late"), msgspec.structs.replace(ANY, as_of_ms=10**12)
        )
        export_state(other, world.log, Destination(tmp_path / "now"), ANY)
    for table in (tmp_path / "now").iterdir():
        if table.is_dir():
            late = pq.read_table(tmp_path / "late" / table.name)
            assert late.drop_columns("as_of").equals(pq.read_table(table).drop_columns("as_of"))


@pytest.mark.parametrize(
    ("edited", "changes", "until"),
    [
        (False, {"watermark": "none", "ahead_of_clock_ms": None}, "any time"),
        (False, {"watermark": "upstream", "ahead_of_clock_ms": None}, "any time"),
        (True, {}, "20"),  # tomorrow, by the clock
        (True, {"ahead_of_clock_ms": None}, "any time"),
    ],
)
def test_a_snapshot_whose_latest_event_no_watermark_tells_has_all_that_the_clock_allowed(
    tmp_path: Path, edited: bool, changes: dict[str, Any], until: str
) -> None:
    """A reshaped task has the lowest watermark of several, and nothing limits the times of an input without one."""
    world = World(tmp_path)
    with closing(world.log):
        world.live()
        world.take()
        snapshot = world.start().snapshot
        cut = snapshot.manifest.task(0).cut
        manifest = msgspec.structs.replace(snapshot.manifest, source="edited" if edited else "live")
        base = SimpleNamespace(manifest=manifest)
        plan = world.app.plan()
        inputs = tuple(dataclasses.replace(one, **changes) for one in plan.inputs)
        begun = Beginning(0, b"", cast("Snapshot", base), cut)
        at_ms = int(time.time() * 1_000) - 1
        with pytest.raises(UsageError, match=f"may have events up to {until}"):
            check_after(dataclasses.replace(plan, inputs=inputs), begun, at_ms)
        check_after(plan, Beginning(0, b"", snapshot, cut), at_ms)


def test_history_whose_beginning_is_deleted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h, _ = yard.lived(1, 30)
    with h:
        start_offset = h.log.start_offset
        monkeypatch.setattr(
            h.log,
            "start_offset",
            lambda topic, number: 3 if topic == "moves" else start_offset(topic, number),
        )
        with pytest.raises(
            OffsetGoneError, match=r"deleted offsets 0 to 2, which the history begins with.*--archive"
        ):
            as_of(h, tmp_path / "out", 0)
    assert list(tmp_path.iterdir()) == []
