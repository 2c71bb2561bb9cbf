"""A value in Spark is the value that Python reads: odd numbers, times before 1970, nulls, in a session of any time zone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that PySpark's users know)

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.schema import encode_schemas
from tailrace.core.errors import BadRecordError
from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicPartition, TopicSettings
from tailrace.state.snapshots import Snapshots
from tests.spark.reading import answer
from tests.state.snapshots.making import published

NAN, INFINITE = float("nan"), float("inf")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Level(Enum):
    LOW = -1
    HIGH = 1


class Sample(msgspec.Struct):
    """A field of each kind that has a column of its own, and dicts by other keys than text."""

    name: str
    number: int | None = None
    level: Level | None = None
    ratio: float | None = None
    ratios: list[float | None] = []
    at: datetime | None = None
    ats: dict[str, datetime] = {}
    price: Decimal | None = None
    day: date | None = None
    clock: time | None = None
    span: timedelta | None = None
    place: UUID | None = None
    raw: bytes | None = None
    words: dict[int, str] = {}
    by_day: dict[date, int] = {}
    by_level: dict[Level, float | None] = {}


WEST = timezone(timedelta(hours=-5))
SAMPLES = (
    Sample("nothing"),
    Sample("nan", 0, None, NAN, [NAN, -0.0, 0.0, None, INFINITE, -INFINITE], by_level={Level.LOW: NAN}),
    Sample("zeros", -(1 << 63), Level.LOW, -0.0, [-0.0], span=timedelta(microseconds=-1)),
    Sample("small", (1 << 63) - 1, Level.HIGH, 5e-324, [1.7976931348623157e308, 0.1 + 0.2]),
    Sample("before 1970", at=datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), day=date(1969, 12, 31)),
    Sample("calendars", at=datetime(1582, 10, 9, 12, 0, 0, 1, UTC), day=date(1582, 10, 9)),
    Sample("first", at=datetime(1, 1, 1, tzinfo=UTC), day=date(1, 1, 1), by_day={date(1, 1, 1): 1}),
    Sample("last", at=datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), day=date(9999, 12, 31)),
    Sample("offset", at=datetime(1900, 2, 28, 23, 30, tzinfo=WEST)),
    Sample(
        "clock change",
        at=datetime(2013, 3, 10, 7, 30, tzinfo=UTC),
        ats={
            "gap": datetime(2013, 3, 10, 2, 30, tzinfo=UTC),
            "twice": datetime(2013, 11, 3, 5, 30, tzinfo=UTC),
        },
    ),
    Sample("decimals", price=Decimal("-0.10"), clock=time(0, 0, 0, 1), span=timedelta(days=-1, hours=5)),
    Sample("decimals", price=Decimal("12345678901234567890123456789012345678901234567890.5E-3")),
    Sample("words", place=UUID(int=7), raw=b"\0\xff", words={1: "a", -(1 << 63): "", 0: "\0"}),
)

app = tr.App("values", partitions=1)
samples = app.topic("json", Sample, key="name", key_type=str)
app.topic("msgpack", Sample, key="name", key_type=str, format="msgpack")


def take(self: tr.Actor, event: Sample, ctx: tr.Context[str]) -> None: ...


FIELDS = Sample.__struct_fields__[1:]
app.actor(
    type(
        "Kept",
        (tr.Actor,),
        {
            "__module__": __name__,
            "__annotations__": {name: Sample.__annotations__[name] for name in FIELDS},
            **dict(zip(FIELDS, Sample.__struct_defaults__, strict=True)),
            "take": tr.process(samples)(take),
        },
    )
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics, one in each format, and a snapshot of the same values by number."""
    path = tmp_path_factory.mktemp("values")
    log = EmbeddedLog(path / "log")
    for name, encoder in (("json", msgspec.json), ("msgpack", msgspec.msgpack)):
        log.create_topic(name, TopicSettings(1))
        # JSON has no NaN: there it is null, and the oracle reads it as Python does.
        log.append_all([Output(name, b"key", encoder.encode(one), -1) for one in SAMPLES])
    log.close()
    (actor,) = app.plan().actors
    found: dict[bytes, bytes] = {}
    for number, one in enumerate(SAMPLES):
        key = actor.key_codec.encode(f"{number:02}")
        fields = msgspec.structs.asdict(one)
        del fields["name"]
        value = bytes((rows.FORMAT,)) + msgspec.msgpack.encode(fields)
        found[rows.actor_prefix("Kept") + rows.escaped(key)] = value
    snapshots = Snapshots(str(path / "snapshots"), "values")
    published(snapshots, [found], schemas=[encode_schemas({"Kept": actor.schema})])
    return path


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Tokyo"])
def zoned(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")  # as the session of these tests has it


def exact(value: Any) -> Any:
    """A value to compare: floats by their bits, so that NaN is NaN and -0.0 is not 0.0; times by numbers."""
    match value:
        case float():
            return struct.pack(">d", value)
        case list():
            return [exact(one) for one in value]
        case dict():
            return {key: exact(one) for key, one in value.items()}
        case bytearray():
            return bytes(value)
        case _:
            return value


def micros(at: datetime) -> int:
    return (at.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)


def expected(one: Sample) -> dict[str, Any]:
    """What Spark shows of an event that Python has read, by the table of types in the documentation."""
    return {
        "number": one.number,
        "level": None if one.level is None else one.level.value,
        "ratio": exact(one.ratio),
        "ratios": exact(one.ratios),
        "at": None if one.at is None else micros(one.at),
        "ats": {name: micros(at) for name, at in one.ats.items()},
        "price": None if one.price is None else str(one.price),
        "day": None if one.day is None else (one.day - EPOCH.date()).days,
        "clock": None if one.clock is None else one.clock.isoformat(),
        "span": one.span,
        "place": None if one.place is None else str(one.place),
        "raw": one.raw,
        "words": one.words,
        "by_day": {(day - EPOCH.date()).days: number for day, number in one.by_day.items()},
        "by_level": {level.value: exact(ratio) for level, ratio in one.by_level.items()},
    }


def shown(spark: SparkSession, order: str, **options: str) -> list[dict[str, Any]]:
    frame = spark.read.format("tailrace").options(**options).load().orderBy(order)
    instants = {
        "at": F.unix_micros("at"),
        "ats": F.transform_values("ats", lambda _, at: F.unix_micros(at)),
        "day": F.unix_date("day"),
        "by_day": F.transform_keys("by_day", lambda day, _: F.unix_date(day)),
    }
    names = [name for name in Sample.__struct_fields__ if name != "name"]
    frame = frame.select(*(instants.get(name, F.col(name)).alias(name) for name in names))
    return [{name: exact(one) for name, one in row.asDict().items()} for row in frame.collect()]


def test_the_values_of_events_are_those_that_python_reads(zoned, folder):
    for format_, decoder in (("msgpack", msgspec.msgpack), ("json", msgspec.json)):
        log = EmbeddedLog(folder / "log", create=False)
        fetched = log.reader({TopicPartition(format_, 0): 0}).fetch(format_, 0, 100).records
        log.close()
        events = [decoder.decode(record.value, type=Sample) for record in fetched]
        found = shown(
            zoned, "_offset", log=str(folder / "log"), topic=format_, app="tests.spark.test_values:app"
        )
        assert found == [expected(one) for one in events]
        assert len(found) == len(SAMPLES)


def test_the_values_of_a_state_are_those_that_were_stored(zoned, folder):
    found = shown(zoned, "key", snapshot=str(folder / "snapshots"), app="values", actor="Kept")
    assert found == [expected(one) for one in SAMPLES]


class Narrow(msgspec.Struct):
    count: int
    counts: list[int] = []
    span: timedelta | None = None


BIG = 1 << 63
NARROW = (
    (b"a", b'{"count":1}'),
    (b"b", b'{"count":%d,"counts":[1]}' % BIG),
    (b"c", b'{"count":2,"counts":[%d]}' % (-BIG - 1)),
    (b"d", b'{"count":"three"}'),
    (b"e", b'{"count":%d,"counts":[%d]}' % (BIG - 1, -BIG)),
    (b"f", b'{"count":4,"span":"P999999999D"}'),
    (b"g", None),
)


numbered = tr.App("numbered", partitions=1)
numbered.topic("narrow", Narrow)
numbered.topic("numbers", Narrow, key="count", key_type=int)


def narrow(folder: Path, **options: str) -> list[dict[str, Any]]:
    log = EmbeddedLog(folder / "log")
    log.create_topic("narrow", TopicSettings(1))
    if log.end_offset("narrow", 0) == 0:
        log.append_all([Output("narrow", key, value, 0) for key, value in NARROW])
    log.close()
    options |= {"log": str(folder / "log"), "topic": "narrow", "app": "tests.spark.test_values:numbered"}
    return answer(**options).rows


def test_what_no_column_can_hold_is_refused_by_its_place_also_where_undecodable_records_are_kept(tmp_path):
    for option in ("fail", "keep"):
        with pytest.raises(BadRecordError, match=r"'count' does not fit a column of type bigint.*offset 1"):
            narrow(tmp_path, endingOffsets="2", undecodable=option)
    with pytest.raises(BadRecordError, match=r"'counts' does not fit.*offset 2"):
        narrow(tmp_path, startingOffsets="2", undecodable="keep")
    with pytest.raises(BadRecordError, match=r"'span' does not fit.*offset 5"):
        narrow(tmp_path, startingOffsets="3", undecodable="keep")
    found = narrow(tmp_path, startingOffsets="3", endingOffsets="5", undecodable="keep")
    assert [(row["count"], row["_value"]) for row in found] == [(None, NARROW[3][1]), (BIG - 1, None)]


def test_a_key_that_cannot_be_decoded_is_kept_with_its_reason(tmp_path):
    log = EmbeddedLog(tmp_path / "log")
    log.create_topic("numbers", TopicSettings(1))
    log.append_all([Output("numbers", key, b'{"count":1}', 0) for key in (b"\0\0\0\0\0\0\0\1", b"none")])
    log.close()
    options = {"log": tmp_path / "log", "topic": "numbers", "app": "tests.spark.test_values:numbered"}
    good, bad = answer(**options, undecodable="keep").rows
    assert (good["_key"], good["count"], good["_error"]) == (1, 1, None)
    assert (bad["_key"], bad["count"], bad["_value"]) == (None, None, b'{"count":1}')
    assert "key cannot be decoded" in bad["_error"]
    with pytest.raises(BadRecordError, match="offset 1"):
        answer(**options)
