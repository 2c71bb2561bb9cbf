"""A copy is the log as of one moment, in one file, which anyone may read anywhere; a log in use is for one machine."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tailrace.core.errors import CorruptLogError, ForeignLogError, LogUnavailableError
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded import copying as copying_
from tailrace.log.embedded.database import DATABASE, WAL
from tests.log.embedded.inside import view

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    log = EmbeddedLog(tmp_path / "log")
    for topic in ("a", "b"):
        log.create_topic(topic, TopicSettings(1))
    return log


def values(log: EmbeddedLog, place: TopicPartition) -> list[bytes | None]:
    return [one.value for one in log.reader({place: 0}).fetch(*place, 100_000).records]


def test_a_copy_that_is_made_while_another_commits_is_of_one_moment(log, tmp_path) -> None:
    other, done = EmbeddedLog(log.path), threading.Event()

    def write() -> None:
        writer = other.writer("w")
        for number in itertools.count():
            if done.is_set():
                return
            writer.append([Output(topic, b"k", b"%d" % number, number) for topic in ("a", "b")])
            writer.commit({A: number}, "g", {"a": number})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(5):
            while log.end_offset("a", 0) < 10 * number:
                pass
            log.copy_to(tmp_path / f"copy-{number}")
    finally:
        done.set()
        thread.join()
    for number in range(5):
        folder = tmp_path / f"copy-{number}"
        assert [path.name for path in folder.iterdir()] == [DATABASE]
        copy = EmbeddedLog(folder)
        copy.verify()
        assert values(copy, A) == values(copy, B) == values(log, A)[: copy.end_offset("a", 0)]
        assert copy.identity == log.identity
        assert copy.end_offset("a", 0) >= 10 * number
        assert not (folder / WAL).exists(), "reading leaves no traces"


def test_a_copy_that_is_written_to_goes_its_own_way(log, tmp_path) -> None:
    log.append("a", b"k", b"both", 0)
    log.copy_to(tmp_path / "copy")
    copy = EmbeddedLog(tmp_path / "copy")
    copy.append("a", b"k", b"copy", 0)
    log.append("a", b"k", b"log", 0)
    assert values(copy, A) == [b"both", b"copy"]
    assert values(log, A) == [b"both", b"log"]
    copy.verify()


@pytest.mark.parametrize("commits_since", [0, 1, 5_000])
def test_a_copy_beside_the_wal_of_the_log_is_refused_and_not_mixed_with_it(
    log, tmp_path, commits_since
) -> None:
    """SQLite would apply the WAL to the copy: the copy would have no effect, or be damaged."""
    log.append("a", b"k", b"first", 0)
    log.copy_to(tmp_path / "copy")
    for number in range(commits_since):
        log.append("b", b"k", b"%d" % number, 0)
    log.close()
    copied = (tmp_path / "copy" / DATABASE).read_bytes()
    (log.path / DATABASE).write_bytes(copied)
    with pytest.raises(ForeignLogError, match="does not belong to") as raised:
        EmbeddedLog(log.path)
    assert "into a new, empty folder" in str(raised.value)
    assert (log.path / DATABASE).read_bytes() == copied
    assert values(EmbeddedLog(tmp_path / "copy"), A) == [b"first"]


def test_a_wal_without_its_database_is_refused_with_how_to_restore_a_copy(log) -> None:
    log.append("a", b"k", b"v", 0)
    log.close()
    (log.path / DATABASE).unlink()
    with pytest.raises(CorruptLogError, match=r"move the folder away\. To restore a copy") as raised:
        EmbeddedLog(log.path)
    assert "into a new, empty folder" in str(raised.value)


def test_a_check_of_the_wal_keeps_the_locks_of_a_log_that_is_open(log) -> None:
    """To close a descriptor of the database releases all locks of the process on it."""
    log.append("a", b"k", b"v", 0)
    with view(log.path).moment():
        before = held_locks()
        assert before
        for _ in range(2):
            EmbeddedLog(log.path).close()
        assert before <= held_locks()


def held_locks() -> set[str]:
    pid = str(os.getpid())
    found = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return {" ".join(one[1:]) for one in found if one[1] == "POSIX" and pid in one}


def test_a_folder_with_something_else_takes_no_copy(log, tmp_path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ForeignLogError, match=r"thesis\.txt"):
        log.copy_to(tmp_path)


def test_a_log_in_use_on_a_network_file_system_is_refused_and_a_copy_there_is_read(
    log, tmp_path, monkeypatch
) -> None:
    log.append("a", b"k", b"v", 0)
    log.copy_to(tmp_path / "copy")
    monkeypatch.setattr(copying_, "file_system_of", lambda _: "nfs4")
    with pytest.raises(LogUnavailableError, match="tailrace log copy"):
        EmbeddedLog(log.path)
    copy = EmbeddedLog(tmp_path / "copy")
    assert values(copy, A) == [b"v"]
    with pytest.raises(LogUnavailableError, match="network file system"):
        copy.append("a", b"k", b"v", 0)


@pytest.mark.parametrize("target", ["log", "log/copy", "log/../log/a/copy"])
def test_a_copy_into_the_log_itself_is_refused(log, tmp_path, target) -> None:
    before = sorted(log.path.rglob("*"))
    with pytest.raises(ForeignLogError, match="in the log's own folder"):
        log.copy_to(tmp_path / target)
    assert sorted(log.path.rglob("*")) == before


def test_a_copy_that_fails_names_its_folder_and_leaves_nothing(log, tmp_path) -> None:
    log.append_all([Output("a", b"k", os.urandom(100_000), 0) for _ in range(10)])
    program = f"""
import resource, signal
from tailrace.core.errors import LogUnavailableError
from tailrace.log.embedded import EmbeddedLog

log = EmbeddedLog({str(log.path)!r})
log.topics()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    log.copy_to({str(tmp_path / "new" / "copy")!r})
except LogUnavailableError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert f"the copy in {str(tmp_path / 'new' / 'copy')!r} cannot be written" in said
    assert "takes commits again" not in said
    assert "not an error" not in said
    assert list((tmp_path / "new" / "copy").iterdir()) == []
