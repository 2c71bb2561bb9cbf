"""The in-memory log keeps the promises of the interface, and breaks them only where a test says so."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tailrace.core.errors import CommitUnknownError, FencedError, OffsetGoneError, RecordTooLargeError
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.testing.memory_log import MemoryLog, MemoryWriter, Operation
from tests.log.contract import LogContract
from tests.log.tasks_contract import OpenLog, TasksContract

A0 = TopicPartition("a", 0)


def made(**options) -> MemoryLog:
    log = MemoryLog(**options)
    log.create_topic("a", TopicSettings(1))
    log.create_topic("b", TopicSettings(2))
    return log


def record(topic: str, value: bytes, key: bytes = b"k") -> Output:
    return Output(topic, key, value, 7)


@pytest.mark.parametrize("markers", [True, False], ids=["markers", "no markers"])
class TestContract(LogContract):
    @pytest.fixture
    def log(self, markers) -> MemoryLog:
        return MemoryLog(markers=markers)


class TestTasks(TasksContract):
    @pytest.fixture
    def open_log(self) -> OpenLog:
        log = MemoryLog()
        return lambda: log


class TestReading:
    def test_a_position_that_the_log_does_not_hold_is_never_moved_in_silence(self) -> None:
        log = made()
        for _ in range(3):
            log.append("a", None, b"v", 0)
        log.delete_before("a", 0, 2)
        assert log.start_offset("a", 0) == 2
        for position in (0, 1, 4):
            with pytest.raises(OffsetGoneError):
                log.reader({A0: position}).fetch("a", 0, 1)
        assert [one.offset for one in log.reader({A0: 2}).fetch("a", 0, 9).records] == [2]


class TestTopics:
    def test_compaction_keeps_the_last_of_each_key(self) -> None:
        log = made()
        for key, value in ((b"1", b"x"), (b"2", b"x"), (b"1", b"y"), (b"2", None), (b"3", b"z")):
            log.append("a", key, value, 0)
        log.compact("a", drop_deletions=False)
        assert [one.offset for one in log.read("a")] == [2, 3, 4]
        log.compact("a", below=4)
        assert [one.offset for one in log.read("a")] == [2, 4]
        assert [one.offset for one in log.reader({A0: 0}).fetch("a", 0, 1).records] == [2]

    def test_a_batch_with_a_record_too_large_is_refused_whole(self) -> None:
        log = made(max_record_bytes=10)
        writer = log.writer("w")
        with pytest.raises(RecordTooLargeError):
            writer.append([record("a", b"small"), record("a", b"much too large")])
        writer.commit()
        assert log.end_offset("a", 0) == 0


IDS = st.sampled_from(["x", "y", "z"])
PLACES = [TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("b", 1)]
BATCHES = st.lists(st.tuples(st.sampled_from(PLACES), st.integers(0, 3)), min_size=1, max_size=5)


class AgainstAModel(RuleBasedStateMachine):
    """The log against the plainest thing that could be one: a list per partition, with a fate for every entry."""

    def __init__(self) -> None:
        super().__init__()
        self.log = MemoryLog()
        self.log.create_topic("a", TopicSettings(1, compacted=True))
        self.log.create_topic("b", TopicSettings(2))
        self.entries: dict[TopicPartition, list[list[Any]]] = {place: [] for place in PLACES}
        """Per partition [value or None for a marker, transaction or None, open|committed|aborted]."""
        self.writers: list[tuple[MemoryWriter, str, list[Any]]] = []
        self.holders: dict[str, MemoryWriter] = {}
        self.offsets: dict[TopicPartition, int] = {}
        self.readers = {place: self.log.reader({place: 0}) for place in PLACES}
        self.read: dict[TopicPartition, list[tuple[int, bytes]]] = {place: [] for place in PLACES}
        self.count = 0

    def value(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    def end(self, mine: list[Any], fate: str) -> None:
        """``mine`` holds the places a transaction has written, its entries marked by the list's identity."""
        touched = [
            place for place in PLACES if any(e[1] is mine and e[2] == "open" for e in self.entries[place])
        ]
        for place in touched:
            for entry in self.entries[place]:
                if entry[1] is mine and entry[2] == "open":
                    entry[2] = fate
            self.entries[place].append([None, None, "marker"])

    def stable(self, place: TopicPartition) -> int:
        entries = self.entries[place]
        return next((at for at, entry in enumerate(entries) if entry[2] == "open"), len(entries))

    def visible(self, place: TopicPartition) -> list[tuple[int, bytes]]:
        entries = self.entries[place]
        return [(at, entries[at][0]) for at in range(self.stable(place)) if entries[at][2] == "committed"]

    @rule(transactional_id=IDS)
    def take_over(self, transactional_id: str) -> None:
        for writer, one, mine in self.writers:
            if one == transactional_id and self.holders.get(one) is writer:
                self.end(mine, "aborted")
        writer = self.holders[transactional_id] = self.log.writer(transactional_id)
        self.writers.append((writer, transactional_id, []))

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), batch=BATCHES)
    def append(self, data, batch) -> None:
        writer, transactional_id, mine = data.draw(st.sampled_from(self.writers))
        outputs = [(place, Output(place.topic, b"%d" % key, self.value(), 0)) for place, key in batch]
        held = self.holders[transactional_id] is writer
        for place, output in outputs:
            if held:
                writer.append([output], place.partition)
                self.entries[place].append([output.value, mine, "open"])
            else:
                with pytest.raises(FencedError):
                    writer.append([output], place.partition)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), commit=st.booleans(), strike=st.sampled_from([None, "commit", "committed"]))
    def finish(self, data, commit, strike) -> None:
        writer, transactional_id, mine = data.draw(st.sampled_from(self.writers))
        offset = len(self.writers)
        if self.holders[transactional_id] is not writer:
            with pytest.raises(FencedError):
                writer.commit() if commit else writer.abort()
        elif not commit:
            writer.abort()
            self.end(mine, "aborted")
        elif strike is None:
            ends = writer.commit({A0: offset}, "g")
            self.offsets[A0] = offset
            for place, end in ends.items():
                assert self.entries[place][end - 1][1] is mine
            self.end(mine, "committed")
        else:
            self.unknown(writer, strike, offset)
            if strike == "committed":
                self.offsets[A0] = offset
            self.end(mine, "committed" if strike == "committed" else "aborted")
            # Looking is taking the id over.
            self.holders[transactional_id] = self.log.writer(transactional_id)
            self.writers.append((self.holders[transactional_id], transactional_id, []))

    def unknown(self, writer: MemoryWriter, strike: str, offset: int) -> None:
        def hook(operation: Operation) -> None:
            if operation == strike:
                raise CommitUnknownError("struck")

        self.log.on_operation = hook
        with pytest.raises(CommitUnknownError):
            writer.commit({A0: offset}, "g")
        self.log.on_operation = lambda operation: None

    @rule(place=st.sampled_from(PLACES), key=st.integers(0, 3))
    def append_from_outside(self, place, key) -> None:
        value = self.value()
        offset = self.log.append(place.topic, b"%d" % key, value, 0, partition=place.partition)
        assert offset == len(self.entries[place])
        self.entries[place].append([value, None, "committed"])

    @rule(place=st.sampled_from(PLACES), most=st.integers(1, 4))
    def fetch(self, place, most) -> None:
        fetched = self.readers[place].fetch(place.topic, place.partition, most)
        assert len(fetched.records) <= most
        self.read[place] += [(one.offset, one.value or b"") for one in fetched.records]
        assert fetched.unread == any(offset >= fetched.next_offset for offset, _ in self.visible(place))
        assert fetched.idle == (fetched.next_offset == len(self.entries[place]))
        if not fetched.unread:
            assert fetched.next_offset == self.stable(place)

    @invariant()
    def only_what_is_committed_is_visible_and_in_order(self) -> None:
        for place in PLACES:
            visible = self.visible(place)
            assert [(one.offset, one.value) for one in self.log.read(*place)] == visible
            assert self.read[place] == visible[: len(self.read[place])]
            assert self.log.end_offset(*place) == len(self.entries[place])
        assert self.log.committed_offsets("g", [A0]) == self.offsets


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
