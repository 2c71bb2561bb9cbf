from __future__ import annotations

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest
from pyspark.sql import functions as F  # noqa: N812 (the name that PySpark's users know)

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.schema import encode_schemas
from tailrace.core.errors import UnknownSnapshotError, UsageError
from tailrace.core.values.partitioner import partition_of
from tailrace.state.snapshots import Snapshot, Snapshots
from tests.spark import travel
from tests.spark.reading import answer
from tests.state.snapshots.making import published

COUNT = 300
LAST = travel.DAY + timedelta(minutes=COUNT - 1)


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    made = travel.Lived(tmp_path_factory.mktemp("lived"), COUNT)
    made.run()
    made.take(name="full")
    writer = made.log.writer("more")
    writer.append([travel.output(travel.trips, travel.trip(COUNT), travel.ms(travel.trip(COUNT).at))])
    writer.commit()
    made.run()
    made.take(name="part", incremental=True)
    made.log.close()
    return made


@pytest.fixture
def options(lived):
    return {"snapshot": lived.uri, "app": "travel", "id": "full"}


def flown(count: int = COUNT) -> dict[str, list[travel.Trip]]:
    found = defaultdict(list)
    for number in range(count):
        one = travel.trip(number)
        found[one.tail].append(one)
    return found


def test_an_actor_is_a_table_with_a_row_for_each_key_and_a_column_for_each_field(spark, options):
    frame = spark.read.format("tailrace").options(**options, actor="Plane").load()
    assert frame.columns == ["key", "last", "miles"]
    assert dict(frame.dtypes)["miles"] == "bigint"
    assert dict(frame.dtypes)["last"].startswith("struct<tail:string,at:timestamp,miles:bigint,cabin:string")
    found = {row.key: row for row in frame.collect()}
    trips = flown()
    assert found.keys() == trips.keys()
    for tail, row in found.items():
        last = trips[tail][-1]
        assert row.miles == sum(one.miles for one in trips[tail])
        assert (row.last.at.replace(tzinfo=UTC), row.last.note) == (last.at, last.note)
        assert [seat.row for seat in row.last.seats] == [seat.row for seat in last.seats]
    top = frame.orderBy(F.desc("miles")).select("key").first()
    assert top.key == max(trips, key=lambda tail: sum(one.miles for one in trips[tail]))


def test_a_map_and_a_list_are_tables_of_their_entries(spark, options):
    trips = flown()
    cabins = answer(**options, actor="Plane", field="cabins").rows
    assert {(row["key"], row["entry"]): row["value"] for row in cabins} == {
        (tail, cabin.value): number
        for tail, some in trips.items()
        for cabin in travel.Cabin
        if (number := sum(one.cabin is cabin for one in some))
    }
    notes = answer(**options, actor="Plane", field="notes").rows
    assert {(row["key"], row["position"]): row["value"] for row in notes} == {
        (tail, at): note
        for tail, some in trips.items()
        for at, note in enumerate([one.note for one in some if one.note is not None][-travel.NOTES :])
    }
    assert max(row["position"] for row in notes) == travel.NOTES - 1
    frame = spark.read.format("tailrace").options(**options, actor="Plane", field="cabins").load()
    assert frame.columns == ["key", "entry", "value", "expires"]
    assert frame.agg(F.sum("value")).first()[0] == COUNT


def test_pending_timers_are_a_table(options):
    rested = {tail: some[-1].at + timedelta(hours=6) for tail, some in flown().items()}
    found = answer(**options, table="timers", actor="Plane").rows
    assert {row["key"]: row["time"] for row in found} == rested
    assert {(row["actor"], row["domain"], row["name"], row["depth"]) for row in found} == {
        ("Plane", "event", "rested", 0)
    }
    assert {row["key"] for row in answer(**options, table="timers").rows} == {one.encode() for one in rested}


def test_the_state_as_it_is_stored_is_a_table(options, lived):
    snapshot = lived.snapshot("full")
    found = {
        (row["actor"], row["key"], row["kind"], row["field"], row["entry"]): row["value"]
        for row in answer(**options, table="state").rows
    }
    count = 0
    for number in range(4):
        for row, value in snapshot.rows(number):
            parts = rows.read_state_row(row)
            if not parts.rest:
                assert found[parts.actor, parts.key, "value", None, None] == value
                count += 1
    assert count == len(travel.PLANES)


def test_an_incremental_snapshot_shows_the_merged_state(options):
    found = answer(**{**options, "id": "part"}, actor="Plane").rows
    assert {row["key"]: row["miles"] for row in found} == {
        tail: sum(one.miles for one in some) for tail, some in flown(COUNT + 1).items()
    }


class Read:
    """What was read of a snapshot."""

    def __init__(self) -> None:
        self.partitions: set[int] = set()
        self.columns: set[str] = set()
        self.rows = 0


