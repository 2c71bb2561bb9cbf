"""What may happen between any two steps of a process: a cleaning, a refusal of the system. Nothing goes unseen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import apsw
import pytest

from tailrace.core.errors import CommitUnknownError, LogUnavailableError, OffsetGoneError
from tailrace.core.records import InputRecord, Output
from tailrace.log import Publication, TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.database import WAL
from tests.log.embedded.inside import before, failing_commits

T0 = TopicPartition("t", 0)
DAY_MS = 86_400_000


def filled(folder: Path, settings: TopicSettings, keys: int, records: int = 60) -> EmbeddedLog:
    """A log of several blocks."""
    log = EmbeddedLog(folder)
    log.create_topic("t", settings)
    for number in range(records):
        log.append("t", b"%d" % (number % keys), b"%0100d" % number, number * 1_000)
    return log


class TestDeletions:
    """Who has read a record that was deleted later comes by the deletion, whatever is cleaned meanwhile."""

    @staticmethod
    def made(folder: Path) -> EmbeddedLog:
        log = filled(folder, TopicSettings(1, compacted=True), keys=20, records=20)
        for number in range(20):
            log.append("t", b"%d" % number, None, 0)
        for number in range(20):
            log.append("t", b"another %d" % number, b"%0100d" % number, 0)
        return log

    @staticmethod
    def read_on(reader: Any, found: dict[bytes | None, InputRecord], records: int = 1_000) -> None:
        while some := reader.fetch(*T0, records).records:
            found.update((one.key, one) for one in some)
            if len(found) >= records:
                break

    def test_the_last_reader_of_the_record_comes_by_the_deletion(self, tmp_path) -> None:
        log, now_ms = (
            self.made(tmp_path),
            2 * DAY_MS,
        )  # both are older than deletions are kept, and nothing was ever cleaned
        reader, found = EmbeddedLog(tmp_path).reader({T0: 0}), dict[bytes | None, InputRecord]()
        self.read_on(reader, found, 20)
        assert all(found[b"%d" % number].value is not None for number in range(20))
        done = log.clean(now_ms=now_ms)
        assert done.bytes_after < done.bytes_before
        log.clean(now_ms=now_ms + int(0.9 * DAY_MS))
        self.read_on(reader, found)
        assert all(found[b"%d" % number].value is None for number in range(20))

    def test_a_day_after_what_it_deletes_is_gone_it_goes_itself(self, tmp_path) -> None:
        log = self.made(tmp_path)
        for _ in range(3):
            log.clean(now_ms=2 * DAY_MS)
        found: dict[bytes | None, InputRecord] = {}
        self.read_on(EmbeddedLog(tmp_path).reader({T0: 0}), found)
        assert len(found) == 40, "not before"
        log.clean(now_ms=int(3.1 * DAY_MS))
        found.clear()
        self.read_on(EmbeddedLog(tmp_path).reader({T0: 0}), found)
        assert found.keys() == {b"another %d" % number for number in range(20)}
        assert all(one.value is not None for one in found.values())

    def test_with_a_cleaning_every_hour_they_go_as_well(self, tmp_path) -> None:
        log = self.made(tmp_path)
        for hour in range(60):
            log.append("t", b"yet another", b"%d" % hour, 0)
            log.append("t", b"of this hour %d" % hour, None, 0)
            log.clean(now_ms=2 * DAY_MS + hour * DAY_MS // 24)
        found: dict[bytes | None, InputRecord] = {}
        self.read_on(EmbeddedLog(tmp_path).reader({T0: 0}), found)
        kept = {one.key for one in found.values() if one.value is None}
        assert not kept & {b"%d" % number for number in range(20)}
        assert {b"of this hour %d" % hour for hour in range(36, 60)} <= kept, "a day each at least"

    def test_a_clock_that_is_set_back_only_puts_it_off(self, tmp_path) -> None:
        log = self.made(tmp_path)
        for days in (30, 5, 6.1):
            log.clean(now_ms=int(days * DAY_MS))
        found: dict[bytes | None, InputRecord] = {}
        self.read_on(EmbeddedLog(tmp_path).reader({T0: 0}), found)
        assert all(one.value is not None for one in found.values())


class TestRetention:
    def test_what_is_deleted_before_it_is_read_is_missed_by_nobody_in_silence(self, tmp_path) -> None:
        log = filled(tmp_path, TopicSettings(1, retention_ms=1_000), keys=1)
        for at_ms in (40_000, 1_000_000):  # a part of it goes, and all
            other = EmbeddedLog(tmp_path)
            start = log.start_offset("t", 0)
            reader = other.reader({T0: start})
            assert reader.wait(0)
            log.clean(now_ms=at_ms)
            with pytest.raises(OffsetGoneError) as raised:
                reader.fetch("t", 0, 10)
            assert raised.value.offset == start
            other.close()

    def test_a_fetch_sees_the_log_as_of_one_moment(self, tmp_path) -> None:
        """What is deleted between two blocks of one fetch is still read by it, and missed by the next."""
        log = filled(tmp_path, TopicSettings(1, retention_ms=1_000), keys=1)
        reader = EmbeddedLog(tmp_path).reader({T0: 0})
        reads = 0

        def clean() -> None:
            nonlocal reads
            reads += 1
            if reads == 2:
                log.clean(now_ms=1_000_000)

        with before("data FROM blocks", clean):
            fetched = reader.fetch("t", 0, 10)
        assert reads > 2
        assert [one.offset for one in fetched.records] == [*range(10)]
        assert (fetched.next_offset, fetched.idle) == (10, False)
        with pytest.raises(OffsetGoneError):
            reader.fetch("t", 0, 10)

    def test_what_was_published_with_records_that_are_gone_is_still_said(self, tmp_path) -> None:
        log = EmbeddedLog(tmp_path)
        log.create_topic("t", TopicSettings(1, retention_ms=1_000))
        writer = log.writer("w")
        writer.append([Output("t", b"k", b"1", 0)])
        writer.commit(None, "", {"t": 5})
        reader = log.reader({T0: 0})
        reader.fetch("t", 0, 10)
        assert reader.published("t", 0) == [Publication("w", 5)]
        log.append("t", b"k", b"2", 0)
        writer.commit(None, "", {"t": None})
        assert reader.fetch("t", 0, 10).idle
        assert log.clean(now_ms=1_000_000).blocks_deleted == 2
        assert reader.fetch("t", 0, 10).idle
        assert reader.published("t", 0) == [Publication("w", None)]
        assert reader.published("t", 0) == []
        late = log.reader({T0: 2})
        assert late.fetch("t", 0, 10).idle
        assert late.published("t", 0) == [Publication("w", 5), Publication("w", None)]


def test_a_log_can_be_verified_while_it_is_cleaned(tmp_path) -> None:
    log = filled(tmp_path, TopicSettings(1, compacted=True), keys=3)
    with before("PRAGMA integrity_check", log.clean):
        EmbeddedLog(tmp_path).verify()


class TestCommit:
    @pytest.mark.parametrize("code", [apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR])
    @pytest.mark.parametrize("done", [True, False])
    def test_after_a_commit_that_may_count_the_outcome_is_in_doubt_and_a_take_over_settles_it(
        self, tmp_path, code, done
    ) -> None:
        log = filled(tmp_path, TopicSettings(1), keys=1, records=1)
        writer = log.writer("w")
        writer.append([Output("t", b"k", b"1", 0)])
        with failing_commits(code, written=done), pytest.raises(CommitUnknownError):
            writer.commit()
        with pytest.raises(CommitUnknownError):
            writer.append([])
        log.writer("w").commit()
        assert log.end_offset("t", 0) == EmbeddedLog(tmp_path).end_offset("t", 0) == (2 if done else 1)
        log.append("t", b"k", b"2", 0)
        log.verify()

    @pytest.mark.parametrize(
        ("code", "said"),
        [
            (apsw.SQLITE_FULL, "the disk is full"),
            (apsw.SQLITE_IOERR_WRITE, "the disk fails"),
            (apsw.SQLITE_READONLY, "may only be read"),
            (apsw.SQLITE_CANTOPEN, "cannot be opened"),
            (apsw.SQLITE_BUSY, "another program holds"),
            (apsw.SQLITE_PROTOCOL, "keep the log's file busy"),
            (apsw.SQLITE_NOMEM, "not enough memory"),
        ],
    )
    def test_any_other_refusal_is_an_outage_and_nothing_is_committed(self, tmp_path, code, said) -> None:
        log = filled(tmp_path, TopicSettings(1), keys=1, records=1)
        writer = log.writer("w")
        writer.append([Output("t", b"k", b"1", 0)])
        with failing_commits(code, written=False), pytest.raises(LogUnavailableError, match=said):
            writer.commit()
        assert log.end_offset("t", 0) == 1
        writer.commit()
        assert log.end_offset("t", 0) == 2
        log.verify()


def test_the_wal_does_not_grow_while_others_read_and_follow(tmp_path) -> None:
    log, other = EmbeddedLog(tmp_path), EmbeddedLog(tmp_path)
    log.create_topic("t", TopicSettings(1))
    reader = other.reader({T0: 0})
    for number in range(100):
        log.append("t", b"k", os.urandom(900_000), 0)
        assert len(reader.fetch("t", 0, 10).records) == 1, number
    assert (tmp_path / WAL).stat().st_size < 70 << 20


@pytest.mark.parametrize("closed", [False, True])
def test_a_child_can_open_a_log_that_was_closed_before_the_fork_and_no_other(tmp_path, closed) -> None:
    log = filled(tmp_path, TopicSettings(1), keys=1, records=1)
    if closed:
        log.close()
    child = os.fork()
    if not child:
        found = 0
        for use in (
            lambda: log.append("t", b"k", b"v", 0),
            lambda: EmbeddedLog(tmp_path),
            lambda: log.end_offset("t", 0),
        ):
            try:
                use()
            except LogUnavailableError as error:
                found += "forked" in str(error)
        os._exit(found)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (0 if closed else 3)
    assert EmbeddedLog(tmp_path).end_offset("t", 0) == (2 if closed else 1)
