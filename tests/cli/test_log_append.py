"""``tailrace log append``: what goes into a topic, typed or raw, and what becomes of broken lines."""

from __future__ import annotations

import importlib
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.values.partitioner import partition_of
from tests.cli.commands import SHOP, done, records, run
from tests.cli.odd import oddities
from tests.cli.shop import Purchase, visits

ODD = "tests.cli.odd:app"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "log"
    done("log", "create", "--app", SHOP, "--log", path)
    done("log", "create", "raw", "--partitions", 3, "--log", path)
    done("log", "create", "oddities", "--log", path)
    return path


def append(folder, topic, *arguments, stdin=b""):
    return run("log", "append", topic, "--log", folder, *arguments, stdin=stdin)


def kept(path):
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_an_app_s_events_are_encoded_keyed_and_routed_as_it_does(folder) -> None:
    lines = b"".join(b'{"cents":5, "at_ms":%d,"customer":"c%d"}\n' % (at, at % 7) for at in range(40))
    ended = append(folder, "purchases", "--app", SHOP, stdin=lines)
    assert (ended.code, ended.err) == (0, "40 records appended to purchases.\n")
    found = records(folder, "purchases")
    assert len(found) == 40
    assert {number for number, _ in found} == {0, 1, 2}
    for number, record in found:
        event = msgspec.json.decode(record.value, type=Purchase)
        assert record.key == event.customer.encode()
        assert number == partition_of(record.key, 3)
        assert record.timestamp_ms == event.at_ms
        assert record.value == msgspec.json.encode(event)


@pytest.mark.parametrize("own", ["changelog", "tape", "dead-letters"])
def test_what_an_app_keeps_for_itself_is_not_appended_to(folder, own) -> None:
    ended = append(folder, f"shop.{own}", stdin=b"{}\n")
    assert (ended.code, ended.out) == (2, "")
    assert f"'shop.{own}' belongs to the app 'shop'" in ended.err
    assert records(folder, f"shop.{own}") == []


def test_csv_is_read_as_the_types_that_are_declared(folder) -> None:
    rows = b"at,customer\n2013-01-01T05:17:00Z,12\n"
    assert append(folder, "visits", "--app", SHOP, "--format", "csv", stdin=rows).code == 0
    ((number, record),) = records(folder, "visits")
    assert record.key == (12).to_bytes(8, "big")
    assert number == partition_of(record.key, 3)
    assert visits.decode(record.value).customer == 12
    assert record.timestamp_ms == 1_357_017_420_000


@pytest.mark.parametrize(
    ("at", "refused"),
    [("20260301", True), ("22001231", True), ("20261301", False), ("20260300", False), ("18991231", False)],
)
def test_an_event_time_that_looks_like_a_date_is_refused(folder, tmp_path, at, refused) -> None:
    rows = f"customer,at_ms,cents\na,{at},1\n".encode()
    found, reasons = appended(folder, tmp_path, "purchases", "--app", SHOP, "--format", "csv", stdin=rows)
    assert (len(found), len(reasons)) == ((0, 1) if refused else (1, 0))


def test_an_empty_cell_is_a_missing_field(folder) -> None:
    rows = b"customer,at_ms,cents,note\na,1,2,\n,1,2,x\n"
    ended = append(
        folder, "purchases", "--app", SHOP, "--format", "csv", "--rejects", folder / "r", stdin=rows
    )
    ((_, record),) = records(folder, "purchases")
    assert msgspec.json.decode(record.value)["note"] == ""
    assert "Object missing required field `customer`" in ended.err


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"not json", "malformed"),
        (b'{"customer":"a","at_ms":1}', "missing required field `cents`"),
        (b'{"customer":1,"at_ms":1,"cents":1}', "Expected `str`"),
        (b'{"customer":"a","at_ms":99999999999999999,"cents":1}', "is outside of"),
        (b'{"customer":"a","at_ms":1760000000,"cents":1}', "event_time=lambda event: event.at_ms * 1000"),
        (b'{"customer":"a","at_ms":20260301,"cents":1}', "the event time 20260301 ms looks like a date"),
        (b'{"customer":"\xff","at_ms":1,"cents":1}', "utf-8"),
        (
            b'{"customer":"a","at_ms":1,"cents":1,"note":"' + b"x" * (1 << 20) + b'"}',
            "and the log takes 1048576",
        ),
    ],
)
def test_a_broken_line_is_counted_kept_aside_and_reported_and_the_rest_goes_on(
    folder, tmp_path, line, why
) -> None:
    good = b'{"customer":"a","at_ms":1,"cents":1}'
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join([good, b"", line, good]))
    ended = append(folder, "purchases", source, "--app", SHOP)
    assert ended.code == 3
    assert ended.err.startswith("2 records appended to purchases.\n1 broken line is written to ")
    last = ended.err.splitlines()[-1]
    assert last.startswith(f"tailrace: 1 of 3 lines not appended, the first: {source}, line 3: ")
    assert last.endswith("with --allow-rejects the exit code is 0.")
    assert why in ended.err
    (one,) = kept(tmp_path / "in.jsonl.rejected.jsonl")
    assert one["line"] == 3
    assert why in one["error"]
    assert "base64" in one or one["text"].encode() == line
    assert len(records(folder, "purchases")) == 2