@pytest.fixture
def read(monkeypatch):
    found, original = Read(), Snapshot.batches

    def batches(
        self: Snapshot, table: Any, partition: Any = None, columns: Any = None, filter: Any = None
    ) -> Any:
        found.partitions.add(partition)
        for batch in original(self, table, partition, columns, filter):
            found.columns |= set(batch.schema.names)
            found.rows += batch.num_rows
            yield batch

    monkeypatch.setattr(Snapshot, "batches", batches)
    return found


def test_of_some_keys_only_their_tasks_and_rows_are_read(options, read):
    (row,) = answer(**options, actor="Plane", keys='["N107"]').rows
    assert row["key"] == "N107"
    assert (read.partitions, read.rows) == ({partition_of(b"N107", 4)}, 1)
    read.rows = 0
    found = answer(**options, actor="Plane", field="cabins", keys='["N107", "N108"]').rows
    assert {row["key"] for row in found} == {"N107", "N108"}
    assert read.rows == len(found)


def test_columns_that_nobody_wants_are_not_read(options, read):
    found = answer(**options, actor="Plane", columns="key").rows
    assert len(found) == len(travel.PLANES)
    assert read.columns == {"key"}


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({}, UsageError, "'actor' is missing"),
        ({"actor": "Plain"}, UsageError, "Did you mean 'Plane'"),
        ({"actor": "Plane", "field": "miles"}, UsageError, "cabins, notes"),
        ({"actor": "Plane", "columns": "mile"}, UsageError, "The columns are: key, last, miles"),
        ({"actor": "Plane", "topic": "trips"}, UsageError, "belongs to a log"),
        ({"actor": "Plane", "table": "state"}, UsageError, "has all actors"),
        ({"actor": "Plane", "id": "nobody"}, UnknownSnapshotError, "nobody"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_with_the_mend(options, more, error, said):
    with pytest.raises(error, match=said):
        answer(**{**options, **more})


class Seen(msgspec.Struct):
    city: str
    number: int


parcels = tr.App("parcels", partitions=1)
seen = parcels.topic("seen", Seen, key=("city", "number"))


@parcels.actor
class Parcel(tr.Actor):
    key: str = "a field of this name"
    places: tr.MapState[date, list[int]] = tr.field(ttl="1h")

    @tr.process(seen)
    def saw(self, event: Seen, ctx: tr.Context[tuple[str, int]]) -> None: ...

    @tr.on_message
    def told(self, message: Seen, ctx: tr.Context[tuple[str, int]]) -> None: ...


@pytest.fixture
def by_hand(tmp_path):
    """A snapshot made row by row: an entry that expires, and timers of both times."""
    plan = parcels.plan()
    actor = plan.actors[0]
    key = actor.key_codec.encode(("Rome", 7))
    prefix = rows.actor_prefix("Parcel") + rows.escaped(key)
    entry = b"mplaces\0" + actor.maps[0].key_codec.encode(date(2013, 1, 1))
    packed = rows.pack_entry(msgspec.msgpack.encode([1, 2]), rows.EVENT_TIME, 5_000)
    found = {
        prefix: bytes((rows.FORMAT | rows.HAS_TIMERS,)) + msgspec.msgpack.encode({"key": "mine"}),
        prefix + entry: packed,
        rows.timer_row(prefix, rows.EVENT_TIME, rows.expiry_name(entry)): rows.encode_timer(
            rows.Timer(5_000, b"1")
        ),
        rows.timer_row(prefix, rows.PROCESSING_TIME, b"u" + rows.time_bytes(7_000)): rows.encode_timer(
            rows.Timer(7_000, b"1", 2)
        ),
        rows.timer_row(prefix, rows.EVENT_TIME, b"nlate"): rows.encode_timer(rows.Timer(9_000, b"1")),
    }
    schema = encode_schemas({"Parcel": actor.schema})
    published(Snapshots(str(tmp_path), "parcels"), [found], schemas=[schema])
    return {"snapshot": str(tmp_path), "app": "parcels"}


def at(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def test_an_entry_that_expires_says_when_and_its_hidden_timer_is_none(by_hand):
    (row,) = answer(**by_hand, actor="Parcel", field="places").rows
    assert row == {
        "_key": {"_1": "Rome", "_2": 7},
        "entry": date(2013, 1, 1),
        "value": [1, 2],
        "expires": at(5_000),
    }
    timers = answer(**by_hand, table="timers", actor="Parcel").rows
    assert [(row["key"]["_2"], row["domain"], row["name"], row["time"], row["depth"]) for row in timers] == [
        (7, "event", "late", at(9_000), 0),
        (7, "processing", None, at(7_000), 2),
    ]
