"""What a power loss takes is named, and what was synced is not taken for it; a failed sync is never trusted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tailrace.core.errors import CorruptLogError, LogUnavailableError
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.database import WAL
from tailrace.log.options import LogOptions
from tests.log.embedded.damaged import cut_off, made, read, whole
from tests.log.embedded.inside import another_boot, note
from tests.runtime.processes import wait_until


class TestAfterAPowerLoss:
    """The machine was down since the last commit: the end of the WAL may be lost, and that is said."""

    def test_the_log_ends_with_a_whole_commit_and_says_what_is_lost(self, tmp_path, caplog) -> None:
        cut_off(made(tmp_path / "made", fsync_interval_s=1_000), tmp_path / "cut")
        another_boot(tmp_path / "cut")
        log = EmbeddedLog(tmp_path / "cut")
        assert read(log) == whole(1)
        assert not caplog.records, "a reader says nothing"
        log.append("a", b"k", b"after", 0)
        assert "a power loss has taken the last 1 commits" in caplog.text
        log.append("a", b"k", b"after", 0)
        assert len(caplog.records) == 1
        assert log.end_offset("a", 0) == 3
        log.verify()
        assert len(caplog.records) == 1

    def test_what_was_promised_is_missed(self, tmp_path) -> None:
        made(tmp_path, fsync="commit").close()
        wal = (tmp_path / WAL).read_bytes()
        (tmp_path / WAL).write_bytes(wal[:-10])
        another_boot(tmp_path)
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
        another_boot(tmp_path / "cut")
        with pytest.raises(CorruptLogError, match="the last 1 commits are missing"):
            EmbeddedLog(tmp_path / "cut")


class TestSyncs:
    """A failed sync proves that bytes are lost, and a later sync that succeeds does not prove the contrary."""

    def fails(self, monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> Callable[[], int]:
        left = times

        def fail(descriptor: int) -> None:
            nonlocal left
            if left > 0:
                left -= 1
                raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, name, fail)
        return lambda: left

    def test_after_a_failed_sync_the_wal_is_written_again_before_it_is_synced_again(
        self, tmp_path, monkeypatch
    ) -> None:
        log, wal = made(tmp_path), tmp_path / WAL
        before, written_ns = wal.read_bytes(), wal.stat().st_mtime_ns
        left = self.fails(monkeypatch, "fdatasync", 1)
        log.sync()
        assert left() == 0
        assert wal.stat().st_mtime_ns > written_ns
        assert wal.read_bytes() == before

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

    def test_a_sync_of_the_interval_that_fails_stops_the_log_until_one_succeeds(
        self, tmp_path, monkeypatch
    ) -> None:
        log = made(tmp_path, fsync_interval_s=0.01)
        with monkeypatch.context() as patch:
            self.fails(patch, "fdatasync", 1_000_000)
            log.append("a", b"k", b"v", 0)
            wait_until(lambda: note(log.path).in_doubt, "the sync has failed")
            with pytest.raises(LogUnavailableError, match="the disk fails"):
                log.append("a", b"k", b"v", 0)
        log.append("a", b"k", b"v", 0)
        assert log.end_offset("a", 0) == 4
        log.close()

    def test_while_it_fails_no_process_commits(self, tmp_path, monkeypatch) -> None:
        log, other = made(tmp_path), EmbeddedLog(tmp_path, LogOptions(fsync="commit"))
        with monkeypatch.context() as patch:
            self.fails(patch, "fdatasync", 100)
            with pytest.raises(LogUnavailableError, match="the disk fails"):
                log.sync()
            for one in (log, other):
                with pytest.raises(LogUnavailableError, match="the disk fails"):
                    one.append("a", b"k", b"v", 0)
        for one in (other, log):
            one.append("a", b"k", b"v", 0)
        assert log.end_offset("a", 0) == 4
        assert not note(log.path).in_doubt


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