@pytest.mark.parametrize(
    ("lines", "arguments", "code", "said"),
    [
        (
            b"1\nx\n2\ny\n",
            [],
            3,
            "2 of 4 lines not appended, the first: standard input, line 2: JSON is malformed",
        ),
        (b"1\nx\n2\n", ["--allow-rejects"], 0, ""),
        (b"1\n2\n", ["--allow-rejects"], 0, ""),
        (
            b"x\ny\n",
            [],
            1,
            "nothing was appended: all 2 lines are broken, the first: standard input, line 1: ",
        ),
        (b"x\ny\n", ["--allow-rejects"], 1, "nothing was appended: all 2 lines are broken"),
        (b"x\n", [], 1, "nothing was appended: the only line is broken: standard input, line 1: "),
        (b"", [], 0, ""),
        (b"x\n1\n", ["--strict"], 1, "Stopped at the first broken line"),
    ],
)
def test_the_exit_code_says_whether_no_line_some_or_all_are_broken(
    folder, tmp_path, lines, arguments, code, said
) -> None:
    for how in ([], ["--json"]):
        ended = append(folder, "raw", "--rejects", tmp_path / "r", *arguments, *how, stdin=lines)
        assert ended.code == code
        complaints = [line for line in ended.err.splitlines() if line.startswith("tailrace: ")]
        assert complaints == [] if not said else said in complaints[0]


def test_a_file_of_broken_lines_beside_a_good_one_is_some_broken_lines(folder, tmp_path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b"x\ny\n")
    (tmp_path / "good.jsonl").write_bytes(b"1\n")
    ended = append(folder, "raw", tmp_path / "good.jsonl", tmp_path / "bad.jsonl")
    assert ended.code == 3
    assert f"2 of 3 lines not appended, the first: {tmp_path / 'bad.jsonl'}, line 1" in ended.err


def test_csv_rows_that_do_not_fit_lose_nothing_of_their_text(folder, tmp_path) -> None:
    rows = [b"customer,at_ms,cents", b"a,1,2", b"b,1", b"c,1,2,3", b"d\xff,1,2", b'e,1,"2', b"f,1,2"]
    side = tmp_path / "side"
    append(folder, "raw", "--key", "customer", "--format", "csv", "--rejects", side, stdin=b"\n".join(rows))
    found = [record.value for _, record in records(folder, "raw")]
    broken = kept(side)
    assert [one["line"] for one in broken] == [3, 4, 5, 6]
    # A quote that is never closed makes one row of all that follows.
    assert [one.get("text") for one in broken] == ["b,1\n", "c,1,2,3\n", None, 'e,1,"2\nf,1,2']
    assert found == [b'{"customer":"a","at_ms":"1","cents":"2"}']


def test_strict_stops_at_the_first_broken_line(folder, tmp_path) -> None:
    lines = b'{"customer":"a"}\nbroken\n{"customer":"b"}\n'
    ended = append(folder, "raw", "--key", "customer", "--strict", "--rejects", tmp_path / "r", stdin=lines)
    assert ended.code == 1
    assert "1 record appended" in ended.err
    assert len(records(folder, "raw")) == 1


