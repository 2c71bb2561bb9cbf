"""What may happen between any two steps of a process: a cleaning, a repair, a refusal of the system. Nothing goes unseen."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace.core.errors import (
    CommitUnknownError,
    CorruptLogError,
    FencedError,
    LogUnavailableError,
    OffsetGoneError,
)
from tailrace.core.records import InputRecord, Output
from tailrace.log import Publication, TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog, LogOptions
from tailrace.log.embedded import cleaning as cleaning_
from tailrace.log.embedded import log as log_
from tailrace.log.embedded.appending import now_ms
from tailrace.log.embedded.frames import FRAME_HEAD, SegmentName

T0 = TopicPartition("t", 0)
SMALL = LogOptions(segment_bytes=2_000)
DAY_MS = 86_400_000


def filled(folder: Path, settings: TopicSettings, keys: int, records: int = 60) -> EmbeddedLog:
    """A log of several segments, none of which is being written."""
    log = EmbeddedLog(folder, SMALL)
    log.create_topic("t", settings)
    for number in range(records):
        log.append("t", b"%d" % (number % keys), b"%0100d" % number, number * 1_000)
    log.roll()
    return log


def before(monkeypatch: Any, thing: object, name: str, call: Callable[[], object]) -> None:
    """Have something happen right before the next call of a method, once."""
    real = getattr(thing, name)

    def called(*arguments: object) -> object:
        monkeypatch.setattr(thing, name, real)
        call()
        return real(*arguments)

    monkeypatch.setattr(thing, name, called)


def refusal(number: int) -> Callable[[], None]:
    def refuse() -> None:
        raise OSError(number, os.strerror(number))

    return refuse


class TestDeletions:
    """Who has read a record that was deleted later comes by the deletion, whatever is cleaned meanwhile."""

    @pytest.fixture
    def a_day_later(self, monkeypatch) -> Callable[[float], None]:
        passed_ms = 0

        def later(days: float) -> None:
            nonlocal passed_ms
            passed_ms += int(days * DAY_MS)

        monkeypatch.setattr(cleaning_, "now_ms", lambda: now_ms() + passed_ms)
        return later

    @staticmethod
    def made(folder: Path) -> EmbeddedLog:
        log = filled(folder, TopicSettings(1, compacted=True), keys=20, records=20)
        for number in range(20):
            log.append("t", b"%d" % number, None, 0)
        for number in range(20):
            log.append("t", b"another %d" % number, b"%0100d" % number, 0)
        log.roll()
        return log

    @staticmethod
    def read_on(reader: Any, found: dict[bytes | None, InputRecord], records: int = 1_000) -> None:
        while some := reader.fetch(*T0, records).records:
            found.update((one.key, one) for one in some)
            if len(found) >= records:
                break

    def test_the_last_reader_of_the_record_comes_by_the_deletion(self, tmp_path, a_day_later) -> None:
        log = self.made(tmp_path)
        a_day_later(2)  # both are older than deletions are kept, and nothing was ever cleaned
        reader, found = EmbeddedLog(tmp_path).reader({T0: 0}), dict[bytes | None, InputRecord]()
        self.read_on(reader, found, 20)
        assert all(found[b"%d" % number].value is not None for number in range(20))
        done = log.clean(least_gain=0)
        assert done.bytes_after < done.bytes_before
        a_day_later(0.9)
        log.clean(least_gain=0)
        self.read_on(reader, found)
        assert all(found[b"%d" % number].value is None for number in range(20))

    def test_a_day_after_what_it_deletes_is_gone_it_goes_itself(self, tmp_path, a_day_later) -> None:
        log = self.made(tmp_path)
        a_day_later(2)
        for _ in range(3):
            log.clean(least_gain=0)
        found: dict[bytes | None, InputRecord] = {}
        self.read_on(EmbeddedLog(tmp_path).reader({T0: 0}), found)
        assert len(found) == 40, "not before"
        a_day_later(1.1)
        log.clean(least_gain=0)
        found.clear()
        self.read_on(EmbeddedLog(tmp_path).reader({T0: 0}), found)
        assert found.keys() == {b"another %d" % number for number in range(20)}
        assert all(one.value is not None for one in found.values())

    def test_with_a_cleaning_every_hour_they_go_as_well(self, tmp_path, a_day_later) -> None:
        log = self.made(tmp_path)
        a_day_later(2)
        for hour in range(60):
            log.append("t", b"yet another", b"%d" % hour, 0)
            log.append("t", b"of this hour %d" % hour, None, 0)
            log.roll()
            log.clean(least_gain=0)
            a_day_later(1 / 24)
        found: dict[bytes | None, InputRecord] = {}
        self.read_on(EmbeddedLog(tmp_path).reader({T0: 0}), found)
        kept = {one.key for one in found.values() if one.value is None}
        assert not kept & {b"%d" % number for number in range(20)}
        assert {b"of this hour %d" % hour for hour in range(36, 60)} <= kept, "a day each at least"

    def test_a_clock_that_is_set_back_only_puts_it_off(self, tmp_path, a_day_later) -> None:
        log = self.made(tmp_path)
        a_day_later(30)
        log.clean(least_gain=0)
        a_day_later(-25)
        log.clean(least_gain=0)
        a_day_later(1.1)
        log.clean(least_gain=0)
        found: dict[bytes | None, InputRecord] = {}
        self.read_on(EmbeddedLog(tmp_path).reader({T0: 0}), found)
        assert all(one.value is not None for one in found.values())


class TestRetention:
    def test_what_is_deleted_while_it_is_about_to_be_read_is_missed_by_nobody_in_silence(
        self, tmp_path, monkeypatch
    ) -> None:
        log = filled(tmp_path, TopicSettings(1, retention_ms=1_000), keys=1)
        for at_ms in (40_000, 1_000_000):  # a part of it goes, and all
            other = EmbeddedLog(tmp_path)
            start = log.start_offset("t", 0)
            reader = other.reader({T0: start})
            before(monkeypatch, other._view, "records_at", partial(log.clean, now_ms=at_ms))
            with pytest.raises(OffsetGoneError) as raised:
                reader.fetch("t", 0, 10)
            assert raised.value.offset == start
            other.close()

    def test_what_was_read_before_is_given_first(self, tmp_path, monkeypatch) -> None:
        log = filled(tmp_path, TopicSettings(1, retention_ms=1_000), keys=1)
        other = EmbeddedLog(tmp_path)
        reader = other.reader({T0: 0})
        read = other._view.records_at

        def read_the_first(*arguments: Any) -> list[InputRecord]:
            monkeypatch.setattr(other._view, "records_at", read)
            found = read(*arguments)
            other._files.close()  # or it would go on reading the file that is gone
            log.clean(now_ms=1_000_000)
            return found

        monkeypatch.setattr(other._view, "records_at", read_the_first)
        fetched = reader.fetch("t", 0, 10)
        assert [one.offset for one in fetched.records] == [0]
        assert (fetched.next_offset, fetched.idle) == (1, False)
        with pytest.raises(OffsetGoneError):
            reader.fetch("t", 0, 10)

    def test_what_was_published_in_a_segment_that_is_gone_is_still_said(self, tmp_path) -> None:
        log = EmbeddedLog(tmp_path)
        log.create_topic("t", TopicSettings(1, retention_ms=1_000))
        writer = log.writer("w")
        writer.append([Output("t", b"k", b"1", 0)])
        writer.commit(None, "", {"t": 5})
        reader = log.reader({T0: 0})
        reader.fetch("t", 0, 10)
        assert reader.published("t", 0) == [Publication("w", 5)]
        log.roll()
        log.append("t", b"k", b"2", 0)
        writer.commit(None, "", {"t": None})
        log.roll()
        assert reader.fetch("t", 0, 10).idle
        assert log.clean(now_ms=1_000_000).segments_deleted == 2
        assert reader.fetch("t", 0, 10).idle
        assert reader.published("t", 0) == [Publication("w", None)]
        assert reader.published("t", 0) == []
        late = log.reader({T0: 2})
        assert late.fetch("t", 0, 10).idle
        assert late.published("t", 0) == [Publication("w", 5), Publication("w", None)]


class TestCleaned:
    def test_nobody_who_follows_keeps_the_room_of_what_was_cleaned(self, tmp_path) -> None:
        log = filled(tmp_path, TopicSettings(1, compacted=True), keys=3)
        other = EmbeddedLog(tmp_path)
        reader = other.reader({T0: 0})
        while reader.fetch("t", 0, 7).records:
            pass

        def held() -> list[str]:
            found: list[str] = []
            for entry in Path("/proc/self/fd").iterdir():
                with suppress(FileNotFoundError):  # another thread has closed it meanwhile
                    found.append(str(entry.readlink()))
            return [path for path in found if path.startswith(str(tmp_path)) and path.endswith("(deleted)")]

        log.clean()
        assert held(), "the other has not heard of it yet"
        other.end_offset("t", 0)
        assert not held()
        for one in (log, other):
            one.verify()
            one.close()

    def test_a_refusal_to_open_what_took_the_place_of_a_segment_is_made_good(
        self, tmp_path, monkeypatch
    ) -> None:
        log = filled(tmp_path, TopicSettings(1, compacted=True), keys=3)
        other = EmbeddedLog(tmp_path)
        log.clean()
        before(monkeypatch, other._view, "index_of", refusal(errno.EMFILE))
        with pytest.raises(LogUnavailableError, match="too many open files"):
            other.end_offset("t", 0)
        found = other.reader({T0: 0}).fetch("t", 0, 100).records
        assert [one.offset for one in found] == [57, 58, 59]
        other.verify()

    def test_a_log_can_be_verified_while_it_is_cleaned(self, tmp_path, monkeypatch) -> None:
        log = filled(tmp_path, TopicSettings(1, compacted=True), keys=3)
        other = EmbeddedLog(tmp_path)
        before(monkeypatch, log_, "check_whole", log.clean)
        other.verify()


class TestBehind:
    """Who has not looked for a while, in which segments were ended and cleaned, goes on where the log is."""

    @pytest.fixture
    def logs(self, tmp_path) -> tuple[EmbeddedLog, EmbeddedLog]:
        """One at work, and one that looks again when it has gone on by several segments."""
        log = EmbeddedLog(tmp_path, SMALL)
        log.create_topic("t", TopicSettings(1))
        log.create_topic("c", TopicSettings(1, compacted=True))
        return log, EmbeddedLog(tmp_path, SMALL)

    @staticmethod
    def go_on(log: EmbeddedLog) -> None:
        for number in range(60):
            log.append("c", b"%d" % (number % 3), b"%0100d" % number, 0)
        log.append("t", b"k", b"theirs", 0)
        log.roll()
        done = log.clean()
        assert done.segments_rewritten + done.segments_deleted > 2

    def test_what_it_appends_is_in_the_log(self, logs, tmp_path) -> None:
        log, idle = logs
        for turn in range(3):
            self.go_on(log)
            assert idle.append("t", b"k", b"ours", 0) == 2 * turn + 1
        for one in (log, idle, EmbeddedLog(tmp_path)):
            found = one.reader({T0: 0}).fetch("t", 0, 10).records
            assert [record.value for record in found] == 3 * [b"theirs", b"ours"]
            assert one.end_offset("c", 0) == 180
            one.verify()

    def test_it_reads_on_where_it_was(self, logs) -> None:
        log, idle = logs
        place = TopicPartition("c", 0)
        log.append("c", b"0", b"first", 0)
        reader = idle.reader({place: 0})
        assert [one.offset for one in reader.fetch(*place, 10).records] == [0]
        writer = log.writer("w")
        writer.commit(None, "", {"c": 5})
        self.go_on(log)
        writer.commit(None, "", {"c": 7})
        assert [one.offset for one in reader.fetch(*place, 100).records] == [58, 59, 60]
        assert reader.fetch(*place, 100).idle
        assert reader.published(*place) == [Publication("w", 7)]
        assert reader.published(*place) == []

    def test_it_is_fenced_by_who_has_taken_its_id_over(self, logs) -> None:
        log, idle = logs
        zombie = idle.writer("w")
        zombie.append([Output("t", b"k", b"of a zombie", 0)])
        self.go_on(log)
        log.writer("w")
        with pytest.raises(FencedError):
            zombie.commit()

    def test_it_may_have_closed_what_it_stood_in(self, logs) -> None:
        log, idle = logs
        idle.end_offset("t", 0)
        idle.close()
        self.go_on(log)
        assert idle.end_offset("t", 0) == 1
        idle.close()
        log._files.path(log._view.active).unlink()
        with pytest.raises(LogUnavailableError):
            idle.end_offset("t", 0)

    def test_one_that_keeps_being_overtaken_still_sees_all(self, logs, monkeypatch) -> None:
        log, idle = logs
        self.go_on(log)
        before(monkeypatch, idle._files, "names", partial(self.go_on, log))
        assert idle.end_offset("t", 0) == 2
        idle.verify()


def test_a_commit_that_was_written_and_cannot_be_read_back_is_in_doubt_and_not_undone(
    tmp_path, monkeypatch
) -> None:
    log = filled(tmp_path, TopicSettings(1), keys=1, records=1)
    writer = log.writer("w")
    writer.append([Output("t", b"k", b"1", 0)])
    write = log._files.write

    def then_refused(*arguments: Any) -> None:
        write(*arguments)
        before(monkeypatch, log._files, "size", refusal(errno.EIO))

    monkeypatch.setattr(log._files, "write", then_refused)
    with pytest.raises(CommitUnknownError):
        writer.commit()
    monkeypatch.setattr(log._files, "write", write)
    assert log.end_offset("t", 0) == 2
    log.writer("w").commit()


class TestRepair:
    def test_who_reads_what_is_just_being_repaired_reads_on_when_it_is(self, tmp_path, monkeypatch) -> None:
        """A reader between its calls: the rest of a dead writer's commit, its end, half of another's, all of that."""
        made = EmbeddedLog(tmp_path / "made")
        made.create_topic("t", TopicSettings(1))
        shutil.copytree(tmp_path / "made", tmp_path / "log")
        path = tmp_path / "log" / SegmentName(1).file
        whole = path.stat().st_size
        made.writer("a long name " + "x" * 300)
        frame = (tmp_path / "made" / SegmentName(1).file).read_bytes()[whole:]
        follower = EmbeddedLog(tmp_path / "log")
        with path.open("ab") as file:
            file.write(os.urandom(FRAME_HEAD.size) + bytes(2 * len(frame)))  # what a dead writer has left

        def half() -> None:
            with path.open("r+b") as file:
                file.truncate(whole)
                file.seek(whole)
                file.write(frame[: FRAME_HEAD.size + 100])
            # What comes next is to read the meta, in vain, and then to ask whether the frame is whole by now.
            before(monkeypatch, follower._files, "size", rest)

        def rest() -> None:
            with path.open("r+b") as file:
                file.seek(whole)
                file.write(frame)

        before(monkeypatch, follower._files, "read", half)
        assert follower.topics().keys() == {"t"}
        assert any(one.startswith("a long name") for one in follower._view.catalog.epochs)

    def test_damage_is_still_an_error(self, tmp_path) -> None:
        log = EmbeddedLog(tmp_path)
        log.create_topic("t", TopicSettings(1))
        with (tmp_path / SegmentName(1).file).open("ab") as file:
            file.write(os.urandom(200))
        with pytest.raises(CorruptLogError):
            log.end_offset("t", 0)
