"""Scanning a partition: every committed record between two offsets, and an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.errors import UnknownTopicError
from tailrace.core.records import Output
from tailrace.history.topic_scan import scan
from tailrace.log import TopicSettings
from tailrace.testing import MemoryLog


def filled(commits: list[tuple[int, bool]]) -> tuple[MemoryLog, list[bytes]]:
    """Transactions of so many records, committed or not; what has to be visible."""
    log = MemoryLog()
    log.create_topic("t", TopicSettings(1))
    writer, visible, number = log.writer("w"), [], 0
    for count, committed in commits:
        values = [b"%d" % (number + at) for at in range(count)]
        number += count
        writer.append(Output("t", None, value, 0) for value in values)
        if committed:
            writer.commit()
            visible += values
        else:
            writer.abort()
    return log, visible


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans())), st.integers(0, 40), st.integers(0, 40))
def test_a_scan_gives_what_is_committed_between_its_bounds(commits, start, stop) -> None:
    log, visible = filled(commits)
    everything = list(scan(log, "t", 0))
    assert [one.value for one in everything] == visible
    some = list(scan(log, "t", 0, start, stop))
    assert some == [one for one in everything if start <= one.offset < stop]


def test_a_scan_ends_before_a_transaction_that_is_open() -> None:
    log, visible = filled([(3, True)])
    log.writer("open").append([Output("t", None, b"x", 0)])
    assert [one.value for one in scan(log, "t", 0)] == visible


def test_a_scan_of_no_topic_says_so() -> None:
    with pytest.raises(UnknownTopicError):
        next(scan(MemoryLog(), "t", 0))
