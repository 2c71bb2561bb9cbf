"""Files of each format: random rows that are written and appended are the events that plain Python makes of
them.
"""

from __future__ import annotations

import csv
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.cli.row_files import rows_of
from tailrace.cli.row_records import record_of, typed


class Port(msgspec.Struct):
    name: str
    depth: float | None = None


class Call(msgspec.Struct):
    ship: tr.Key[str]
    at: datetime
    seen: int | None
    share: float
    is_late: bool
    price: Decimal
    day: date
    data: bytes
    port: Port
    stops: list[int | None]
    note: str = "none"


app = tr.App("calls", partitions=1)
calls = app.topic("calls", Call)

BIG = [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 0, 7]


def random_row(random: Random) -> dict[str, Any]:
    return {
        "ship": "".join(random.choices('aß"\n,;\u2028 ', k=random.randrange(1, 6))),
        "at": datetime(2013, 1, 1, tzinfo=UTC) + timedelta(microseconds=random.getrandbits(48)),
        "seen": random.choice([None, *BIG]),
        "share": random.choice([0.1, -0.0, 1e300, random.random()]),
        "is_late": random.random() < 0.5,
        "price": Decimal(random.randrange(-(10**19), 10**19)).scaleb(-4),
        "day": date(1990, 1, 1) + timedelta(days=random.randrange(20_000)),
        "data": random.randbytes(3),
        "port": {"name": random.choice(["Oslo", "", "null"]), "depth": random.choice([None, 1.5])},
        "stops": [random.choice([None, *BIG]) for _ in range(random.randrange(3))],
        "note": random.choice(["", "null", "true", "x" * 50]),
    }


def event_of(row: dict[str, Any]) -> Call:
    fields: dict[str, Any] = {**row, "port": Port(**row["port"])}
    return Call(**fields)


def test_lines_are_the_events_that_plain_python_makes_of_them(seeds: range, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    make = typed(calls, None, pytest.fail)
    for seed in seeds:
        random = Random(seed)
        rows = [random_row(random) for _ in range(random.randrange(1, 20))]
        path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        found = [record_of(make, row, 0, 1 << 20) for row in rows_of(str(path), "jsonl")]
        assert [calls.decode(one.value or b"") for one in found] == [event_of(row) for row in rows]


class Flat(msgspec.Struct):
    """A row of CSV: an empty cell is a missing field."""

    ship: tr.Key[str]
    at: datetime
    seen: int | None = None
    share: float = 0.5
    is_late: bool = False
    price: Decimal = Decimal(0)
    day: date = date(1990, 1, 1)
    note: str = "none"


flats = app.topic("flats", Flat)


def test_rows_of_csv_are_the_events_that_plain_python_makes_of_them(seeds: range, tmp_path: Path) -> None:
    names = Flat.__struct_fields__
    make = typed(flats, None, pytest.fail)
    for seed in seeds:
        random = Random(seed)
        rows = [random_row(random) for _ in range(random.randrange(1, 20))]
        with (tmp_path / "rows.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names, extrasaction="ignore")
            writer.writeheader()
            writer.writerows({**row, "is_late": str(row["is_late"]).lower()} for row in rows)
        found = [record_of(make, row, 0, 1 << 20) for row in rows_of(str(tmp_path / "rows.csv"), "csv")]
        assert [flats.decode(one.value or b"") for one in found] == [
            Flat(**{name: row[name] for name in names if row[name] not in (None, "")}) for row in rows
        ]
