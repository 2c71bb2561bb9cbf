"""``tailrace log append``: what goes into a topic, typed or raw, and what an invalid row does."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.cli import append as appending
from tailrace.core.errors import OtherHistoryError
from tailrace.core.values.partitioner import partition_of
from tailrace.history.provenance.moves import Move, check_lives_here, note_move
from tailrace.log.embedded import EmbeddedLog
from tests.cli.commands import SHOP, Ended, done, records, run
from tests.cli.odd import oddities
from tests.cli.shop import Purchase, visits

ODD = "tests.cli.odd:app"
GOOD = b'{"customer":"a","at_ms":1,"cents":1}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    done("topics", "apply", "--app", SHOP, "--log", path)
    done("log", "create", "raw", "--partitions", 3, "--log", path)
    done("topics", "apply", "--app", ODD, "--log", path)
    return path


def append(folder: Path, topic: str, *arguments: object, stdin: bytes = b"") -> Ended:
    return run("log", "append", topic, "--log", folder, *arguments, stdin=stdin)


def values(folder: Path, topic: str) -> list[bytes]:
    return [record.value for _, record in records(folder, topic)]


def test_an_app_s_events_are_encoded_keyed_and_routed_as_it_does(folder: Path) -> None:
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
def test_what_an_app_keeps_for_itself_is_not_appended_to(folder: Path, own: str) -> None:
    ended = append(folder, f"shop.{own}", stdin=b"{}\n")
    assert (ended.code, ended.out) == (2, "")
    assert f"'shop.{own}' belongs to the app 'shop'" in ended.err
    assert records(folder, f"shop.{own}") == []


def test_csv_is_read_as_the_types_that_are_declared(folder: Path) -> None:
    rows = b"at,customer\n2013-01-01T05:17:00Z,12\n"
    assert append(folder, "visits", "--app", SHOP, "--format", "csv", stdin=rows).code == 0
    ((number, record),) = records(folder, "visits")
    assert record.key == (12).to_bytes(8, "big")
    assert number == partition_of(record.key, 3)
    assert visits.decode(record.value).customer == 12
    assert record.timestamp_ms == 1_357_017_420_000


def test_a_file_without_rows_is_named_as_its_columns_are_not_checked(folder: Path) -> None:
    ended = append(folder, "visits", "--app", SHOP, "--format", "csv", stdin=b"att,customer\n")
    assert ended.code == 0
    assert ended.err.splitlines()[0] == "standard input has no rows, so nothing of it was checked."
    full = append(
        folder, "visits", "--app", SHOP, "--format", "csv", stdin=b"at,customer\n2013-01-01T05:17:00Z,12\n"
    )
    assert full.err == "1 record appended to visits.\n"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"not json", "malformed"),
        (b'{"customer":"a","at_ms":1}', "missing required field `cents`"),
        (b'{"customer":1,"at_ms":1,"cents":1}', "Expected `str`, got `int` - at `$.customer`"),
        (b'{"customer":"a","at_ms":99999999999999999,"cents":1}', "is outside of"),
        (b'{"customer":"a","at_ms":1760000000,"cents":1}', "event_time=lambda event: event.at_ms * 1000"),
        (b'{"customer":"\xff","at_ms":1,"cents":1}', "utf-8"),
        (b'{"customer":"a","at_ms":1,"cents":1,"note":"' + b"x" * (1 << 20) + b'"}', "the log takes 1000000"),
    ],
)
def test_an_invalid_row_is_named_and_ends_the_append_behind_the_rows_before_it(
    folder: Path, tmp_path: Path, line: bytes, why: str
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(GOOD + b"\n" + line + b"\n" + GOOD * 2)
    ended = append(folder, "purchases", source, "--app", SHOP)
    assert ended.code == 1
    first, last = ended.err.splitlines()
    assert first == "1 record appended to purchases."
    assert last.startswith(f"tailrace: {source}, line 3: ")
    assert why in last
    assert "continue with --from-row 3" in last
    assert values(folder, "purchases") == [msgspec.json.encode(Purchase("a", 1, 1))]
    source.write_bytes(GOOD + b"\n" + GOOD * 3)
    assert append(folder, "purchases", source, "--app", SHOP, "--from-row", 3).code == 0
    assert len(values(folder, "purchases")) == 4


def test_each_invalid_row_that_is_skipped_is_named(folder: Path) -> None:
    lines = b"x\n" + GOOD + b"[]\n"
    ended = append(folder, "purchases", "--app", SHOP, "--skip-invalid", "--json", stdin=lines)
    assert ended.code == 3
    assert ended.lines == [{"topic": "purchases", "appended": 1, "invalid": 2}]
    first, second, last = ended.err.splitlines()
    assert first.startswith("standard input, line 1: JSON is malformed")
    assert second == "standard input, line 3: Expected `object`, got `array`"
    assert last.startswith("tailrace: 2 invalid rows not appended")


def test_raw_lines_stay_as_they_are_and_are_keyed_by_a_field(folder: Path) -> None:
    lines = b'{"a": "x", "n": 7, "t": "2013-01-01T00:00:00Z"}\n'
    append(folder, "raw", "--key", "a", "--timestamp", "t", stdin=lines)
    append(folder, "raw", "--key", "n", stdin=lines)
    append(folder, "raw", stdin=lines)
    found = [record for _, record in records(folder, "raw")]
    assert {record.key for record in found} == {b"x", (7).to_bytes(8, "big"), None}
    assert {record.value for record in found} == {lines.strip()}
    assert min(record.timestamp_ms for record in found) == 1_356_998_400_000


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{}", "the timestamp 't' is missing"),
        (b'{"k": null, "t": -1}', "the key 'k' is missing"),
        (b'{"k": 1.5, "t": -1}', "neither text nor an integer"),
        (b'{"k": true, "t": -1}', "neither text nor an integer"),
        (b'{"k": 99999999999999999999, "t": -1}', "does not fit 64 bits"),
        (b'{"k": 1, "t": "soon"}', "'soon', which is not a time"),
        (b'{"k": 1, "t": "2013-01-01T00:00:00"}', "which is not a time"),
        (b'{"k": 1, "t": 1357017420}', "looks like seconds"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"k": "\xff", "t": -1}', "utf-8"),
    ],
)
def test_a_raw_line_without_its_key_or_time_is_invalid(folder: Path, line: bytes, why: str) -> None:
    ended = append(folder, "raw", "--key", "k", "--timestamp", "t", stdin=line)
    assert ended.code == 1
    assert why in ended.err
    assert records(folder, "raw") == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nosuch"], 1, "there is no such topic in the log"),
        (["purchases", "--app", SHOP, "--key", "x"], 2, "leave --key out"),
        (["raw", "--app", SHOP], 2, "declares no topic 'raw', but late-purchases, purchases"),
        (["raw", "/no/such/file"], 2, "does not exist"),
        (["raw", "--format", "xml"], 2, "'xml' is not one of"),
        (["raw", "--format", "csv"], 2, "Without --app only JSON lines are read"),
        (["raw", __file__], 2, "names no format: give --format, jsonl, csv, parquet, orc"),
        (
            ["purchases", "--app", SHOP, "--format", "parquet"],
            1,
            "Parquet cannot be read from standard input",
        ),
    ],
)
def test_wrong_arguments_are_told_in_one_line(
    folder: Path, arguments: list[str], code: int, said: str
) -> None:
    ended = run("log", "append", *arguments, "--log", folder)
    assert ended.code == code
    assert said in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("column", "cell", "kept_as"),
    [
        ("when", "20130101", None),
        ("when", "1357017420000", None),
        ("when", "1e9", None),
        ("when", "2013-01-01T05:17:00Z", datetime(2013, 1, 1, 5, 17, tzinfo=UTC)),
        ("when", "2013-01-01 05:17:00+02:00", datetime(2013, 1, 1, 3, 17, tzinfo=UTC)),
        ("when", "2013-01-01T05:17:00", datetime(2013, 1, 1, 5, 17)),  # noqa: DTZ001  # without a zone
        ("day", "20130101", None),
        ("day", "2013-01-01", date(2013, 1, 1)),
        ("span", "5", None),
        ("span", "PT5M", timedelta(minutes=5)),
        ("count", "7", 7),
        ("count", "7.0", None),
        ("count", "1e3", None),
        ("count", "3.0000000000000000001", None),
        ("count", "1_000", None),
        ("count", " 7", None),
        ("count", "18446744073709551616", 2**64),
        ("count", "null", None),
        ("maybe", "null", "None"),
        ("text", "null", "null"),
        ("text", " 007 ", " 007 "),
        ("share", "0.1", 0.1),
        ("share", "nan", None),
        ("share", "1e400", None),
        ("flag", "true", True),
        ("flag", "yes", None),
    ],
)
def test_a_cell_is_what_it_says_or_its_row_is_invalid(
    folder: Path, column: str, cell: str, kept_as: object
) -> None:
    rows = f'{column}\n"{cell}"\n'.encode()
    ended = append(folder, "oddities", "--app", ODD, "--format", "csv", stdin=rows)
    found = values(folder, "oddities")
    if kept_as is None:
        assert (ended.code, found) == (1, [])
        assert "standard input, line 2: " in ended.err
        assert column in ended.err or "Number out of range" in ended.err
    else:
        assert getattr(oddities.decode(found[0]), column) == (None if kept_as == "None" else kept_as)


def test_messagepack_keeps_what_is_no_number_and_a_dump_names_it(folder: Path) -> None:
    append(folder, "packed", "--app", ODD, "--format", "csv", stdin=b"share\nnan\n-inf\n1.5\n")
    ended = done("log", "dump", "packed", "--app", ODD, "--log", folder)
    assert [line["value"]["share"] for line in ended.lines] == ["NaN", "-Infinity", 1.5]


def test_an_empty_cell_is_a_missing_field(folder: Path) -> None:
    rows = b'customer,at_ms,cents,note\na,1,2,\na,1,2,""\n,1,2,x\n'
    ended = append(folder, "purchases", "--app", SHOP, "--format", "csv", stdin=rows)
    assert values(folder, "purchases") == [msgspec.json.encode(Purchase("a", 1, 2))] * 2
    assert "line 4: Object missing required field `customer`" in ended.err


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (b"b,1", "2 cells under 3 columns"),
        (b"b,1,2,3", "4 cells under 3 columns"),
        (b"\xff,1,2", "it is not UTF-8"),
        (b'a,1,"3\n4"', "a quote is not closed in its line, and a cell has no line breaks"),
        (b'a,"1"2,3', "',' expected after '\"'"),
        (b'a,1,"3', "a quote is not closed in its line, and a cell has no line breaks"),
    ],
)
def test_a_csv_row_that_does_not_fit_is_invalid(folder: Path, row: bytes, why: str) -> None:
    rows = b'\xef\xbb\xbfcustomer,at_ms,cents\r\n"a",1,2\r\n\r\n' + row + b"\r\n"
    ended = append(folder, "purchases", "--app", SHOP, "--format", "csv", stdin=rows)
    assert ended.code == 1
    assert f"standard input, line 4: {why}" in ended.err
    assert values(folder, "purchases") == [msgspec.json.encode(Purchase("a", 1, 2))]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"", "must name its columns"),
        (b"a,a\n", "must name its columns"),
        (b"a,,b\n", "must name its columns"),
        (b"a;b\n1;2\n", "the separator must be a comma"),
        ("a,b\n".encode("utf-16"), "cannot be read: it is not UTF-8"),
        (b'"a,b\n', "cannot be read: a quote is not closed in its line"),
    ],
)
def test_a_csv_header_must_name_each_column_once(folder: Path, header: bytes, said: str) -> None:
    ended = append(folder, "purchases", "--app", SHOP, "--format", "csv", stdin=header)
    assert ended.code == 1
    assert said in ended.err


def test_an_append_that_is_stopped_names_the_row_to_continue_with(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\nno row\n" + b"".join(b'{"n":%d}\n' % number for number in range(10)))
    command: tuple[object, ...] = (source, "--key", "n", "--skip-invalid")
    append_all, commits = EmbeddedLog.append_all, [2]

    def stopped(self: EmbeddedLog, *given: Any) -> Any:
        commits[0] -= 1
        if commits[0] < 0:
            raise KeyboardInterrupt
        return append_all(self, *given)

    monkeypatch.setattr(appending, "_ROWS_PER_COMMIT", 4)
    monkeypatch.setattr(appending, "_ROWS_PER_NOTICE", 4)
    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedLog, "append_all", stopped)
        ended = append(folder, "raw", *command)
    said = [
        f"{count} records appended to raw, up to line {row} of {source}" for count, row in ((4, 6), (8, 10))
    ]
    assert [one for one in ended.err.splitlines() if "appended" in one] == [
        *said,
        "8 records appended to raw.",
    ]
    assert append(folder, "raw", *command, "--from-row", 11).err == "2 records appended to raw.\n"
    assert sorted(values(folder, "raw")) == sorted(b'{"n":%d}' % number for number in range(10))


def test_events_of_an_app_that_has_left_the_log_are_refused_with_its_new_place(folder: Path) -> None:
    with closing(EmbeddedLog(folder, create=False)) as opened:
        note_move(opened, ["shop"], Move("left", "00", "kafka://elsewhere:9092"))
        with pytest.raises(OtherHistoryError):
            check_lives_here(opened, "shop")
    ended = append(folder, "purchases", "--app", SHOP, stdin=GOOD)
    assert ended.code == 1
    assert "the app 'shop' was moved from this log to kafka://elsewhere:9092" in ended.err
    assert records(folder, "purchases") == []


def test_a_field_that_events_do_not_have_is_named_once(folder: Path) -> None:
    rows = b"customer,at_ms,cents,cent\n" + b"a,1,2,3\n" * 5
    said = (
        "tailrace: the field 'cent' is dropped: the events of 'purchases' have no such field. Did you mean "
        "'cents'?\n"
        "5 records appended to purchases.\n"
    )
    assert append(folder, "purchases", "--app", SHOP, "--format", "csv", stdin=rows).err == said
    lines = GOOD.replace(b"}", b',"cent":3}') * 5
    assert append(folder, "purchases", "--app", SHOP, stdin=lines).err == said


def test_what_was_dumped_says_the_same_when_it_is_appended_again(folder: Path) -> None:
    lines: list[Any] = [
        b'{"a":1.10,"b":12345678901234567890123,"a":2}',
        b'{"a":\r "x\\ny", "b": -0.0}',
        '["ß\u2028"]'.encode(),
        b"null",
    ]
    append(folder, "raw", stdin=b"\n".join(lines))
    dumped = done("log", "dump", "raw", "--log", folder).out
    again = [
        msgspec.json.decode(line, type=dict[str, msgspec.Raw])["value"] for line in dumped.split("\n")[:-1]
    ]
    assert [bytes(one) for one in again] == [line.replace(b"\r", b" ") for line in lines]
