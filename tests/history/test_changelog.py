"""Folding a changelog: a commit counts when its cut has been read, and nothing but a task writes there."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.core import rows
from tailrace.core.errors import CorruptStateError
from tailrace.core.records import InputRecord, Output
from tailrace.history.reading.changelog import fold, last_cut
from tailrace.history.reading.cut_notes import cut_header, header_of
from tailrace.log import TopicPartition, TopicSettings
from tailrace.testing import MemoryLog

PLACE = TopicPartition("app.changelog", 0)
Commit = list[tuple[bytes, bytes | None]]
commits = st.lists(
    st.lists(st.tuples(st.sampled_from([b"sa", b"sb", b"sc"]), st.sampled_from([b"1", b"2", None])))
)


def written(said: list[Commit]) -> MemoryLog:
    log = MemoryLog(markers=False)
    log.create_topic(PLACE.topic, TopicSettings(1))
    writer = log.writer("w")
    for number, commit in enumerate(said):
        changed = [*commit, (rows.CUT_ROW, b"cut %d" % number)]
        writer.append(Output(PLACE.topic, row, value, 0) for row, value in changed)
        writer.commit()
    return log


@given(commits, st.integers(0, 40), st.sampled_from([1, 2, 3, 100]))
@example([[(b"sa", b"1")], [(b"sa", b"2")]], 3, 100)
@example([[(b"sa", b"1")], [(b"sa", b"2")]], 3, 1)
def test_a_fold_leaves_what_the_whole_commits_below_its_stop_leave(
    said: list[Commit], stop: int, at_once: int
) -> None:
    log, kept, cut, position, at = written(said), dict[bytes, bytes | None](), None, 0, 0
    for number, commit in enumerate(said):
        at += len(commit) + 1
        if at <= stop:
            kept.update(commit)
            cut, position = b"cut %d" % number, at
    found = fold(log, PLACE, 0, stop, at_once=at_once)
    assert found == (kept, cut, position, ())
    last = last_cut(log, PLACE, stop)
    assert (None, 0) if last is None else (last.value, last.offset + 1) == (cut, position)


def test_a_record_without_a_key_is_nobodys_row() -> None:
    log = written([[(b"sa", b"1")]])
    log.append(PLACE.topic, None, b"x", 0)
    with pytest.raises(CorruptStateError, match="record without a key at offset 2"):
        fold(log, PLACE, 0)


def test_headers_of_a_cut_are_read_beside_others_and_a_damaged_one_is_an_error() -> None:
    headers = (*cut_header("other", ["of", "another", "kind"]), *cut_header("left", {"orders": 7}))
    cut = InputRecord(7, 1_000, b"", b"", headers)
    assert header_of(cut, "left", dict[str, int]) == {"orders": 7}
    assert header_of(cut, "note", bytes) is header_of(None, "note", bytes) is None
    with pytest.raises(CorruptStateError, match="the header 'other' of a cut cannot be read"):
        header_of(cut, "other", bytes)
