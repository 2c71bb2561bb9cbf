"""Values that are easily changed on the way: renamed fields, NaN, decimals, None, times of zones, keys with odd characters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
import pytest

import tailrace as tr
from tailrace.core.engine.describe_rows import instant
from tailrace.core.records import Output
from tailrace.lab.export import Destination, StateOptions, export_points, export_state, export_topics
from tailrace.lab.sql import answered
from tailrace.testing import Harness
from tests.history.rebuilding import lived
from tests.lab.in_process import comparison
from tests.lab.selling import version

KEYS = ["", "a b", "a\tb", "it's", '"q"', "ü€😀", "a/b", "a.b", "a\0b", "%41", "[x]", "null", "1"]
NUMBERS = [math.nan, math.inf, -math.inf, -0.0, 0.1 + 0.2, 1e300, None]
AMOUNTS = [Decimal("1.10"), Decimal("-0.00"), Decimal("12345678901234567890.123456789"), None]
EAST = timezone(timedelta(hours=5, minutes=30))
ANY = StateOptions(any_environment=True)


class Odd(msgspec.Struct, frozen=True, rename={"number": "the number", "name": "nameOf"}):
    """An event with values of all kinds."""

    name: tr.Key[str]
    at: tr.EventTime[int]
    number: str | None  # JSON has no NaN
    amount: Decimal | None
    seen: datetime
    text: str | None = None


app = tr.App("oddities", partitions=2)
odds = app.topic("odds", Odd)
seen = app.topic("seen", Odd)


@app.actor
class Last(tr.Actor):
    """Keeps the last event, and each number by its text."""

    number: float | None = tr.field(default=None, name="the number")
    amount: Decimal | None = None
    seen: datetime | None = None
    text: str | None = "none yet"
    seven: int = tr.field(default=7, name="_text")
    by: tr.MapState[str, float | None]
    count: int = 0

    @tr.process(odds)
    def take(self, event: Odd, ctx: tr.Context[str]) -> None:
        """Keep it."""
        self.number = None if event.number is None else float(event.number)
        self.amount, self.seen, self.text = event.amount, event.seen, event.text
        self.by[repr(event.number)] = self.number
        self.count += 1
        ctx.emit(seen, event)


def events() -> list[Odd]:
    at = datetime(2026, 3, 29, 0, 59, 59, 999_000, tzinfo=UTC).astimezone(EAST)
    return [
        Odd(
            KEYS[number % len(KEYS)],
            1_000 + 10 * number,
            None if (one := NUMBERS[number % len(NUMBERS)]) is None else repr(one),
            AMOUNTS[number % len(AMOUNTS)],
            at + timedelta(minutes=number),
            None if number % 3 else f"text {number}",
        )
        for number in range(60)
    ]


def last_of(until: int = 10**9) -> dict[str, Odd]:
    """The last event of each key up to a time."""
    return {one.name: one for one in events() if one.at <= until}


def same(found: dict[str, Any], one: Odd) -> None:
    """A row has the values of an event."""
    assert repr(found["the number"]) in (repr(one.number), one.number)
    assert found["amount"] == (None if one.amount is None else str(one.amount))
    assert found["seen"] == one.seen
    assert found["seen"].utcoffset() == timedelta()
    assert found["text"] == one.text


@pytest.fixture(scope="module")
def life() -> Iterator[Harness]:
    with Harness(app) as h:
        h.send(odds, *events())
        h.commit()
        yield h


@pytest.mark.parametrize("until", [999, 1_000, 1_305, 1_310, 10**9])
def test_a_state_as_of_a_time_and_at_points_has_them(life: Harness, tmp_path: Path, until: int) -> None:
    options = msgspec.structs.replace(ANY, as_of_ms=until)
    export_state(life.plan, life.log, Destination(tmp_path / "out"), options)
    rows = {one["key"]: one for one in pq.read_table(tmp_path / "out" / "Last").to_pylist()}
    entries = [(one["key"], one["entry"]) for one in pq.read_table(tmp_path / "out" / "Last_by").to_pylist()]
    assert sorted(entries) == sorted({(one.name, repr(one.number)) for one in events() if one.at <= until})
    here = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=until)).astimezone(EAST)
    zoned = pa.array([here] * len(KEYS), pa.timestamp("us", "Asia/Kolkata"))
    pq.write_table(pa.table({"key": KEYS, "time": zoned, "text": KEYS}), tmp_path / "points.parquet")
    export_points(life.plan, life.log, Destination(tmp_path / "at"), ANY, tmp_path / "points.parquet")
    points = pq.read_table(tmp_path / "at" / "Last").to_pylist()
    assert [one["text"] for one in points] == KEYS
    assert {one["key"] for one in points if one["count"] is not None} == rows.keys()
    for key, one in last_of(until).items():
        same(rows[key], one)
        point = next(each for each in points if each["key"] == key)
        same({**point, "text": point["__text"]}, one)
        assert point["_text"] == 7
        assert point["time"] == here


def test_a_topic_and_a_query_have_them(life: Harness, tmp_path: Path) -> None:
    export_topics(life.plan, life.log, Destination(tmp_path / "out"), ["seen"])
    rows = {one["_time"]: one for one in pq.read_table(tmp_path / "out" / "seen").to_pylist()}
    assert len(rows) == len(events())
    for one in events():
        row = rows[datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=one.at)]
        same(row, one)
        assert row["_key"] == row["nameOf"] == one.name
    query = 'select key, isnan("the number"), "the number" is null, epoch_us(seen), text from Last'
    with answered(life.plan, life.log, query, StateOptions()) as (_, found, _notes):
        assert sorted(found) == sorted(
            (
                key,
                None if one.number is None else one.number == "nan",
                one.number is None,
                (one.seen - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1),
                one.text,
            )
            for key, one in last_of().items()
        )


CHANGES = (
    ("if event.number is None", 'if event.number in (None, "inf")'),
    ("self.count += 1", "self.count += 1 if event.name else 2"),
)


def test_versions_differ_in_them_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A/A is empty; a key with odd characters is named, with its first event."""
    encode, key = msgspec.json.encode, app.plan().topics["odds"].key_codec.encode
    lived.append(
        tmp_path, [Output("odds", key(one.name), encode(one), one.at) for one in events()], {"odds": 2}
    )
    app_text = Path(__file__).read_text(encoding="utf-8").split("\n\ndef events(")[0]
    (tmp_path / "odd_app.py").write_text(app_text, encoding="utf-8")
    a = version(tmp_path, "odd_a", of=str(tmp_path / "odd_app.py"))
    lived.live_on(tmp_path, "tests.lab.test_odd_values:app")
    report, keys, outputs = comparison(monkeypatch, tmp_path, a, a)
    assert (report.noise, report.order, keys, outputs) == ([], "tape", [], [])
    assert report.counts.keys == len(KEYS)
    b = version(tmp_path, "odd_b", *CHANGES, of=str(tmp_path / "odd_app.py"))
    report, keys, outputs = comparison(monkeypatch, tmp_path, a, b)
    infinite = [key for key, one in last_of().items() if one.number == "inf"]
    assert infinite
    counted = sum(one.name == "" for one in events())
    assert {(one["key"], one["field"], one["a"], one["b"]) for one in keys} == {
        *((key, "number", "inf", "None") for key in infinite),
        *((one.name, f"by[{repr(one.number)!r}]", "inf", "None") for one in events() if one.number == "inf"),
        ("", "count", str(counted), str(2 * counted)),
    }
    assert outputs == []
    for one in keys:
        first = next(
            each
            for each in events()
            if each.name == one["key"] and (one["field"] == "count" or each.number == "inf" or not each.name)
        )
        assert instant(int(one["first_time"].timestamp() * 1000 + 0.5)) == instant(first.at)
