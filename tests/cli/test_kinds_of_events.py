"""The commands, on topics whose events are dataclasses and pydantic models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Ended, done, records, run

KINDS = "tests.cli.kinds:app"
AT = 1_600_000_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    done("topics", "apply", "--app", KINDS, "--log", tmp_path / "log")
    return tmp_path / "log"


def append(folder: Path, topic: str, *arguments: object, stdin: bytes = b"") -> Ended:
    return run("log", "append", topic, "--log", folder, "--app", KINDS, *arguments, stdin=stdin)


def values(folder: Path, topic: str) -> list[bytes]:
    return [record.value for _, record in records(folder, topic)]


def test_lines_become_events_of_their_kind_and_a_service_handles_them(folder: Path) -> None:
    assert append(folder, "visits", stdin=b'{"at":%d,"user":"a"}\n' % AT).code == 0
    assert append(folder, "purchases", stdin=b'{"amount":"5","at":%d,"user":"a"}\n' % AT).code == 0
    assert values(folder, "visits") == [b'{"user":"a","at":%d,"score":0.0}' % AT]
    assert values(folder, "purchases") == [b'{"amount":5,"at":%d,"user":"a"}' % AT]
    state = folder.parent / "state"
    done("run", KINDS, "--log", folder, "--state", state, "--end-of-input", "--after-end")
    done("replay", KINDS, "--log", folder)


def test_a_line_that_the_model_refuses_is_told_with_its_field(folder: Path) -> None:
    ended = append(folder, "purchases", stdin=b'{"amount":-5,"at":1,"user":"a"}\n')
    assert ended.code != 0
    assert "amount: Input should be greater than or equal to 0" in ended.err
    assert values(folder, "purchases") == []


def test_cells_of_a_table_become_dataclasses_and_no_models(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(f"user,at,score\nb,{AT},1.5\n")
    assert append(folder, "visits", table).code == 0
    assert values(folder, "visits") == [b'{"user":"b","at":%d,"score":1.5}' % AT]
    table.write_text(f"user,at,amount\nb,{AT},1\n")
    ended = append(folder, "purchases", table)
    assert ended.code != 0
    assert "Purchase is a pydantic model, which is made from JSON lines only" in ended.err
    assert values(folder, "purchases") == []


def test_a_cell_that_could_be_taken_for_something_else_is_refused(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(f"user,at,score\nb,{AT},nan\n")
    assert append(folder, "visits", table).code != 0
    assert values(folder, "visits") == []


@pytest.mark.parametrize(
    ("topic", "fields", "said"),
    [
        ("visits", b'"scor":1.5', ["the field 'scor' is dropped", "Did you mean 'score'?"]),
        ("purchases", b'"amuont":5', ["the field 'amuont' is dropped", "Did you mean 'amount'?"]),
        ("visits", b'"score":1.5', []),
        ("purchases", b'"amount":5', []),
    ],
)
def test_a_dropped_field_of_a_line_is_named_with_the_field_that_was_meant(
    folder: Path, topic: str, fields: bytes, said: list[str]
) -> None:
    ended = append(folder, topic, stdin=b'{"at":%d,"user":"a",%s}\n' % (AT, fields))
    assert ended.code == 0
    *found, last = ended.err.splitlines()
    assert len(found) == bool(said)
    assert all(one in found[0] for one in said)
    assert last == f"1 record appended to {topic}."
