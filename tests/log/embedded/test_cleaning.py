"""Retention moves the start, compaction keeps the last of each key, and whoever reads meanwhile notices neither."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.core.errors import OffsetGoneError, TopicMismatchError, UnknownTopicError, UsageError
from tailrace.core.records import InputRecord, Output
from tailrace.log import Publication, TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded import cleaning as cleaning_
from tailrace.log.embedded.database import DATABASE
from tailrace.log.embedded.lock import FileLock
from tailrace.log.options import LogOptions
from tests.log.embedded.inside import before, checkpoint

T0 = TopicPartition("t", 0)
DAY_MS = 86_400_000


def everything(log: EmbeddedLog, place: TopicPartition = T0) -> list[InputRecord]:
    reader = log.reader({place: log.start_offset(*place)})
    found: list[InputRecord] = []
    while (fetched := reader.fetch(*place, 7)).records:
        found += fetched.records
    return found


def filled(
    folder: Path, settings: TopicSettings, *, commits: int = 60, keys: int = 5, deleted: Iterable[int] = ()
) -> EmbeddedLog:
    log = EmbeddedLog(folder)
    log.create_topic("t", settings)
    log.create_topic("plain", TopicSettings(1))
    writer = log.writer("w")
    for number in range(commits):
        key = b"%d" % (number % keys)
        value = None if number % 7 == 6 else b"value %d" % number
        writer.append([Output("t", key, value, number * 1_000), Output("plain", key, b"kept", 0)])
        writer.commit(None, "", {"t": number})
    for number in deleted:
        writer.append([Output("t", b"%d" % number, None, commits * 1_000)])
        writer.commit()
    return log


class TestCompaction:
    @pytest.mark.parametrize("deletions_kept_ms", [DAY_MS, -DAY_MS])
    def test_the_last_of_each_key_stays_at_its_offset_and_deletions_for_their_time(
        self, tmp_path, deletions_kept_ms
    ) -> None:
        log = filled(tmp_path, TopicSettings(1, compacted=True))
        before, plain = everything(log), everything(log, TopicPartition("plain", 0))
        other = EmbeddedLog(tmp_path)
        done = log.clean(deletions_kept_ms=deletions_kept_ms)
        assert done.bytes_after < done.bytes_before
        last = {one.key: one for one in before}
        expected = sorted(last.values())
        if deletions_kept_ms < 0:
            expected = [one for one in expected if one.value is not None]
        assert expected
        for reader in (log, other, EmbeddedLog(tmp_path)):
            assert everything(reader) == expected
            assert everything(reader, TopicPartition("plain", 0)) == plain
            assert reader.end_offset("t", 0) == 60
            reader.verify()
        writer = log.writer("w")
        writer.append([Output("t", b"9", b"after", 0)])
        writer.commit()
        assert [one.offset for one in everything(other)] == [*(one.offset for one in expected), 60]

    def test_watermarks_outlive_it(self, tmp_path) -> None:
        log = filled(tmp_path, TopicSettings(1, compacted=True))
        log.clean()
        for one in (log, EmbeddedLog(tmp_path)):
            reader = one.reader({T0: 0})
            reader.fetch("t", 0, 1000)
            assert reader.published("t", 0) == [Publication("w", 59)]

    def test_a_reader_on_its_way_goes_on_where_it_is(self, tmp_path) -> None:
        log = filled(tmp_path, TopicSettings(1, compacted=True))
        other = EmbeddedLog(tmp_path)
        reader = other.reader({T0: 0})
        first = [one.offset for one in reader.fetch("t", 0, 10).records]
        log.clean()
        rest = [one.offset for one in reader.fetch("t", 0, 100).records]
        assert first == list(range(10))
        assert rest == [one.offset for one in everything(log) if one.offset >= 10]

    def test_a_deleted_key_does_not_come_back(self, tmp_path) -> None:
        log = EmbeddedLog(tmp_path)
        log.create_topic("t", TopicSettings(1, compacted=True))
        log.append("t", b"gone", bytes(100), 0)
        for _ in range(20):
            log.append("t", b"other", bytes(500), 0)
        log.append("t", b"gone", None, 0)
        for _ in range(2):
            log.clean(deletions_kept_ms=-DAY_MS)
            last = {one.key: one.value for one in everything(log)}
            assert last.get(b"gone") is None


class TestRetention:
    def test_old_records_go_by_their_own_time_and_their_room_is_given_back(self, tmp_path) -> None:
        log = filled(tmp_path, TopicSettings(1, retention_ms=10_000))
        other = EmbeddedLog(tmp_path)
        log.clean(now_ms=60_000)
        assert log.start_offset("t", 0) == 50
        assert [one.offset for one in everything(log)] == list(range(50, 60))
        assert [one.offset for one in everything(other)] == list(range(50, 60))
        with pytest.raises(OffsetGoneError):
            other.reader({T0: 49}).fetch("t", 0, 1)
        assert len(everything(log, TopicPartition("plain", 0))) == 60
        assert log.offset_at("t", 0, 0) == 50

    def test_by_size_the_oldest_blocks_go_and_the_file_gives_its_pages_back(self, tmp_path) -> None:
        log = EmbeddedLog(tmp_path)
        log.create_topic("t", TopicSettings(1, retention_bytes=300_000))
        for number in range(50):
            log.append("t", None, os.urandom(100_000), number)
        checkpoint(tmp_path)
        before = (tmp_path / DATABASE).stat().st_size
        done = log.clean()
        assert done.blocks_deleted == 48
        assert (tmp_path / DATABASE).stat().st_size < before / 2
        assert [one.offset for one in everything(EmbeddedLog(tmp_path))] == [48, 49]
        log.verify()

    def test_who_opens_a_log_whose_first_records_are_gone_finds_what_was_said_with_them(
        self, tmp_path
    ) -> None:
        log = filled(tmp_path, TopicSettings(1, retention_bytes=100))
        log.create_topic("plain too", TopicSettings(1))
        writer = log.writer("idle")
        writer.commit({T0: 3}, "g", {"t": None})
        log.delete_before("plain", 0, 60)
        log.clean()
        assert log.clean().blocks_deleted == 0
        other = EmbeddedLog(tmp_path)
        assert other.topics() == log.topics()
        assert other.committed_offsets("g", [T0]) == {T0: 3}
        reader = other.reader({T0: 60})
        reader.fetch("t", 0, 1)
        assert set(reader.published("t", 0)) == {Publication("w", 59), Publication("idle", None)}

    def test_deleting_before_an_offset_hides_it_at_once(self, tmp_path) -> None:
        log = filled(tmp_path, TopicSettings(1))
        log.delete_before("t", 0, 57)
        log.delete_before("t", 0, 3)
        assert [one.offset for one in everything(log)] == [57, 58, 59]
        log.delete_before("t", 0, 100)
        assert everything(log) == []
        assert log.start_offset("t", 0) == 60


class TestWhenItIsDue:
    def test_a_small_log_is_not_compacted_by_itself(self, tmp_path) -> None:
        log = filled(tmp_path, TopicSettings(1, compacted=True))
        assert not log.cleaning_is_due()
        assert EmbeddedLog(tmp_path, LogOptions(compaction_bytes=1_000)).cleaning_is_due()

    def test_when_half_as_much_was_added_to_compacted_topics_as_was_looked_through(self, tmp_path) -> None:
        log = EmbeddedLog(tmp_path, LogOptions(compaction_bytes=1))
        log.create_topic("t", TopicSettings(1, compacted=True))
        log.create_topic("plain", TopicSettings(1))

        def add(count: int, topic: str = "t") -> None:
            for number in range(count):
                log.append(topic, b"%d" % number, bytes(500), 0)

        assert not log.cleaning_is_due()
        add(100, "plain")
        assert not log.cleaning_is_due()
        add(100)
        for one in (log, EmbeddedLog(tmp_path, LogOptions(compaction_bytes=1))):
            assert one.cleaning_is_due()
        log.clean()  # nothing in it was written twice
        for one in (log, EmbeddedLog(tmp_path, LogOptions(compaction_bytes=1))):
            assert not one.cleaning_is_due()
        add(40)
        assert not log.cleaning_is_due()
        add(20)
        assert log.cleaning_is_due()
        log.clean()
        assert not log.cleaning_is_due()

    @pytest.mark.parametrize(
        "settings", [TopicSettings(1, retention_ms=10_000), TopicSettings(1, retention_bytes=2_000)]
    )
    def test_when_retention_has_a_share_to_give_back(self, tmp_path, settings) -> None:
        log = EmbeddedLog(tmp_path)
        log.create_topic("t", settings)
        for number in range(20):
            log.append("t", b"k", bytes(300), number * 1_000)
        assert log.cleaning_is_due(now_ms=20_000)
        log.clean(now_ms=20_000)
        assert log.start_offset("t", 0) >= 10
        assert not log.cleaning_is_due(now_ms=20_000)
        if settings.retention_ms:
            assert log.cleaning_is_due(now_ms=40_000)

    def test_when_records_were_deleted_by_hand(self, tmp_path) -> None:
        log = filled(tmp_path, TopicSettings(1))
        assert not log.cleaning_is_due()
        log.delete_before("t", 0, 50)
        log.delete_before("plain", 0, 50)
        assert log.cleaning_is_due()
        log.clean()
        assert not log.cleaning_is_due()


class TestChangedRetention:
    def test_every_process_sees_it_and_nothing_else_of_the_topic_changes(self, tmp_path) -> None:
        log = filled(tmp_path, TopicSettings(1))
        other = EmbeddedLog(tmp_path)
        before = everything(log)
        log.set_retention("t", retention_ms=10_000, retention_bytes=None)
        log.set_retention("t", retention_ms=10_000, retention_bytes=None)
        for one in (log, other, EmbeddedLog(tmp_path)):
            assert one.topics()["t"] == TopicSettings(1, retention_ms=10_000)
            assert everything(one) == before
            assert (one.start_offset("t", 0), one.end_offset("t", 0)) == (0, 60)
        assert EmbeddedLog(tmp_path).topics()["t"] == TopicSettings(1, retention_ms=10_000)
        log.clean(now_ms=60_000)
        assert [one.offset for one in everything(other)] == list(range(50, 60))
        other.set_retention("t", retention_ms=None, retention_bytes=None)
        assert log.topics()["t"] == TopicSettings(1)

    def test_a_compacted_topic_has_none(self, tmp_path) -> None:
        log = filled(tmp_path, TopicSettings(1, compacted=True))
        with pytest.raises(TopicMismatchError, match=r"is compacted.*'t'"):
            log.set_retention("t", retention_ms=1, retention_bytes=None)
        with pytest.raises(UnknownTopicError):
            log.set_retention("nowhere", retention_ms=1, retention_bytes=None)


class TestBlocks:
    def test_a_block_without_records_is_passed_over(self, tmp_path) -> None:
        log = EmbeddedLog(tmp_path)
        log.create_topic("t", TopicSettings(1, compacted=True))
        for value in (b"v", None):
            log.append_all([Output("t", b"%d" % number, value, 5) for number in range(3000)])
        log.clean(deletions_kept_ms=-DAY_MS)
        reader = EmbeddedLog(tmp_path).reader({T0: 7})
        assert not reader.wait(0)
        fetched = reader.fetch("t", 0, 10)
        assert (fetched.records, fetched.next_offset, fetched.idle) == ([], 6000, True)
        assert log.offset_at("t", 0, 1) == 6000
        log.append("t", b"k", b"v", 1)
        assert log.offset_at("t", 0, 1) == 6000
        assert [one.offset for one in reader.fetch("t", 0, 10).records] == [6000]
        log.clean()
        log.verify()


class TestInterruptions:
    @pytest.mark.parametrize("deletions_kept_ms", [DAY_MS, -DAY_MS])
    def test_a_cleaning_that_dies_at_any_step_leaves_the_last_of_each_key_where_it_was(
        self, tmp_path, monkeypatch, deletions_kept_ms
    ) -> None:
        class Kill(BaseException):
            pass

        def last_of(records: list[InputRecord]) -> list[InputRecord]:
            last = sorted({one.key: one for one in records}.values())
            return [one for one in last if one.value is not None or deletions_kept_ms > 0]

        monkeypatch.setattr(cleaning_, "_BLOCKS_AT_ONCE", 3)
        log = filled(tmp_path, TopicSettings(1, compacted=True), deleted=range(3))
        records = everything(log)
        last = last_of(records)
        assert deletions_kept_ms > 0 or len(last) == 2
        step, lengths = 0, set[int]()
        for step in range(200):
            victim, left = EmbeddedLog(tmp_path), step

            def strike() -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Kill

            try:
                with before("COMMIT", strike):
                    victim.clean(deletions_kept_ms=deletions_kept_ms)
                break
            except Kill:
                pass
            victim.close()
            for one in (log, EmbeddedLog(tmp_path)):
                found = everything(one)
                assert last_of(found) == last
                assert set(found) <= set(records)
                lengths.add(len(found))
        assert step > 5
        assert len(lengths) > 2, "it goes from run to run"
        log.clean(deletions_kept_ms=deletions_kept_ms)
        assert everything(log) == last
        log.verify()

    def test_one_cleans_at_a_time(self, tmp_path) -> None:
        log = filled(tmp_path, TopicSettings(1, compacted=True))
        with closing(FileLock(tmp_path / "cleaning")) as other:
            assert other.acquire()
            assert EmbeddedLog(tmp_path).clean().busy
        assert not log.clean().busy


def values(log: EmbeddedLog, topic: str) -> list[bytes | None]:
    return [one.value for one in log.reader({TopicPartition(topic, 0): 0}).fetch(topic, 0, 100).records]


def test_records_without_a_key_are_not_compacted(tmp_path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create_topic("mixed", TopicSettings(1, compacted=True))
    for number in range(6):
        log.append("mixed", None if number % 2 else b"k", str(number).encode(), number)
    log.clean()
    assert values(log, "mixed") == [b"1", b"3", b"4", b"5"]


def test_a_transaction_with_a_record_that_cannot_be_encoded_fails_as_a_whole_however_often_it_is_tried(
    tmp_path,
) -> None:
    log = EmbeddedLog(tmp_path)
    log.create_topic("plain", TopicSettings(1))
    writer = log.writer("one")
    writer.append([Output("plain", b"k", b"good", 1, ()), Output("plain", b"k", b"bad", 1 << 70, ())])
    for _ in range(2):
        with pytest.raises(UsageError, match="fits 64 bits"):
            writer.commit()
    assert log.end_offset("plain", 0) == 0
    writer.abort()
    writer.append([Output("plain", b"k", b"good", 1, ())])
    writer.commit()
    assert values(log, "plain") == [b"good"]
