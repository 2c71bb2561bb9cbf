"""Files of each format: random rows, written by pyarrow and appended, are the events that plain Python makes
of them.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

import tailrace as tr
from tailrace.cli.rows import Row, record_of, rows_of, typed
from tailrace.core.errors import BadRecordError, MissingExtraError
from tailrace.core.extras import ExtraModule
from tests.cli.commands import SHOP, done, records, run

pa: Any = importlib.import_module("pyarrow")  # it has no types
parquet: Any = importlib.import_module("pyarrow.parquet")
orc: Any = importlib.import_module("pyarrow.orc")


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
    tons: dict[str, int | None]
    note: str = "none"


app = tr.App("calls", partitions=1)
calls = app.topic("calls", Call)

SCHEMA = pa.schema(
    {
        "ship": pa.string(),
        "at": pa.timestamp("us", "UTC"),
        "seen": pa.int64(),
        "share": pa.float64(),
        "is_late": pa.bool_(),
        "price": pa.decimal128(20, 4),
        "day": pa.date32(),
        "data": pa.binary(),
        "port": pa.struct({"name": pa.string(), "depth": pa.float64()}),
        "stops": pa.list_(pa.int64()),
        "tons": pa.map_(pa.string(), pa.int64()),
        "note": pa.string(),
    }
)
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
        "tons": {name: random.choice([None, *BIG]) for name in random.sample("abc", random.randrange(3))},
        "note": random.choice(["", "null", "true", "x" * 50]),
    }


def event_of(row: dict[str, Any]) -> Call:
    fields: dict[str, Any] = {**row, "port": Port(**row["port"])}
    return Call(**fields)


def appended(path: Path, format_: str) -> list[Any]:
    make = typed(calls, None, pytest.fail)
    return [
        calls.decode(record_of(make, row, 0, 1 << 20).value or b"") for row in rows_of(str(path), format_)
    ]


@pytest.mark.parametrize("format_", ["jsonl", "parquet", "orc"])
def test_rows_are_the_events_that_plain_python_makes_of_them(
    seeds: range, tmp_path: Path, format_: str
) -> None:
    path = tmp_path / "rows"
    for seed in seeds:
        random = Random(seed)
        rows = [random_row(random) for _ in range(random.randrange(1, 20))]
        if format_ == "jsonl":
            path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        else:
            (parquet if format_ == "parquet" else orc).write_table(
                pa.Table.from_pylist(rows, SCHEMA), str(path)
            )
        assert appended(path, format_) == [event_of(row) for row in rows]


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
    writing: Any = importlib.import_module("pyarrow.csv")
    names = Flat.__struct_fields__
    make = typed(flats, None, pytest.fail)
    for seed in seeds:
        random = Random(seed)
        rows = [random_row(random) for _ in range(random.randrange(1, 20))]
        for row in rows:
            row["ship"] = row["ship"].replace("\n", " ")
        table = pa.Table.from_pylist(rows, SCHEMA).select(names)
        writing.write_csv(table, tmp_path / "rows.csv")
        found = [record_of(make, row, 0, 1 << 20) for row in rows_of(str(tmp_path / "rows.csv"), "csv")]
        assert [flats.decode(one.value or b"") for one in found] == [
            Flat(**{name: row[name] for name in names if row[name] not in (None, "")}) for row in rows
        ]


# --- what Python has no value for, and what a field cannot hold


class Place(TypedDict):
    name: str


class Pair(NamedTuple):
    one: int
    other: float


class Cells(msgspec.Struct):
    when: datetime | None = None
    share: float | None = None
    count: int | None = None
    port: Port | None = None
    ports: list[Port] = []
    shares: set[float] = set()
    by_share: dict[float, str] = {}
    place: Place | None = None
    pair: Pair | None = None


cells = app.topic("cells", Cells)
MIDNIGHT = datetime(2013, 1, 1, tzinfo=UTC)


def json_row(line: str | dict[str, str]) -> Any:
    """The event of a line of JSON, or of the cells of a line of CSV, and what is said of it."""
    said: list[str] = []
    row = Row(1, line.encode()) if isinstance(line, str) else Row(1, {**line}, is_text=True)
    output = record_of(typed(cells, None, said.append), row, 0, 1 << 20)
    return cells.decode(output.value or b""), said


def table_row(path: Path, **columns: Any) -> Any:
    """The event of a Parquet file with one row."""
    parquet.write_table(
        pa.table({name: pa.array([value], type_) for name, (value, type_) in columns.items()}), path
    )
    said: list[str] = []
    (row,) = rows_of(str(path), "parquet")
    event = cells.decode(record_of(typed(cells, None, said.append), row, 0, 1 << 20).value or b"")
    return event, said


def test_timestamps_keep_their_instant_and_whether_they_have_a_zone(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    naive = MIDNIGHT.replace(tzinfo=None)
    oslo = MIDNIGHT.astimezone(timezone(timedelta(hours=1)))
    for type_, value, expected in [
        (pa.timestamp("ns"), naive, naive),
        (pa.timestamp("ns", "UTC"), MIDNIGHT, MIDNIGHT),
        (pa.timestamp("s", "Europe/Oslo"), MIDNIGHT, oslo),
    ]:
        found, _ = table_row(path, when=(value, type_))
        assert found.when == expected
        assert (found.when.tzinfo is None) == (expected.tzinfo is None)


@pytest.mark.parametrize(
    ("column", "value", "type_", "why"),
    [
        ("when", 1_357_017_420, pa.int64(), "Expected `datetime | null`, got `int`"),
        ("when", "20130101", pa.string(), "datetime"),
        ("when", date(2013, 1, 1), pa.date32(), "Expected `datetime | null`, got `date`"),
        ("share", 2**53 + 1, pa.int64(), "'share' is 9007199254740993: as a float it is 9007199254740992.0"),
        ("share", Decimal("0.12345678901234567890"), pa.decimal128(30, 20), "as a float it is"),
        ("share", float("nan"), pa.float64(), "nan"),
        ("count", 7.0, pa.float64(), "Expected `int | null`, got `float`"),
        ("count", True, pa.bool_(), "Expected `int | null`, got `bool`"),
        ("count", "7", pa.string(), "Expected `int | null`, got `str`"),
        ("port", {"name": None}, pa.struct({"name": pa.string()}), "got `null` - at `$.port.name`"),
        (
            "port",
            {"name": "x", "depth": 2**53 + 1},
            pa.struct({"name": pa.string(), "depth": pa.int64()}),
            "'port.depth' is 9007199254740993",
        ),
        ("ports", None, pa.list_(pa.string()), "Expected `array`, got `null` - at `$.ports`"),
        ("shares", [2**53 + 1], pa.list_(pa.int64()), "'shares' has 9007199254740993: as a float it is 90071992547409"),
        (
            "by_share",
            [(2**53 + 1, "x")],
            pa.map_(pa.int64(), pa.string()),
            "'by_share' has 9007199254740993: as a float it is 90071992547409",
        ),
    ],
)  # fmt: skip
def test_a_cell_that_its_field_cannot_hold_exactly_is_invalid(
    tmp_path: Path, column: str, value: Any, type_: Any, why: str
) -> None:
    with pytest.raises(BadRecordError) as raised:
        table_row(tmp_path / "in.parquet", **{column: (value, type_)})
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"share":9007199254740993}', "'share' is 9007199254740993: as a float it is 9007199254740992.0"),
        ('{"ports":[{"name":"x","depth":9007199254740993}]}', "'ports[0].depth' is 9007199254740993"),
        ('{"shares":[9007199254740993]}', "'shares' has 9007199254740993"),
        ('{"pair":[1,9007199254740993]}', "'pair[1]' is 9007199254740993"),
        ('{"when":"2026-03-01T00:00:00.123456789Z"}', "write whole microseconds"),
        ({"share": "9007199254740993"}, "'share' is '9007199254740993': as a float it is 9007199254740992.0"),
        ({"share": "9007199254740993.0"}, "as a float it is 9007199254740992.0"),
        ({"share": "1e-400"}, "as a float it is 0.0"),
        ({"when": "2026-03-01T00:00:00.1234560001Z"}, "write whole microseconds"),
    ],
)
def test_what_a_field_cannot_hold_exactly_is_invalid_in_json_and_csv(line: Any, why: str) -> None:
    with pytest.raises(BadRecordError) as raised:
        json_row(line)
    assert why in str(raised.value)


def test_text_that_a_field_holds_exactly_is_taken() -> None:
    for cell in ("0.1", "-0", "1e3", "1.50", "0.30000000000000004"):
        assert json_row({"share": cell})[0] == Cells(share=float(cell))
    found, _ = json_row({"share": "9007199254740992", "when": "2013-01-01T00:00:00.000000000Z"})
    assert found == Cells(share=2.0**53, when=MIDNIGHT)


def test_a_model_that_a_validator_makes_of_text_has_no_unknown_fields() -> None:
    class Name(pydantic.BaseModel):
        text: str

        @pydantic.model_validator(mode="before")
        @classmethod
        def of_text(cls, given: Any) -> Any:
            return {"text": given} if isinstance(given, str) else given

    class Named(pydantic.BaseModel):
        name: Name

    make = typed(tr.App("named").topic("named", Named), None, pytest.fail)
    assert record_of(make, Row(1, b'{"name":"Ada"}'), 0, 1 << 20).value == b'{"name":{"text":"Ada"}}'


def test_a_null_is_none_and_a_missing_column_the_default(tmp_path: Path) -> None:
    found, _ = table_row(tmp_path / "in.parquet", share=(None, pa.float64()), count=(None, pa.int64()))
    assert found == Cells(share=None, count=None)
    assert json_row('{"share":null}') == (Cells(share=None), [])


def test_fields_inside_of_structs_that_events_do_not_have_are_named(tmp_path: Path) -> None:
    type_ = pa.struct({"name": pa.string(), "dept": pa.float64()})
    _, said = table_row(
        tmp_path / "in.parquet",
        port=({"name": "x", "dept": 1.0}, type_),
        ports=([{"name": "x", "dept": 1.0}], pa.list_(type_)),
    )
    assert [one.partition(":")[0] for one in said] == [
        "the field 'port.dept' is dropped",
        "the field 'ports[0].dept' is dropped",
    ]
    _, said = json_row('{"place":{"name":"x","nmae":"y"},"port":{"name":"x","dept":1},"cont":1}')
    assert [one.partition(":")[0] for one in said] == [
        "the field 'port.dept' is dropped",
        "the field \"place['nmae']\" is dropped",
        "the field 'cont' is dropped",
    ]


# --- files as users have them

LINES = [f"c{number},{number},{number},n{number}" for number in range(100)]


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ({10: 'c10,10,10,"5 inch pipe'}, [12]),
        ({10: 'c10,10,10,"5 inch pipe', 90: 'c90,90,90,"6 inch" pipe'}, [12, 92]),
        ({10: 'c10,10,10,"5 inch pipe', 90: 'c90,90,90,6 inch"'}, [12]),
        ({10: f'c10,10,10,"5 inch pipe {"x" * 2_000_000}'}, [12]),
        ({10: 'c10,10,10,"two\nlines"'}, [12, 13]),
        ({10: "c10,10,10", 20: "", 30: ",30,30,n"}, [12, 32]),
        ({10: "c10,10,9223372036854775808.5,n"}, [12]),
    ],
)
def test_each_line_of_csv_is_appended_or_named(
    tmp_path: Path, broken: dict[int, str], named: list[int]
) -> None:
    path = tmp_path / "in.csv"
    path.write_text(
        "\n".join(["customer,at_ms,cents,note", *(broken.get(at, one) for at, one in enumerate(LINES))])
    )
    done("topics", "apply", "--app", SHOP, "--log", tmp_path / "log")
    command = ("log", "append", "purchases", path, "--app", SHOP, "--log", tmp_path / "log", "--skip-invalid")
    ended = run(*command)
    said = [
        int(one.partition(", line ")[2].partition(":")[0])
        for one in ended.err.splitlines()
        if ", line " in one
    ]
    assert (ended.code, said) == (3, named)
    found = [msgspec.json.decode(one.value)["cents"] for _, one in records(tmp_path / "log", "purchases")]
    assert sorted(found) == [
        at for at, line in enumerate(LINES) if broken.get(at, line) in (line, 'c90,90,90,6 inch"')
    ]


NAMES = [b"day-2024-03-31T01:30:00", b"_day", b".day", b"a b%20*?", "été".encode(), b"no\xff"]


@pytest.mark.parametrize("format_", ["parquet", "orc", "csv", "jsonl"])
def test_a_file_of_any_name_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str) -> None:
    monkeypatch.chdir(tmp_path)
    done("topics", "apply", "--app", SHOP, "--log", "log")
    table = pa.table({"customer": ["a"], "at_ms": [1], "cents": [1]})
    for number, name in enumerate(NAMES, 1):
        path = os.fsdecode(name + b"." + format_.encode())
        with Path(path).open("wb") as file:
            match format_:
                case "parquet":
                    parquet.write_table(table, file)
                case "orc":
                    orc.write_table(table, file)
                case "csv":
                    file.write(b"customer,at_ms,cents\na,1,1\n")
                case _:
                    file.write(b'{"customer":"a","at_ms":1,"cents":1}\n')
        done("log", "append", "purchases", path, "--app", SHOP, "--log", "log")
        assert len(records(Path("log"), "purchases")) == number


def test_a_name_that_is_not_utf_8_is_named_in_one_line(tmp_path: Path) -> None:
    ended = run("log", "append", "purchases", os.fsdecode(b"no\xff.jsonl"), "--log", tmp_path / "log")
    assert (ended.code, "is not UTF-8" in ended.err, "Traceback" in ended.err) == (2, True, False)


def test_a_named_pipe_is_appended_each_time(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    done("topics", "apply", "--app", SHOP, "--log", tmp_path / "log")
    command = ("log", "append", "purchases", path, "--app", SHOP, "--log", tmp_path / "log", "--format")
    for number in (1, 2):
        writer = threading.Thread(target=path.write_bytes, args=[b'{"customer":"a","at_ms":1,"cents":1}\n'])
        writer.start()
        done(*command, "jsonl")
        writer.join()
        assert len(records(tmp_path / "log", "purchases")) == number
    held = os.open(path, os.O_RDWR)
    ended = run(*command, "parquet")
    os.close(held)
    assert "Parquet cannot be read from standard input or a pipe: name a file." in ended.err


def purchases(path: Path, *arguments: object) -> str:
    folder = path.parent / "log"
    done("topics", "apply", "--app", SHOP, "--log", folder)
    ended = run("log", "append", "purchases", path, "--app", SHOP, "--log", folder, *arguments)
    assert ended.code == 1
    assert "Traceback" not in ended.err
    return ended.err.splitlines()[-1]


def test_a_parquet_file_that_breaks_off_is_appended_up_to_a_row_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    rows = [{"customer": f"c{number}", "at_ms": number, "cents": number} for number in range(100_000)]
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=20_000, compression="zstd")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 50_000] = bytes(50_000)
    path.write_bytes(data)
    said = purchases(path)
    number = int(said.partition("cannot be read after row ")[2].partition(":")[0])
    assert 0 < number < 100_000
    found = [msgspec.json.decode(one.value)["cents"] for _, one in records(tmp_path / "log", "purchases")]
    assert sorted(found) == list(range(number))


@pytest.mark.parametrize("data", [b"", b"x", b"PAR1 and what is no such file PAR1"])
def test_a_file_that_is_not_of_its_format_is_told_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "in.parquet"
    path.write_bytes(data)
    assert f"{path} cannot be read after row 0: " in purchases(path)


def test_columns_that_python_cannot_read_exactly_are_named(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    parquet.write_table(pa.table({"when": pa.array([1_357_017_420_000_000_001], pa.timestamp("ns"))}), path)
    assert "would lose data: 1357017420000000001" in purchases(path)
    parquet.write_table(pa.table({"when": pa.array([[5]], pa.list_(pa.timestamp("ns")))}), path)
    assert "the column 'when' is list<element: timestamp[ns]>: write it with microseconds" in purchases(path)
    parquet.write_table(pa.table([pa.array([1]), pa.array([2])], ["cents", "cents"]), path)
    assert "Multiple matches for FieldRef.Name(cents)" in purchases(path)


def test_without_pyarrow_tables_name_the_extra_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in"
    path.write_text("a\n1\n")
    for name in ("pyarrow", "pyarrow.dataset"):
        monkeypatch.setitem(sys.modules, name, None)
    fresh = ExtraModule("pyarrow.dataset", "Parquet and ORC files", "parquet")
    monkeypatch.setattr("tailrace.cli.rows.dataset", fresh)
    with pytest.raises(MissingExtraError, match=r"tailrace\[parquet\]"):
        list(rows_of(str(path), "parquet"))
    assert list(rows_of(str(path), "csv")) == [Row(2, {"a": "1"}, is_text=True)]
    with pytest.raises(MissingExtraError, match="Parquet and ORC files need the package pyarrow"):
        list(rows_of(str(path), "orc"))
    assert list(rows_of(str(path), "jsonl")) == [Row(1, b"a"), Row(2, b"1")]