def test_raw_lines_stay_as_they_are_and_are_keyed_by_fields(folder, tmp_path) -> None:
    lines = b'{"a": {"b": "x"}, "n": 7, "t": "2013-01-01T00:00:00Z"}\n'
    append(folder, "raw", "--key", "a.b", "--timestamp", "t", stdin=lines)
    append(folder, "raw", "--key", "n", stdin=lines)
    append(folder, "raw", "--key", "a.b", "--key", "n", stdin=lines)
    append(folder, "raw", stdin=lines)
    found = [record for _, record in records(folder, "raw")]
    assert {record.key for record in found} == {b"x", (7).to_bytes(8, "big"), b'["x",7]', None}
    assert {record.value for record in found} == {lines.strip()}
    assert min(record.timestamp_ms for record in found) == 1_356_998_400_000


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{}", "the key 'k' is missing"),
        (b'{"K": 1}', "the key 'k' is missing. Did you mean 'K'?"),
        (b'{"k": null}', "the key 'k' is missing\n"),
        (b'{"k": 1.5}', "neither text nor an integer"),
        (b'{"k": true}', "neither text nor an integer"),
        (b'{"k": 99999999999999999999}', "does not fit 64 bits"),
        (b'{"k": 1, "t": "soon"}', "'soon', which is not a time"),
        (b'{"k": 1, "t": "2013-01-01T00:00:00"}', "which is not a time"),
        (b'{"k": 1}', "the timestamp 't' is missing"),
        (b"[1]", "the key 'k' is missing"),
        (b"[" * 100_000, "ecursion"),
    ],
)
def test_a_raw_line_without_its_key_or_time_is_broken(folder, tmp_path, line, why) -> None:
    ended = append(folder, "raw", "--key", "k", "--timestamp", "t", "--rejects", tmp_path / "r", stdin=line)
    assert why in ended.err
    assert records(folder, "raw") == []


def test_the_report_can_be_read_by_a_machine(folder, tmp_path) -> None:
    side = tmp_path / "r"
    ended = append(folder, "raw", "--json", "--rejects", side, stdin=b"1\n2\nx\n")
    assert ended.lines == [{"topic": "raw", "appended": 2, "broken": 1, "kept": [str(side)]}]


def test_broken_lines_that_cannot_be_kept_stop_the_append(folder, tmp_path) -> None:
    ended = append(folder, "raw", "--rejects", tmp_path / "no" / "r", stdin=b"1\nx\n2\n")
    assert ended.code == 1
    assert "name a place for them with --rejects" in ended.err


@pytest.mark.parametrize("header", [b"", b"a,a\n", b"a,,b\n"])
def test_a_csv_file_without_a_header_is_refused(folder, header) -> None:
    ended = append(folder, "raw", "--format", "csv", stdin=header)
    assert ended.code == 1
    assert "must name its columns" in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nosuch"], 1, "there is no such topic in the log"),
        (["purchases", "--app", SHOP, "--key", "x"], 2, "leave --key out"),
        (["raw", "--app", SHOP], 2, "declares no topic 'raw', but late-purchases, purchases"),
        (["raw", "--app", "nowhere:app"], 2, "no module 'nowhere'"),
        (["raw", "/no/such/file"], 2, "does not exist"),
        (["raw", "--format", "xml"], 2, "'xml' is not one of"),
        ([], 2, "Missing argument 'TOPIC'"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(folder, arguments, code, said) -> None:
    ended = run("log", "append", *arguments, "--log", folder)
    assert ended.code == code
    assert said in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err


def parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    arrow: Any = importlib.import_module("pyarrow")  # it has no types
    writing: Any = importlib.import_module("pyarrow.parquet")
    writing.write_table(arrow.Table.from_pylist(rows), path, **options)
    return path


def test_parquet_rows_are_events_and_a_null_is_none_and_not_the_default(folder, tmp_path) -> None:
    good = {"customer": "a", "at_ms": 1, "cents": 2, "note": "y"}
    rows = [good, {**good, "customer": None}, {**good, "note": "x"}, {**good, "note": None}]
    source = parquet(tmp_path / "in.parquet", rows)
    ended = append(folder, "purchases", source, "--app", SHOP)
    assert ended.code == 3
    assert "2 records appended" in ended.err
    one, other = kept(tmp_path / "in.parquet.rejected.jsonl")
    assert (one["line"], other["line"]) == (2, 4)
    assert "Expected `str`, got `null` - at `$.customer`" in one["error"]
    assert "Expected `str`, got `null` - at `$.note`" in other["error"]
    found = [msgspec.json.decode(record.value) for _, record in records(folder, "purchases")]
    assert [event["note"] for event in found] == ["y", "x"]
    done("log", "append", "raw", source, "--log", folder)
    values = [msgspec.json.decode(record.value) for _, record in records(folder, "raw")]
    assert sorted(map(str, values)) == sorted(map(str, rows))


def test_a_parquet_file_that_breaks_off_is_told_with_how_far_it_was_read(folder, tmp_path) -> None:
    rows = [{"customer": f"c{number}", "at_ms": number, "cents": number} for number in range(200_000)]
    source = parquet(tmp_path / "in.parquet", rows, row_group_size=20_000, compression="zstd")
    data = bytearray(source.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 50_000] = bytes(50_000)
    source.write_bytes(data)
    ended = append(folder, "purchases", source, "--app", SHOP)
    assert ended.code == 1
    said = ended.err.splitlines()[-1]
    assert said.startswith("tailrace: ")
    assert "cannot be read after row " in said
    assert "Traceback" not in ended.err


def test_parquet_without_pyarrow_says_what_to_install(folder, tmp_path, monkeypatch) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "in.parquet").write_bytes(b"PAR1")
    ended = append(folder, "raw", tmp_path / "in.parquet")
    assert ended.code == 1
    assert "pip install 'tailrace[parquet]'" in ended.err.splitlines()[-1]


