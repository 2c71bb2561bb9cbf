"""The embedded log against the model that the in-memory log is held against, with processes opening it and damage."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import apsw
import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tailrace.core.errors import CommitUnknownError, FencedError
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.writer import Batch, commit_batch
from tailrace.log.options import LogOptions
from tests.log.embedded.inside import failing_commits, turn

IDS = st.sampled_from(["x", "y", "z"])
A0 = TopicPartition("a", 0)
PLACES = [A0, TopicPartition("b", 0), TopicPartition("b", 1)]
BATCHES = st.lists(st.tuples(st.sampled_from(PLACES), st.integers(0, 3)), min_size=1, max_size=5)
OPTIONS = LogOptions()


class _DiedError(Exception):
    pass


class _Held:
    """A writer and what the model knows of it."""

    def __init__(self, log: EmbeddedLog, transactional_id: str) -> None:
        self.log = log
        self.writer = log.writer(transactional_id)
        self.transactional_id = transactional_id
        self.pending: list[tuple[TopicPartition, bytes, bytes]] = []


class AgainstAModel(RuleBasedStateMachine):
    """A list per partition. Nothing of an open transaction is in the log, and nothing but records takes offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.logs = [EmbeddedLog(self.folder, OPTIONS) for _ in range(3)]
        self.logs[0].create_topic("a", TopicSettings(1, compacted=True))
        self.logs[0].create_topic("b", TopicSettings(2))
        self.entries: dict[TopicPartition, list[tuple[bytes, bytes]]] = {place: [] for place in PLACES}
        self.compacted = False
        self.writers: list[_Held] = []
        self.holders: dict[str, _Held] = {}
        self.offsets: dict[TopicPartition, int] = {}
        self.readers = {place: self.logs[0].reader({place: 0}) for place in PLACES}
        self.read: dict[TopicPartition, list[tuple[int, bytes]]] = {place: [] for place in PLACES}
        self.count = 0

    def teardown(self) -> None:
        for log in self.logs:
            log.verify()
            log.close()
        shutil.rmtree(self.folder)

    def value(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    def take(self, held: _Held) -> None:
        for place, key, value in held.pending:
            self.entries[place].append((key, value))
        held.pending = []

    @rule(transactional_id=IDS, log=st.integers(0, 2))
    def take_over(self, transactional_id: str, log: int) -> None:
        held = _Held(self.logs[log], transactional_id)
        self.holders[transactional_id] = held
        self.writers.append(held)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), batch=BATCHES)
    def append(self, data: Any, batch: Any) -> None:
        held = data.draw(st.sampled_from(self.writers))
        for place, number in batch:
            key, value = b"%d" % number, self.value()
            output = Output(place.topic, key, value, 0)
            if self.holders[held.transactional_id] is held:
                held.writer.append([output], place.partition)
                held.pending.append((place, key, value))
            else:
                with pytest.raises(FencedError):
                    held.writer.append([output], place.partition)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), how=st.sampled_from(["commit", "abort", "unknown", "unknown, not done"]))
    def finish(self, data: Any, how: str) -> None:
        held = data.draw(st.sampled_from(self.writers))
        offset = int(self.value())  # another one each time: a commit that changes nothing is none
        if self.holders[held.transactional_id] is not held:
            with pytest.raises(FencedError):
                held.writer.abort() if how == "abort" else held.writer.commit()
        elif how == "abort":
            held.writer.abort()
            held.pending = []
        elif how == "commit":
            ends = held.writer.commit({A0: offset}, "g")
            places = {place for place, _, _ in held.pending}
            self.take(held)
            self.offsets[A0] = offset
            assert ends == {place: len(self.entries[place]) for place in places}
        else:
            self.lose_contact(held, how == "unknown", offset)

    def lose_contact(self, held: _Held, done: bool, offset: int) -> None:
        with failing_commits(apsw.SQLITE_IOERR_SHMSIZE, written=done), pytest.raises(CommitUnknownError):
            held.writer.commit({A0: offset}, "g")
        with pytest.raises(CommitUnknownError):
            held.writer.append([])
        if done:
            self.take(held)
            self.offsets[A0] = offset
        held.pending = []
        self.take_over(held.transactional_id, 0)

    @rule(place=st.sampled_from(PLACES), key=st.integers(0, 3), log=st.integers(0, 2))
    def append_from_outside(self, place: TopicPartition, key: int, log: int) -> None:
        value = self.value()
        offset = self.logs[log].append(place.topic, b"%d" % key, value, 0, partition=place.partition)
        assert offset == len(self.entries[place])
        self.entries[place].append((b"%d" % key, value))

    @rule(log=st.integers(0, 2))
    def open_anew(self, log: int) -> None:
        """A process ends, and another begins; its writers are of the process that ended."""
        if log == 0:
            # The readers are of the first: they go on from where they stood.
            self.readers = {}
        gone = self.logs[log]
        self.writers = [one for one in self.writers if one.log is not gone]
        gone.close()
        self.logs[log] = EmbeddedLog(self.folder, OPTIONS)
        if log == 0:
            positions = {place: self.read[place][-1][0] + 1 if self.read[place] else 0 for place in PLACES}
            self.readers = {place: self.logs[0].reader({place: positions[place]}) for place in PLACES}

    @rule(place=st.sampled_from(PLACES))
    def die_half_way(self, place: TopicPartition) -> None:
        """A process dies while it appends: what it has written by then is in the WAL."""
        batch = Batch()
        batch.add({place: [Output(place.topic, b"0", b"half of a commit", 0)]})
        with pytest.raises(_DiedError), turn(self.folder) as changes:
            commit_batch(changes, batch, offsets={A0: 77}, group="g", watermarks={}, publisher="")
            changes.connection.cache_flush()
            raise _DiedError

    @rule(log=st.integers(0, 2))
    def clean(self, log: int) -> None:
        self.logs[log].clean()
        self.compacted = True

    @rule(commits=st.integers(5, 20), log=st.integers(0, 2))
    def go_on(self, commits: int, log: int) -> None:
        """So far that blocks are cleaned in which the others still stand."""
        for _ in range(commits):
            self.append_from_outside(A0, 0, log)
        self.clean(log)

    @rule(place=st.sampled_from(PLACES), most=st.integers(1, 4))
    def fetch(self, place: TopicPartition, most: int) -> None:
        fetched = self.readers[place].fetch(place.topic, place.partition, most)
        assert len(fetched.records) <= most
        self.read[place] += [(one.offset, one.value or b"") for one in fetched.records]
        end = len(self.entries[place])
        assert fetched.idle == (fetched.next_offset == end and not fetched.unread)
        if not fetched.unread:
            assert fetched.next_offset == end

    @invariant()
    def only_what_is_committed_is_visible_and_in_order(self) -> None:
        for log in self.logs[:2]:  # the third looks when it has to do something, which may be long after
            for place in PLACES:
                entries = self.entries[place]
                fetched = log.reader({place: 0}).fetch(*place, 10_000)
                seen = [(one.offset, one.key, one.value) for one in fetched.records]
                expected = [(at, key, value) for at, (key, value) in enumerate(entries)]
                if place == A0 and self.compacted:
                    last = {key: (at, key, value) for at, key, value in expected}
                    assert {key: (at, key, value) for at, key, value in seen} == last
                    assert [one for one in expected if one in seen] == seen
                else:
                    assert seen == expected
                assert log.end_offset(*place) == len(entries)
            assert log.committed_offsets("g", [A0]) == self.offsets
        for place in PLACES:
            read = self.read[place]
            assert all(self.entries[place][at][1] == value for at, value in read)
            assert [at for at, _ in read] == sorted({at for at, _ in read})
            if place != A0:
                assert [at for at, _ in read] == list(range(len(read)))


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
