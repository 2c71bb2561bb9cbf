"""``tailrace log copy``, and what reads a damaged log."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.database import DATABASE
from tests.cli.commands import done, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log = EmbeddedLog(tmp_path / "log")
    log.create_topic("t", TopicSettings(1))
    for number in range(5):
        log.append_all([Output("t", b"k", b"%d" % number, number)])
    log.close()
    return tmp_path / "log"


def harm(folder: Path) -> None:
    connection = apsw.Connection(str(folder / DATABASE))
    connection.execute("DELETE FROM blocks WHERE id = 2")
    connection.close()


def test_damage_is_found_with_its_place_and_what_to_do_and_is_never_read_past(folder) -> None:
    harm(folder)
    for command in (("copy", folder / "copied"), ("dump", "t"), ("tail", "t", "--json", "--no-follow")):
        ended = run("log", *command, "--log", folder)
        assert ended.code == 1
        assert "'t' partition 0 from offset 2 on" in ended.err
        assert "load the data into a new log" in ended.err
        assert not ended.out


def test_a_copy_reads_the_same_also_where_nothing_may_be_written(folder, tmp_path) -> None:
    said = done("log", "copy", tmp_path / "copy", "--log", folder).out
    assert said == f"Copied to {tmp_path / 'copy'}, as of commit 6.\n"
    (as_json,) = done("log", "copy", "--json", tmp_path / "other", "--log", folder).lines
    assert as_json == {"folder": str(tmp_path / "other"), "commits": 6}
    assert [path.name for path in (tmp_path / "copy").iterdir()] == [DATABASE]
    first, second = (done("log", "dump", "t", "--log", one).out for one in (folder, tmp_path / "copy"))
    assert first == second
    assert "not empty" in run("log", "copy", tmp_path / "copy", "--log", folder).err
    assert "own folder" in run("log", "copy", folder / "copy", "--log", folder).err