@pytest.mark.parametrize("data", [b"", b"x", b"PAR1 and what is no such file PAR1"])
def test_a_file_that_is_no_parquet_is_told_in_one_line(folder, tmp_path, data) -> None:
    (tmp_path / "in.parquet").write_bytes(data)
    ended = append(folder, "raw", tmp_path / "in.parquet")
    assert ended.code == 1
    assert "cannot be read after row 0: " in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err


# --- nothing is guessed, nothing is changed in silence


def appended(
    folder: Path, tmp_path: Path, topic: str, *arguments: object, stdin: bytes
) -> tuple[list[Any], list[str]]:
    """What became of rows: the values of the records, decoded, and the reasons of those that are broken."""
    side = tmp_path / "side"
    append(folder, topic, *arguments, "--rejects", side, stdin=stdin)
    found = [record.value for _, record in records(folder, topic)]
    reasons = [one["error"] for one in kept(side)] if side.exists() else []
    return found, reasons


@pytest.mark.parametrize(
    ("column", "cell", "kept_as"),
    [
        ("when", "20130101", None),
        ("when", "1357017420", None),
        ("when", "1357017420000", None),
        ("when", "1.5", None),
        ("when", "1e9", None),
        ("when", "2013-01-01T05:17:00Z", datetime(2013, 1, 1, 5, 17, tzinfo=UTC)),
        ("when", "2013-01-01 05:17:00+02:00", datetime(2013, 1, 1, 3, 17, tzinfo=UTC)),
        ("day", "20130101", None),
        ("day", "2013-01-01", date(2013, 1, 1)),
        ("span", "5", None),
        ("span", "PT5M", timedelta(minutes=5)),
        ("count", "7", 7),
        ("count", "7.0", 7),
        ("count", "1e3", 1000),
        ("count", "9007199254740993.0", None),
        ("count", "3.0000000000000000001", None),
        ("count", "1,000", None),
        ("count", "1_000", None),
        ("count", " 7", None),
        ("count", "18446744073709551616", 2**64),
        ("count", "null", None),
        ("maybe", "null", "None"),
        ("text", "null", "null"),
        ("text", " 007 ", " 007 "),
        ("share", "0.1", 0.1),
        ("share", "nan", None),
        ("share", "inf", None),
        ("share", "1e400", None),
        ("flag", "true", True),
        ("flag", "yes", None),
    ],
)
def test_a_cell_is_what_it_says_or_its_row_is_broken(folder, tmp_path, column, cell, kept_as) -> None:
    found, reasons = appended(
        folder, tmp_path, "oddities", "--app", ODD, "--format", "csv", stdin=f'{column}\n"{cell}"\n'.encode()
    )
    if kept_as is None:
        assert (found, len(reasons)) == ([], 1)
        assert column in reasons[0] or "Number out of range" in reasons[0]
    else:
        (value,) = found
        assert getattr(oddities.decode(value), column) == (None if kept_as == "None" else kept_as)


