"""What any event log has to keep, whatever it is made of: said with the interface alone.

A log's own tests inherit ``LogContract`` and give it a fixture ``log``. Offsets are only compared, never counted: whether
ends of transactions take one is the log's affair.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from tailrace.core.errors import FencedError, OffsetGoneError, TopicMismatchError, UnknownTopicError
from tailrace.core.records import InputRecord, Output
from tailrace.core.values.partitioner import partition_of
from tailrace.log import Log, Publication, Reader, TopicPartition, TopicSettings
from tailrace.log.admin import Circumstances, Finding, NeededTopic

A = TopicPartition("a", 0)
PATIENCE_S = 10.0


def said(topic: str, *values: bytes, key: bytes | None = b"k") -> list[Output]:
    return [Output(topic, key, value, 7) for value in values]


def read_all(log: Log, reader: Reader, place: TopicPartition, most: int = 100) -> list[InputRecord]:
    """Fetch until the reader is at the end that the log has now. No transaction may be open: a log may take its time."""
    records: list[InputRecord] = []
    end = log.end_offset(*place)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        fetched = reader.fetch(place.topic, place.partition, most)
        assert len(fetched.records) <= most
        records += fetched.records
        if fetched.next_offset >= end and not fetched.unread:
            return records
        assert time.monotonic() < deadline
        if not fetched.records:
            reader.wait(0.1)


def visible(log: Log, *places: TopicPartition) -> list[bytes | None]:
    reader = log.reader({place: log.start_offset(*place) for place in places})
    try:
        return [record.value for place in places for record in read_all(log, reader, place)]
    finally:
        reader.close()


def seen_at_once(log: Log, *places: TopicPartition) -> list[InputRecord]:
    """What a fetch of each partition returns, while a transaction is open."""
    reader = log.reader({place: log.start_offset(*place) for place in places})
    try:
        return [record for place in places for record in reader.fetch(*place, 100).records]
    finally:
        reader.close()


class LogContract:
    """The laws of a log. ``log`` starts with the topics ``a`` (one partition) and ``b`` (three)."""

    @pytest.fixture
    def topics(self, log: Log) -> Log:
        log.create_topic("a", TopicSettings(1))
        log.create_topic("b", TopicSettings(3))
        return log

    def test_a_commit_makes_all_partitions_and_offsets_visible_and_nothing_was_before(self, topics) -> None:
        places = [A, *(TopicPartition("b", number) for number in range(3))]
        writer = topics.writer("w")
        writer.append(said("a", b"1", b"2"))
        for number in range(3):
            writer.append(said("b", b"%d" % number), number)
        assert seen_at_once(topics, *places) == []
        writer.commit({A: 5}, "group")
        assert visible(topics, *places) == [b"1", b"2", b"0", b"1", b"2"]
        assert topics.committed_offsets("group", [A, places[1]]) == {A: 5}
        assert topics.committed_offsets("other", [A]) == {}

    def test_what_is_aborted_is_never_seen_and_the_writer_goes_on(self, topics) -> None:
        writer = topics.writer("w")
        writer.append(said("a", b"lost"))
        writer.abort()
        writer.abort()
        writer.append(said("a", b"kept"))
        writer.commit()
        assert visible(topics, A) == [b"kept"]

    def test_a_record_comes_back_as_it_went_in(self, topics) -> None:
        sent = [
            Output("a", b"key", b"value", 1_357_002_000_000, (("h", b"1"), ("h", b""))),
            Output("a", None, b"", 0),
            Output("a", b"", None, 1),
            Output("a", bytes(range(256)), bytes(100_000), 253_402_300_799_000),
        ]
        writer = topics.writer("w")
        writer.append(sent)
        writer.commit()
        got = read_all(topics, topics.reader({A: 0}), A)
        assert [(one.key, one.value, one.timestamp_ms, one.headers) for one in got] == [
            one[1:] for one in sent
        ]

    def test_a_key_goes_where_murmur2_says_and_a_given_partition_goes_before_it(self, topics) -> None:
        writer = topics.writer("w")
        keys = [b"%d" % number for number in range(30)]
        writer.append([Output("b", key, b"by key", 0) for key in keys])
        writer.append([Output("b", None, b"by key", 0)])
        writer.append([Output("b", key, b"given", 0) for key in keys], 1)
        writer.commit()
        for number in range(3):
            place = TopicPartition("b", number)
            for record in read_all(topics, topics.reader({place: 0}), place):
                assert number == (1 if record.value == b"given" else partition_of(record.key or b"", 3))

    def test_offsets_rise_and_the_ends_of_a_commit_cover_it_and_nothing_after_it(self, topics) -> None:
        first, second = topics.writer("1"), topics.writer("2")
        first.append(said("a", b"1", b"2"))
        ends = first.commit()
        second.append(said("a", b"3"))
        second.commit()
        records = read_all(topics, topics.reader({A: 0}), A)
        offsets = [one.offset for one in records]
        assert offsets == sorted(set(offsets))
        assert ends.keys() == {A}
        assert offsets[1] < ends[A] <= offsets[2]
        assert read_all(topics, topics.reader({A: ends[A]}), A)[0].value == b"3"
        assert topics.end_offset(*A) > offsets[2]

    def test_who_was_taken_over_can_do_nothing_more(self, topics) -> None:
        zombie = topics.writer("w")
        zombie.append(said("a", b"lost"))
        owner = topics.writer("w")
        with pytest.raises(FencedError):
            zombie.append(said("a", b"lost"))
            zombie.commit({A: 9}, "group")
        with pytest.raises(FencedError):
            zombie.commit({A: 9}, "group")
        zombie.close()
        owner.append(said("a", b"kept"))
        owner.commit()
        assert visible(topics, A) == [b"kept"]
        assert topics.committed_offsets("group", [A]) == {}

    def test_after_a_take_over_all_that_was_committed_lies_before_the_end_and_can_be_read(
        self, topics
    ) -> None:
        for number in range(5):
            writer = topics.writer("w")
            end, seen = topics.end_offset(*A), -1
            reader = topics.reader({A: 0})
            records = []
            deadline = time.monotonic() + PATIENCE_S
            while seen < end and time.monotonic() < deadline:
                fetched = reader.fetch("a", 0, 3)
                records += fetched.records
                seen = fetched.next_offset
            assert [one.value for one in records] == [b"%d" % before for before in range(number)]
            writer.append(said("a", b"%d" % number))
            writer.commit()
            writer.append(said("a", b"left open"))

    def test_an_idle_partition_says_so_and_one_with_something_unread_does_not(self, topics) -> None:
        reader = topics.reader({A: 0})
        assert self.settled(reader) == (False, True)
        writer = topics.writer("w")
        writer.append(said("a", b"1", b"2", b"3"))
        writer.commit()
        read = 0
        deadline = time.monotonic() + PATIENCE_S
        while read < 3:
            assert time.monotonic() < deadline
            fetched = reader.fetch("a", 0, 1)
            read += len(fetched.records)
            if read < 3:
                assert not fetched.idle
        assert self.settled(reader) == (False, True)
        writer.append(said("a", b"4"))
        writer.abort()
        assert self.settled(reader) == (False, True)

    def settled(self, reader: Reader) -> tuple[bool, bool]:
        """``unread`` and ``idle`` once the log has had time to say."""
        deadline = time.monotonic() + PATIENCE_S
        while not (fetched := reader.fetch("a", 0, 10)).idle and time.monotonic() < deadline:
            reader.wait(0.05)
        assert fetched.records == []
        return fetched.unread, fetched.idle

    def test_a_reader_moves_takes_in_and_forgets_partitions(self, topics) -> None:
        writer = topics.writer("w")
        writer.append(said("a", b"1", b"2"))
        writer.append(said("b", b"3"), 2)
        writer.commit()
        reader = topics.reader({A: 0})
        second = read_all(topics, reader, A)[1].offset
        reader.seek("a", 0, second)
        assert [one.value for one in read_all(topics, reader, A)] == [b"2"]
        place = TopicPartition("b", 2)
        reader.seek(*place, 0)
        assert reader.wait(PATIENCE_S)
        assert [one.value for one in read_all(topics, reader, place)] == [b"3"]
        reader.forget(*place)
        reader.forget(*place)
        assert not reader.wait(0)
        reader.close()
        reader.close()

    def test_a_position_past_the_end_is_an_error_that_names_it(self, topics) -> None:
        with pytest.raises(OffsetGoneError) as raised:
            read_all(topics, topics.reader({A: 17}), A)
        assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("a", 0, 17)

    def test_an_offset_is_found_by_its_time(self, topics) -> None:
        writer = topics.writer("w")
        writer.append([Output("a", b"k", b"v", at) for at in (10, 30, 20)])
        writer.commit()
        offsets = [one.offset for one in read_all(topics, topics.reader({A: 0}), A)]
        assert [topics.offset_at(*A, at) for at in (0, 11, 30)] == [offsets[0], offsets[1], offsets[1]]
        assert topics.offset_at(*A, 31) > offsets[2]

    def test_topics_are_created_once_and_never_by_themselves(self, topics) -> None:
        topics.create_topic("a", TopicSettings(1))
        with pytest.raises(TopicMismatchError):
            topics.create_topic("a", TopicSettings(2))
        assert (topics.partitions("a"), topics.partitions("b")) == (1, 3)
        assert topics.topics()["b"].partitions == 3
        for ask in (lambda: topics.partitions("c"), lambda: topics.writer("w").append(said("c", b""))):
            with pytest.raises(UnknownTopicError):
                ask()

    def test_many_batches_by_several_writers_are_each_seen_whole_and_in_order(self, topics) -> None:
        writers = [topics.writer(str(number)) for number in range(3)]
        for batch in range(10):
            for number, writer in enumerate(writers):
                writer.append(said("a", *(b"%d %d %d" % (number, batch, one) for one in range(4))))
            for number, writer in enumerate(writers):
                writer.abort() if (batch + number) % 4 == 0 else writer.commit()
        seen = [(one.value or b"").split() for one in read_all(topics, topics.reader({A: 0}), A, 7)]
        assert self.of(seen, 0) == self.expected(0)
        assert self.of(seen, 1) == self.expected(1)
        assert self.of(seen, 2) == self.expected(2)

    def of(self, seen: Iterable[list[bytes]], writer: int) -> list[tuple[int, int]]:
        return [(int(batch), int(one)) for number, batch, one in seen if int(number) == writer]

    def expected(self, writer: int) -> list[tuple[int, int]]:
        return [(batch, one) for batch in range(10) if (batch + writer) % 4 for one in range(4)]

    # --- the operator's side

    def test_the_admin_lists_and_describes_the_topics_there_are(self, topics) -> None:
        assert {"a", "b"} <= set(topics.admin.names())
        found = topics.admin.details(["a", "b", "absent"])
        assert {name: one.settings for name, one in found.items()} == dict(topics.topics())
        assert all(one.min_insync is None or one.replicas for one in found.values())

    def test_a_retention_is_lifted_from_an_internal_topic_and_named_before(self, log) -> None:
        log.create_topic("app.tape", TopicSettings(2, retention_ms=1_000))
        need = NeededTopic("app.tape", "tape", TopicSettings(2))
        about = Circumstances("app", lambda _topic: True)

        def found() -> list[Finding]:
            known = log.admin.details([need.name])[need.name]
            return [one for one in log.admin.findings(need, known, about) if one.level == "error"]

        (one,) = found()
        assert (one.setting, one.found, one.is_safe) == ("retention.ms", "1000", True)
        log.admin.alter(need.name, {one.setting: one.wanted})
        assert found() == []
        assert log.topics()[need.name] == need.settings

    def test_following_a_topic_creates_the_topics_with_its_watermarks_if_there_are_such(self, topics) -> None:
        topics.admin.follow(["a"])
        assert set(topics.admin.watermark_topics("a")) <= set(topics.admin.names())
        assert set(topics.topics()) == {"a", "b"}

    # --- offsets and the order of commits

    def test_topics_have_ids_of_their_own_or_none_on_a_log_that_deletes_no_topic(self, topics) -> None:
        ids = topics.watch(["a", "b"])
        assert topics.topic_ids(["a", "absent", "b"]) == ids
        assert set(ids) in (set(), {"a", "b"})
        assert len(set(ids.values())) == len(ids)
        assert len({one.partition("/")[0] for one in ids.values()}) <= 1
        assert topics.topic_ids([]) == {}

    def test_offsets_are_told_without_waiting_while_a_transaction_is_open(self, topics) -> None:
        writer = topics.writer("w")
        writer.append(said("a", b"1"))
        writer.commit({A: 5}, "group")
        writer.append(said("a", b"2"))
        assert topics.offsets_before_open_transactions("group", [A]) == {A: 5}
        writer.close()

    # --- watermarks from writers to readers

    def test_a_watermark_is_found_where_all_is_read_that_was_there_when_it_was_committed(
        self, topics
    ) -> None:
        writer = topics.writer("w")
        for number in range(3):
            writer.append(said("a", b"1", b"2"))
            writer.commit({}, "", {"a": number})
        reader = topics.reader({A: 0})
        assert reader.published("a", 0) == []
        found, read = [], 0
        deadline = time.monotonic() + PATIENCE_S
        while read < 6:
            assert time.monotonic() < deadline
            if fetched := len(reader.fetch("a", 0, 1).records):
                read += fetched
                found.append(reader.published("a", 0))
            else:
                reader.wait(0.1)
        first, second, third = ([Publication("w", number)] for number in range(3))
        # A log whose commits take offsets of their own may say it one record later.
        assert [one for one in found if one] in ([first, second, third], [first, second])
        assert first not in found[:1]
        self.settled(reader)
        assert [*found, reader.published("a", 0)].count(third) == 1
        held = topics.published_in("a", 0)
        assert [one[1:] for one in held] == [("w", number) for number in range(3)]
        reader.seek("a", 0, 0)
        offsets: list[int] = []
        while len(offsets) < 6:
            assert time.monotonic() < deadline
            offsets += [one.offset for one in reader.fetch("a", 0, 10).records]
        assert [sum(offset < one.position for offset in offsets) for one in held] == [2, 4, 6]

    def test_a_watermark_is_given_once_by_publisher_and_all_of_them_again_after_a_seek(self, topics) -> None:
        one, two = topics.writer("one"), topics.writer("two")
        one.commit(None, "", {"a": 5, "b": 6})
        two.commit(None, "", {"a": None})
        one.commit(None, "", {"a": 7})
        one.commit(None, "", {"a": 7})
        two.append(said("a", b"aborted"))
        two.abort()
        reader = topics.reader({A: 0, TopicPartition("b", 2): 0})
        self.settled(reader)
        latest = {Publication("two", None), Publication("one", 7)}
        assert set(reader.published("a", 0)) == latest
        assert reader.published("a", 0) == []
        assert reader.published("b", 2) == [Publication("one", 6)]
        reader.seek("a", 0, 0)
        self.settled(reader)
        assert set(reader.published("a", 0)) == latest
        one.commit(None, "", {"a": 7})
        assert reader.published("a", 0) == []
        two.commit(None, "", {"a": 8})
        self.settled(reader)
        assert reader.published("a", 0) == [Publication("two", 8)]

    def test_a_publisher_that_lets_go_leaves_its_readers_at_its_last_watermark_whenever_they_look(
        self, topics
    ) -> None:
        early, late = topics.reader({A: 0}), topics.reader({A: 0})
        writer = topics.writer("w")
        writer.commit(None, "", {"a": 5})
        self.settled(early)
        assert early.published("a", 0) == [Publication("w", 5)]
        for mark in (7, 8, None, None):
            writer.commit(None, "", {"a": mark})
        for reader in (early, late):
            self.settled(reader)
            assert reader.published("a", 0) == [Publication("w", 8), Publication("w", None)]
            assert reader.published("a", 0) == []
        writer.commit(None, "", {"a": 9})
        writer.commit(None, "", {"a": None})
        self.settled(late)
        assert late.published("a", 0) == [Publication("w", 9), Publication("w", None)]

    def test_a_watermark_of_a_topic_that_is_not_there_is_refused_with_the_commit(self, topics) -> None:
        writer = topics.writer("w")
        writer.append(said("a", b"1"))
        with pytest.raises(UnknownTopicError):
            writer.commit({A: 1}, "group", {"c": 5})
        assert seen_at_once(topics, A) == []
