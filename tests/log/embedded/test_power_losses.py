"""What a power loss takes is named, and what was synced is not taken for it; a failed sync is never trusted."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import apsw
import pytest

from tailrace.core.errors import CommitUnknownError, CorruptLogError
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.database import WAL
from tailrace.log.options import LogOptions
from tests.log.embedded.damaged import cut_off, made, read, whole
from tests.log.embedded.inside import appender, failing_checkpoints, failing_commits, note
from tests.runtime.processes import wait_until


class TestAfterAPowerLoss:
    """The machine was down since the last commit: the end of the WAL may be lost, and that is said."""

    def test_the_log_ends_with_a_whole_commit_and_says_what_is_lost(self, tmp_path, caplog) -> None:
        cut_off(made(tmp_path / "made", fsync_interval_s=1_000), tmp_path / "cut")
        log = EmbeddedLog(tmp_path / "cut")
        assert read(log) == whole(1)
        assert not caplog.records, "a reader says nothing"
        log.append("a", b"k", b"after", 0)
        assert "the last 1 commits of the log" in caplog.text
        log.append("a", b"k", b"after", 0)
        assert len(caplog.records) == 1
        assert log.end_offset("a", 0) == 3
        log.verify()
        assert len(caplog.records) == 1

    def test_what_was_promised_is_missed(self, tmp_path) -> None:
        made(tmp_path, fsync="commit").close()
        wal = (tmp_path / WAL).read_bytes()
        (tmp_path / WAL).write_bytes(wal[:-10])
        with pytest.raises(CorruptLogError, match="the last 1 commits are missing"):
            EmbeddedLog(tmp_path)

    @pytest.mark.parametrize("at", ["the close", "the interval"])
    def test_what_was_synced_is_missed(self, tmp_path, at) -> None:
        log = made(tmp_path / "made", fsync_interval_s=1_000 if at == "the close" else 0.01)
        if at == "the close":
            assert note(log.path).synced == 0
            log.close()
        wait_until(lambda: note(log.path).synced == note(log.path).commits, "it is synced")
        cut_off(log, tmp_path / "cut")
        with pytest.raises(CorruptLogError, match="the last 1 commits are missing"):
            EmbeddedLog(tmp_path / "cut")


class TestSyncs:
    """A failed sync proves that bytes are lost, and a later sync that succeeds does not prove the contrary."""

    def test_what_was_committed_is_synced_within_the_interval_and_at_the_close(
        self, tmp_path, monkeypatch
    ) -> None:
        synced = threading.Event()
        monkeypatch.setattr(os, "fdatasync", lambda _: synced.set())
        log = EmbeddedLog(tmp_path, LogOptions(fsync_interval_s=0.01))
        log.create_topic("a", TopicSettings(1))
        assert synced.wait(30)
        log.close()
        slow = EmbeddedLog(tmp_path, LogOptions(fsync_interval_s=1_000))
        synced.clear()
        slow.append("a", b"k", b"v", 0)
        assert not synced.is_set()
        slow.close()
        assert synced.is_set()

    @pytest.mark.parametrize("at", ["the interval", "the close", "a call"])
    def test_after_one_that_fails_nobody_appends_and_a_copy_continues(
        self, tmp_path, monkeypatch, caplog, at
    ) -> None:
        log = made(tmp_path / "log", fsync_interval_s=0.01 if at == "the interval" else 1_000)
        other = EmbeddedLog(log.path, LogOptions(fsync="commit"))
        other.append("b", b"k", b"v", 0, partition=0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            log.append("a", b"k", b"v", 0)
            if at == "the close":
                log.close()
            elif at == "a call":
                with pytest.raises(CorruptLogError, match="a sync of the log has failed"):
                    log.sync()
            wait_until(lambda: note(log.path).sync_failed, "it has failed")
        assert at == "a call" or "a sync of the log has failed" in caplog.text
        for one in (log, other, EmbeddedLog(log.path)):
            with pytest.raises(CorruptLogError, match=r"tailrace log copy"):
                one.append("a", b"k", b"v", 0)
            assert one.end_offset("a", 0) == 3, "it can be read"
        log.copy_to(tmp_path / "copy")
        for one in (log, other):
            one.close()
        copy = EmbeddedLog(tmp_path / "copy")
        assert copy.append("a", b"k", b"v", 0) == 3
        copy.verify()

    @pytest.mark.parametrize("code", [apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC])
    @pytest.mark.parametrize("at", ["COMMIT", "a checkpoint"])
    def test_one_of_sqlite_that_fails_is_none_that_is_tried_again(self, tmp_path, code, at) -> None:
        log = made(tmp_path)
        if at == "COMMIT":
            with failing_commits(code, written=True), pytest.raises(CommitUnknownError):
                log.append("a", b"k", b"v", 0)
        else:
            with closing(appender(tmp_path)) as one, failing_checkpoints(code):
                one.checkpoint()
        assert note(tmp_path).sync_failed
        with pytest.raises(CorruptLogError, match="a sync of the log has failed"):
            log.append("a", b"k", b"v", 0)


def fail(_descriptor: int) -> None:
    raise OSError(5, "Input/output error")


def test_a_log_that_is_named_by_a_relative_path_stays_where_it_is(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = EmbeddedLog("log", LogOptions(fsync_interval_s=1_000))
    log.create_topic("a", TopicSettings(1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    log.append("a", b"k", b"v", 0)
    log.sync()
    assert note(log.path).synced == note(log.path).commits
    log.close()


def test_what_is_committed_while_a_log_is_verified_is_not_missing(tmp_path) -> None:
    log, other, done = made(tmp_path), EmbeddedLog(tmp_path), threading.Event()

    def commit() -> None:
        while not done.is_set():
            other.append("a", b"k", b"v", 0)

    with ThreadPoolExecutor() as pool:
        committing = pool.submit(commit)
        try:
            for _ in range(10):
                log.verify()
        finally:
            done.set()
        committing.result()
