"""What is read of several topics as of one moment: their ends belong to one commit, and no cleaning thins them meanwhile."""

from __future__ import annotations

import itertools
import threading

import pytest

from tailrace.core.errors import UnknownTopicError
from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog


def test_ends_are_those_of_one_commit_while_another_thread_commits(tmp_path) -> None:
    log, other = EmbeddedLog(tmp_path), EmbeddedLog(tmp_path)
    for topic in ("a", "b"):
        log.create_topic(topic, TopicSettings(2))
    enough, done, commits = threading.Event(), threading.Event(), 0

    def write() -> None:
        nonlocal commits
        writer = other.writer("w")
        while commits < 300 or (commits < 30_000 and not enough.is_set()):
            commits += 1
            for topic in ("a", "b"):
                for partition in (0, 1):
                    writer.append([Output(topic, b"k", b"v", 0)], partition)
            writer.commit()
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen, positions = [], set[int]()
    while not done.is_set():
        seen.append(log.ends(["a", "b"]))
        positions.add(seen[-1].position)
        if len(positions) > 3:
            enough.set()
    thread.join()
    seen.append(log.ends(["a", "b"]))
    assert len(positions) > 3
    assert seen[-1].offsets == {"a": [commits, commits], "b": [commits, commits]}
    for (before, _), (after, offsets) in itertools.pairwise(seen):
        assert before <= after
        assert len({end for ends in offsets.values() for end in ends}) == 1


def test_the_ends_of_a_topic_that_is_not_there(tmp_path) -> None:
    with pytest.raises(UnknownTopicError):
        EmbeddedLog(tmp_path).ends(["nowhere"])


def test_no_cleaning_takes_records_while_it_is_held_off(tmp_path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create_topic("t", TopicSettings(1, compacted=True))
    writer = log.writer("w")
    for _ in range(100):
        writer.append([Output("t", b"k", b"x" * 30, 0)])
        writer.commit()
    other = EmbeddedLog(tmp_path)
    with log.compaction_paused(), other.compaction_paused():
        assert other.clean().busy
    done = other.clean()
    assert not done.busy
    assert done.bytes_after < done.bytes_before
