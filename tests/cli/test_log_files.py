"""``tailrace log verify``, ``repair``, ``copy`` and ``upgrade``."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.database import DATABASE
from tests.cli.commands import done, run

OLD_LOG = Path(__file__).parents[1] / "log" / "embedded" / "data" / "old-log"


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


def test_an_intact_log_is_verified_and_not_repaired(folder) -> None:
    assert "The log is intact: 1 topic." in done("log", "verify", "--log", folder).out
    assert "nothing was changed" in done("log", "repair", "--log", folder).out
    (said,) = done("log", "repair", "--json", "--log", folder).lines
    assert said == {"kept": None, "lost": []}


def test_damage_is_found_with_what_to_do_and_a_repair_lists_what_is_lost(folder) -> None:
    harm(folder)
    ended = run("log", "verify", "--log", folder)
    assert ended.code == 1
    assert "tailrace log repair" in ended.err
    repaired = run("log", "repair", "--log", folder)
    assert repaired.code == 3
    said = repaired.out
    assert "  't' partition 0: offsets 2 to 2, up to 1 records\n" in said
    assert f"The damaged files are in {folder / 'damaged-1'}." in said
    assert done("log", "verify", "--log", folder).code == 0
    for command in (("dump", "t"), ("tail", "t", "--json", "--no-follow")):
        shown = done("log", *command, "--log", folder)
        assert [one["offset"] for one in shown.lines] == [0, 1, 3, 4]
        assert "'t' partition 0: the records at offsets 2 to 2 were damaged" in shown.err
    (verified,) = done("log", "verify", "--json", "--log", folder).lines
    assert verified == {"topics": 1, "lost": ["'t' partition 0: offsets 2 to 2, up to 1 records"]}


def test_many_findings_are_one_line(folder) -> None:
    log = EmbeddedLog(folder)
    for number in range(200):
        log.append_all([Output("t", b"k", bytes(9_000), number)])
    log._appender.checkpoint()
    log.close()
    path = folder / DATABASE
    data = bytearray(path.read_bytes())
    for page in range(20, len(data) // 16384, 3):
        data[page * 16384 : page * 16384 + 64] = bytes(64)
    path.write_bytes(data)
    ended = run("log", "verify", "--log", folder)
    assert ended.code == 1
    assert len(ended.err.splitlines()) == 1
    assert "the file is damaged: " in ended.err
    assert ", and at least 9 more findings" in ended.err


def test_a_copy_reads_the_same_also_where_nothing_may_be_written(folder, tmp_path) -> None:
    said = done("log", "copy", tmp_path / "copy", "--log", folder).out
    size = (tmp_path / "copy" / DATABASE).stat().st_size
    assert said == f"Copied to {tmp_path / 'copy'}: 1 topic, as of commit 6, {size:,} bytes.\n"
    (as_json,) = done("log", "copy", "--json", tmp_path / "other", "--log", folder).lines
    assert as_json == {"folder": str(tmp_path / "other"), "topics": 1, "commits": 6, "bytes": size}
    assert [path.name for path in (tmp_path / "copy").iterdir()] == [DATABASE]
    first, second = (done("log", "dump", "t", "--log", one).out for one in (folder, tmp_path / "copy"))
    assert first == second
    assert "not empty" in run("log", "copy", tmp_path / "copy", "--log", folder).err
    assert "own folder" in run("log", "copy", folder / "copy", "--log", folder).err


def test_an_old_log_is_upgraded_as_the_message_says(tmp_path) -> None:
    shutil.copytree(OLD_LOG, tmp_path / "log")
    ended = run("log", "list", "--log", tmp_path / "log")
    assert ended.code != 0
    assert "tailrace log upgrade" in ended.err
    said = done("log", "upgrade", "--log", tmp_path / "log").out
    assert "4 topics with " in said
    assert "before-upgrade" in said
    done("log", "verify", "--log", tmp_path / "log")
    for path in (tmp_path / "log" / "before-upgrade").iterdir():
        path.rename(tmp_path / "log" / path.name)
    said = done("log", "upgrade", "--log", tmp_path / "log").out
    assert "Nothing was left to move: the log has the topics and offsets of the old files." in said
    assert "Nothing is to be done" in run("log", "upgrade", "--log", tmp_path / "log").err