def test_a_number_in_parquet_is_no_datetime_and_a_large_one_no_float(folder, tmp_path) -> None:
    cells: list[dict[str, Any]] = [{"when": 1_357_017_420}, {"share": 2**53 + 1}, {"share": float("nan")}]
    for number, row in enumerate(cells):
        source = parquet(tmp_path / f"{number}.parquet", [row])
        assert append(folder, "oddities", source, "--app", ODD).code == 1
        (one,) = kept(tmp_path / f"{number}.parquet.rejected.jsonl")
        assert next(iter(row)) in one["error"]
    source = parquet(tmp_path / "raw.parquet", [{"share": float("nan")}, {"share": 1.5}])
    assert append(folder, "raw", source).code == 3
    ((_, record),) = records(folder, "raw")
    assert record.value == b'{"share":1.5}'


def test_a_column_that_no_field_takes_is_told_once(folder) -> None:
    rows = b"customer,at_ms,cents,note ,cent\n" + b"a,1,2,x,3\n" * 5
    ended = append(folder, "purchases", "--app", SHOP, "--format", "csv", stdin=rows)
    assert ended.code == 0
    said = [line for line in ended.err.splitlines() if "is dropped" in line]
    assert len(said) == 2
    assert "the column 'cent' is dropped: the events of 'purchases' have no such field" in said[0]
    assert "cents" in said[0]
    assert "'note '" in said[1]


@pytest.mark.parametrize("row", [b'a,"1"2,3', b'"a"b,1,3', b'a,1,"3'])
def test_a_quote_in_the_wrong_place_breaks_its_row(folder, tmp_path, row) -> None:
    found, reasons = appended(folder, tmp_path, "raw", "--format", "csv", stdin=b"k,l,m\n" + row + b"\n")
    assert (found, len(reasons)) == ([], 1)


def test_a_byte_order_mark_windows_line_ends_and_quoted_ones_are_read_as_they_are_meant(folder) -> None:
    rows = b'\xef\xbb\xbf"customer",note\r\na,"x\r\n""y"""\r\n'
    append(folder, "raw", "--key", "customer", "--format", "csv", stdin=rows)
    ((_, record),) = records(folder, "raw")
    assert (record.key, msgspec.json.decode(record.value)["note"]) == (b"a", 'x\r\n"y"')


@pytest.mark.parametrize(
    ("at", "time_ms"),
    [
        ("20130101", None),
        ("1357017420", None),
        ("1357017420000", 1_357_017_420_000),
        ("-1", -1),
        ("2013-01-01T05:17:00Z", 1_357_017_420_000),
        ("2013-01-01T05:17:00", None),
    ],
)
def test_a_timestamp_is_milliseconds_or_has_a_zone(folder, tmp_path, at, time_ms) -> None:
    line = msgspec.json.encode({"at": at})
    found, reasons = appended(folder, tmp_path, "raw", "--timestamp", "at", stdin=line)
    if time_ms is None:
        assert (found, len(reasons)) == ([], 1)
    else:
        ((_, record),) = records(folder, "raw")
        assert record.timestamp_ms == time_ms


def test_what_was_dumped_says_the_same_when_it_is_appended_again(folder, tmp_path) -> None:
    values = [
        b'{"a":1.10,"b":12345678901234567890123,"a":2}',
        b'{"a":\r\n "x\\ny",\n "b": -0.0}',
        '["ß\u2028"]'.encode(),
        b"null",
    ]
    for value in values:
        append(folder, "raw", stdin=value.replace(b"\n", b" ").replace(b"\r", b" "))
    dumped = done("log", "dump", "raw", "--log", folder).out
    again = [
        msgspec.json.decode(line, type=dict[str, msgspec.Raw])["value"] for line in dumped.split("\n")[:-1]
    ]
    assert sorted(map(bytes, again)) == sorted(
        one.replace(b"\n", b" ").replace(b"\r", b" ") for one in values
    )


@pytest.mark.parametrize(
    ("cell", "name"), [("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity"), ("1.5", 1.5)]
)
def test_messagepack_keeps_what_is_no_number_and_a_dump_names_it(folder, cell, name) -> None:
    done("log", "create", "packed", "--log", folder)
    append(folder, "packed", "--app", ODD, "--format", "csv", stdin=f"share\n{cell}\n".encode())
    ended = done("log", "dump", "packed", "--app", ODD, "--log", folder)
    assert ended.lines[0]["value"]["share"] == name
