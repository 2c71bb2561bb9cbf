"""A copy is the log as of one moment, in one file, which anyone may read anywhere; a log in use is for one machine."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from tailrace.core.errors import ForeignLogError, LogUnavailableError
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded import copying as copying_
from tailrace.log.embedded.copying import file_system_of
from tailrace.log.embedded.database import DATABASE, WAL

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


def test_the_file_system_of_a_folder_is_found() -> None:
    assert file_system_of(Path("/proc")) == "proc"
    assert file_system_of(Path("/nowhere")) == ""
