from __future__ import annotations

import pytest

from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.opening import Past, open_past
from tests.cli.commands import done, run


@pytest.fixture
def folder(tmp_path):
    done("log", "create", "things", "--partitions", 2, "--log", tmp_path / "log")
    fill(tmp_path, 100)
    return tmp_path


def fill(folder, count):
    log = EmbeddedLog(folder / "log")
    log.append_all([Output("things", b"%d" % number, b"value", number) for number in range(count)])
    log.close()


def test_a_log_is_archived_and_what_is_new_is_added(folder):
    first = done("archive", "--log", folder / "log", "--to", folder / "archive")
    assert first.out == "archived 100 records of 1 topic in 2 chunks\n"
    fill(folder, 7)
    again = done("archive", "--log", folder / "log", "--to", folder / "archive", "--json")
    assert again.lines == [{"topics": 1, "records": 7, "chunks": 2}]
    alone = open_past(Past(archive=str(folder / "archive")))
    assert sum(1 for number in range(2) for _ in scan(alone, "things", number)) == 107


def test_what_was_deleted_before_it_was_archived_is_told(folder):
    done("archive", "--log", folder / "log", "--to", folder / "archive")
    log = EmbeddedLog(folder / "log")
    fill(folder, 50)
    ends = [log.end_offset("things", number) for number in range(2)]
    log.delete_before("things", 0, ends[0])
    log.close()
    failed = run("archive", "--log", folder / "log", "--to", folder / "archive")
    assert failed.code == 1
    assert "Begin another archive in another folder" in failed.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--log", "LOG"], 2, "--to"),
        (["--log", "LOG", "--to", "ARCHIVE", "--topic", "thing"], 1, "thing"),
        (["--log", "LOG", "--to", ""], 2, "--to: it is empty"),
        (["--log", "LOG/none", "--to", "ARCHIVE"], 1, "there is no log"),
        (["--log", "LOG", "--to", "LOG"], 2, "in the log's folder"),
        (["--log", "LOG", "--to", "nothing://here"], 1, "nothing://here"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(folder, arguments, code, said):
    places = {"LOG": folder / "log", "ARCHIVE": folder / "archive", "LOG/none": folder / "none"}
    ended = run("archive", *(places.get(one, one) for one in arguments))
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err
    assert ended.err.count("\n") == 1
