"""What is stored is read: stretches of a partition, changelogs, headers of cuts."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.core import rows
from tailrace.core.errors import CorruptStateError, OffsetGoneError
from tailrace.core.records import InputRecord, Output
from tailrace.history.reading.changelog import fold, last_cut
from tailrace.history.reading.stretches import first, last, scan, source
from tailrace.log import TopicPartition, TopicSettings
from tailrace.state.contents import Contents
from tailrace.state.provenance import HEADER, NOTHING, Abandoned, Provenance, ReadTopic, provenance_of
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


def test_what_is_deleted_is_left_out_unless_the_stretch_has_to_be_whole() -> None:
    log, visible = filled([(5, True)])
    log.delete_before("t", 0, 2)
    assert [one.value for one in scan(log, "t", 0, 0)] == visible[2:]
    assert first(log, "t", 0) == first(log, "t", 0, 1) == next(scan(log, "t", 0, 2))
    with pytest.raises(OffsetGoneError):
        list(scan(log, "t", 0, 1, 5, whole=True))


def test_a_whole_stretch_ends_at_its_stop_or_not_at_all() -> None:
    log, visible = filled([(3, True)])
    assert [one.value for one in scan(log, "t", 0, 1, 3, whole=True)] == visible[1:]
    log.writer("open").append([Output("t", None, b"x", 0)])
    for stop in (log.end_offset("t", 0), 9):
        assert [one.value for one in scan(log, "t", 0, 0, stop)] == visible
        with pytest.raises(OffsetGoneError, match=f"up to {stop} before"):
            list(scan(log, "t", 0, 0, stop, whole=True))
        with pytest.raises(OffsetGoneError, match=f"up to {stop} before"):
            source(log, 0)("t", 0, stop)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12),
    st.integers(1, 7),
)
def test_a_source_gives_every_stretch_whole_in_whatever_order_they_are_asked_for(
    commits, wanted, at_once
) -> None:
    log, _ = filled(commits)
    everything, end = list(scan(log, "t", 0)), log.end_offset("t", 0)
    read = source(log, 0, at_once)
    for one, other in wanted:
        start, stop = sorted((min(one, end), min(other, end)))
        assert list(read("t", start, stop)) == [each for each in everything if start <= each.offset < stop]


def test_a_stretch_ends_where_the_partition_ended_at_the_call() -> None:
    log, visible = filled([(3, True)])
    found = scan(log, "t", 0)
    writer = log.writer("w")
    writer.append([Output("t", None, b"later", 0)])
    writer.commit()
    assert [one.value for one in found] == visible


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans())), st.integers(0, 40), st.integers(0, 9))
def test_the_last_record_is_the_last_of_a_scan(commits, stop, digit) -> None:
    log, _ = filled(commits)
    wanted = [one for one in scan(log, "t", 0, 0, stop) if (one.value or b"").endswith(b"%d" % digit)]
    found = last(log, "t", 0, lambda one: (one.value or b"").endswith(b"%d" % digit), stop)
    assert found == (wanted[-1] if wanted else None)


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


def test_the_provenance_of_a_cut_is_read_beside_other_headers_and_a_damaged_one_is_an_error() -> None:
    said = Provenance(
        topics={"orders": ReadTopic("log/id", 5)},
        abandoned={"orders": Abandoned(7)},
        rows=Contents(3, 4),
        versions=("1", "2"),
    )
    cut = InputRecord(7, 1_000, b"", b"", (("other", b"of another kind"), *said.headers))
    assert provenance_of(cut) == said
    assert provenance_of(cut._replace(headers=())) == provenance_of(None) == NOTHING
    assert NOTHING.headers == ()
    with pytest.raises(CorruptStateError, match="the header 'provenance' of a cut cannot be read"):
        provenance_of(cut._replace(headers=((HEADER, b"of another kind"),)))
