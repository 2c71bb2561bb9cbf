"""``tailrace log append``: what goes into a topic, typed or raw, and what becomes of broken lines."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.values.partitioner import partition_of
from tests.cli.commands import SHOP, done, records, run
from tests.cli.shop import Purchase, visits


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "log"
    done("log", "create", "--app", SHOP, "--log", path)
    done("log", "create", "raw", "--partitions", 3, "--log", path)
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
    assert ended.err.startswith("2 records appended to purchases.\n1 broken line is kept aside in ")
    last = ended.err.splitlines()[-1]
    assert last.startswith(f"tailrace: 1 line was kept aside of 3, the first: {source}, line 3: ")
    assert last.endswith("--allow-rejects makes this no failure.")
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
            "2 lines were kept aside of 4, the first: standard input, line 2: JSON is malformed",
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
    assert f"2 lines were kept aside of 3, the first: {tmp_path / 'bad.jsonl'}, line 1" in ended.err


def test_csv_rows_that_do_not_fit_lose_nothing_of_their_text(folder, tmp_path) -> None:
    rows = [b"customer,at_ms,cents", b"a,1,2", b"b,1", b"c,1,2,3", b"d\xff,1,2", b'e,1,"2', b"f,1,2"]
    side = tmp_path / "side"
    append(folder, "raw", "--key", "customer", "--format", "csv", "--rejects", side, stdin=b"\n".join(rows))
    found = [record.value for _, record in records(folder, "raw")]
    broken = kept(side)
    assert [one["line"] for one in broken] == [3, 4, 5]
    assert [one.get("text") for one in broken[:2]] == ["b,1\n", "c,1,2,3\n"]
    # A quote that is never closed makes one cell of all that follows: it is still there, in the record.
    assert found[0] == b'{"customer":"a","at_ms":"1","cents":"2"}'
    assert found[1] == b'{"customer":"e","at_ms":"1","cents":"2\\nf,1,2"}'


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
        (b'{"k": 1, "t": "soon"}', "'soon', which is no instant"),
        (b'{"k": 1, "t": "2013-01-01T00:00:00"}', "which is no instant"),
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
    assert "names its columns" in ended.err


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


def test_parquet_rows_are_events_and_their_nulls_are_missing_fields(folder, tmp_path) -> None:
    good = {"customer": "a", "at_ms": 1, "cents": 2, "note": None}
    rows = [good, {**good, "customer": None}, {**good, "note": "x"}]
    source = parquet(tmp_path / "in.parquet", rows)
    ended = append(folder, "purchases", source, "--app", SHOP)
    assert ended.code == 3
    assert "2 records appended" in ended.err
    assert "1 broken line is kept aside" in ended.err
    (one,) = kept(tmp_path / "in.parquet.rejected.jsonl")
    assert one["line"] == 2
    assert "missing required field `customer`" in one["error"]
    found = [msgspec.json.decode(record.value) for _, record in records(folder, "purchases")]
    assert [event["note"] for event in found] == ["", "x"]


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
