"""``tailrace log append``: broken lines that are corrected, and files that are not what they seem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.commands import SHOP, Ended, done, records, run
from tests.cli.shop import Purchase


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    done("log", "create", "--app", SHOP, "--log", path)
    done("log", "create", "raw", "--log", path)
    return path


def append(folder: Path, topic: str, *arguments: object, stdin: bytes = b"") -> Ended:
    return run("log", "append", topic, "--log", folder, *arguments, stdin=stdin)


def lines_of(path: Path) -> list[Any]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def corrected(path: Path, old: bytes, new: bytes) -> Path:
    """Correct the texts in a file of broken lines, and nothing else of them."""
    lines = lines_of(path)
    for one in lines:
        one["text"] = one["text"].replace(old.decode(), new.decode())
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in lines))
    return path


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("in.jsonl", b'{"customer":"a","at_ms":1,"cents":1}\n{"customer":"b","at_ms":2,"cents":"five"}\n'),
        ("in.csv", b'customer,at_ms,cents\na,1,1\n"b",2,five\n'),
    ],
)
def test_the_corrected_texts_of_broken_lines_are_appended(folder, tmp_path, name, data) -> None:
    (tmp_path / name).write_bytes(data)
    assert append(folder, "purchases", tmp_path / name, "--app", SHOP).code == 3
    side = tmp_path / f"{name}.rejected.jsonl"
    ended = append(folder, "purchases", side, "--app", SHOP)  # not corrected yet
    assert ended.code == 1
    again = tmp_path / f"{name}.rejected-2.jsonl"
    assert f"1 broken line is written to {again}:" in ended.err
    assert [one["text"] for one in lines_of(again)] == [one["text"] for one in lines_of(side)]
    corrected(again, b'"five"' if name == "in.jsonl" else b"five", b"5")
    ended = append(folder, "purchases", again, "--app", SHOP)
    assert (ended.code, ended.err) == (0, "1 record appended to purchases.\n")
    values = [msgspec.json.decode(record.value, type=Purchase) for _, record in records(folder, "purchases")]
    assert {(one.customer, one.at_ms, one.cents) for one in values} == {("a", 1, 1), ("b", 2, 5)}


def test_a_file_with_broken_lines_of_earlier_runs_is_told(folder, tmp_path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"x\n1\n")
    side = tmp_path / "in.jsonl.rejected.jsonl"
    assert f"is written to {side}:" in append(folder, "raw", tmp_path / "in.jsonl").err
    again = append(folder, "raw", tmp_path / "in.jsonl").err
    assert f"is written to {side}, after those of earlier runs:" in again


def test_a_line_that_only_resembles_a_kept_one_stays_as_it_is(folder) -> None:
    lines = [
        b'{"rejected_from":"a","line":1,"error":"e","text":"1","more":2}',
        b'{"source":"a","line":1,"error":"e","text":"1"}',
    ]
    append(folder, "raw", stdin=b"\n".join(lines))
    assert {record.value for _, record in records(folder, "raw")} == set(lines)


def test_broken_lines_are_not_kept_in_a_file_that_is_read(folder, tmp_path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"x\n")
    ended = append(folder, "raw", tmp_path / "in.jsonl", "--rejects", tmp_path / "in.jsonl")
    assert ended.code == 2
    assert "is one of the files to read" in ended.err


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_header_with_another_separator_is_refused(folder, separator) -> None:
    rows = f"customer{separator}at_ms\na{separator}1\n".encode()
    ended = append(folder, "raw", "--format", "csv", stdin=rows)
    assert ended.code == 1
    assert f"is one column with {separator!r} in it" in ended.err
    assert "the separator must be a comma" in ended.err


@pytest.mark.parametrize(("name", "told"), [("gen.py", True), ("in.jsonl", False), ("in", False)])
def test_a_suffix_that_names_no_format_is_told(folder, tmp_path, name, told) -> None:
    (tmp_path / name).write_bytes(b"1\n")
    ended = append(folder, "raw", tmp_path / name)
    assert ended.code == 0
    said = f"{tmp_path / name} is read as JSON lines, as its suffix names no format; --format names another"
    assert (said in ended.err) == told
    assert said not in append(folder, "raw", tmp_path / name, "--format", "jsonl").err


def test_a_topic_and_a_file_in_the_wrong_order_are_told(folder, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more.jsonl").write_bytes(b"1\n")
    ended = run("log", "append", "more.jsonl", "raw", "--log", folder)
    assert ended.code == 2
    assert "The topic comes first: did you mean raw more.jsonl?" in ended.err
    assert "comes first" not in run("log", "append", "raw", "nowhere.jsonl", "--log", folder).err
