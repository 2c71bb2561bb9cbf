"""Copies of topics: the same records at the same offsets, so all that refers to an offset stays right.

Theory. Positions, causes on the tape, seeds of randomness, dead letters and snapshots refer to offsets.
They need no translation if every record keeps its own. A partition begins on the target where it begins on the
source. An interrupted copy continues at the end of the target's partition, if both have the same last record.

The changelog is compacted, so its offsets mean nothing, but for one thing: a state folder or a snapshot that stands
at a position of it must find every later change behind it. So the copy begins behind the end of the source, and has
the last value of each row, deletions included. A task's rows and its cut are one commit under its transactional id,
and are then compared with the source's, by number and digest of the rows (``state.contents``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.errors import CorruptStateError, OffsetGoneError, OtherHistoryError, TopicMismatchError
from tailrace.core.names import transactional_id
from tailrace.core.records import InputRecord, Output
from tailrace.history.provenance.topics import abandoned_here, read_topics
from tailrace.history.reading.changelog import Folded, beginning, fold, last_cut
from tailrace.history.reading.stretches import first, last
from tailrace.log.interface import MovableLog, Placer, Reader, Stretch, TopicPartition
from tailrace.state.contents import Contents
from tailrace.state.provenance import Provenance, provenance_in

BEGIN_AGAIN = "Delete the topics of the app on the target, or use another log or prefix, and move it again."
_AT_ONCE = 5_000
_ROWS_AT_ONCE = 20_000


class Copied(NamedTuple):
    """What was copied of a topic by this run."""

    topic: str
    partitions: int
    records: int


class CopyStatus(NamedTuple):
    """How far a copy has come: offsets of all partitions together."""

    done: int
    all: int
    records: int


class TopicCopy:
    """Copies topics from one log to another: once, or again up to later ends.
    Raises TopicMismatchError, OtherHistoryError: a topic of the target has other settings or other records.
    """

    def __init__(
        self,
        source: MovableLog,
        target: MovableLog,
        placer: Placer,
        topics: Sequence[str],
        tell: Callable[[CopyStatus], None] | None = None,
    ) -> None:
        self._source, self._placer, self._tell = source, placer, tell
        for topic in topics:
            create_topic(source, target, topic)
        self._positions = {
            place: _position(source, target, placer, place, end)
            for place, end in _places(source.ends(topics).offsets)
        }
        self._counts = dict.fromkeys(topics, 0)

    def catch_up(self) -> None:
        """Copy up to the present ends of the source. Raises OffsetGoneError."""
        positions = self._positions
        ends = dict(_places(self._source.ends(self._counts).offsets))
        left: list[TopicPartition] = [place for place in ends if positions[place] < ends[place]]
        with closing(self._source.reader({place: positions[place] for place in left})) as reader:
            while left:
                stretches = self._read(reader, left, ends)
                if not stretches:
                    reader.wait(1.0)
                    continue
                self._placer.append(stretches)
                positions.update((one.place, one.end) for one in stretches)
                left = [place for place in left if positions[place] < ends[place]]
                if self._tell is not None:
                    copied = sum(self._counts.values())
                    self._tell(CopyStatus(sum(positions.values()), sum(ends.values()), copied))

    def report(self) -> list[Copied]:
        """What was copied so far."""
        return [Copied(topic, self._source.partitions(topic), count) for topic, count in self._counts.items()]

    def _read(
        self, reader: Reader, places: Sequence[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> list[Stretch]:
        found: list[Stretch] = []
        for place in places:
            fetched = reader.fetch(*place, _AT_ONCE)
            stop = min(fetched.next_offset, ends[place])
            if stop > self._positions[place]:
                records = [one for one in fetched.records if one.offset < stop]
                found.append(Stretch(place, records, stop))
                self._counts[place.topic] += len(records)
        return found


def create_topic(source: MovableLog, target: MovableLog, topic: str, partitions: int | None = None) -> None:
    """Create a topic as it is on the source, or with another number of ``partitions``. One that exists may have another retention.
    Raises TopicMismatchError: it has another number of partitions, or only one of both is compacted.
    """
    settings, known = source.topics()[topic], target.topics().get(topic)
    settings = settings._replace(partitions=partitions or settings.partitions)
    if known is None:
        target.create_topic(topic, settings)
    elif (known.partitions, known.compacted) != (settings.partitions, settings.compacted):
        raise TopicMismatchError(
            f"the target has the topic with {known}, and not with {settings}", topic=topic, hint=BEGIN_AGAIN
        )


def copy_state(
    plan: Plan,
    number: int,
    source: MovableLog,
    target: MovableLog,
    placer: Placer,
    end: int,
    left: Mapping[str, int],
) -> int:
    """Copy the state of a task, if the target does not have it yet, and compare it. Returns the number of rows.
    ``end``: of the source's changelog. ``left``: where the task has left inputs.
    Raises OffsetGoneError or OtherHistoryError.
    """
    place = TopicPartition(plan.changelog_topic, number)
    state = fold(source, place, beginning(source, place), end)
    if state.cut is None:
        return 0
    wanted, contents = state.cut, Contents().applied(state.rows)
    if last_cut(target, place) is None:
        if target.end_offset(*place) < end:
            placer.append([Stretch(place, (), end)])
        _write(plan, number, target, state, left, contents)
    del state  # two states at a time may not fit
    try:
        found = fold(target, place, target.start_offset(*place))
        is_same = (found.cut, Contents().applied(found.rows)) == (wanted, contents)
    except (CorruptStateError, OtherHistoryError):  # it is not even the one that was written
        is_same = False
    if not is_same:
        raise OtherHistoryError(
            f"the state of {plan.app!r} partition {number} on the target differs from the one on the source",
            why="log",
            hint=BEGIN_AGAIN,
        )
    return contents.rows


def _write(
    plan: Plan, number: int, target: MovableLog, state: Folded, left: Mapping[str, int], contents: Contents
) -> None:
    """Write the rows and the cut of a task in one commit."""
    topic, now_ms, some = plan.changelog_topic, time.time_ns() // 1_000_000, iter(state.rows.items())
    with closing(target.writer(transactional_id(plan.app, number))) as writer:
        while batch := list(islice(some, _ROWS_AT_ONCE)):
            writer.append([Output(topic, row, value, now_ms) for row, value in batch], number)
        assert state.cut is not None
        found = Provenance(
            topics=read_topics(plan, target, tape.decode_cut(state.cut).positions),
            read=provenance_in(state.headers).read,
            abandoned=abandoned_here(target, left),
            rows=contents,
        )
        writer.append([Output(topic, rows.CUT_ROW, state.cut, now_ms, found.headers)], number)
        writer.commit()


def _places(ends: Mapping[str, Sequence[int]]) -> Iterator[tuple[TopicPartition, int]]:
    for topic, some in ends.items():
        for number, end in enumerate(some):
            yield TopicPartition(topic, number), end


def _position(source: MovableLog, target: MovableLog, placer: Placer, place: TopicPartition, end: int) -> int:
    """Where to begin or continue a copy; see the head of this file."""
    start, here = source.start_offset(*place), target.end_offset(*place)
    if here <= start and first(target, *place) is None:
        if start:
            placer.begin_at(place, start)
        return start
    if here < start:
        raise OffsetGoneError(
            f"the source has deleted offsets {here} to {start - 1}, which the target does not have yet",
            topic=place.topic,
            partition=place.partition,
            offset=here,
            hint=BEGIN_AGAIN,
        )
    if here > end or _last(source, place, start, here) != _last(target, place, start, here):
        raise OtherHistoryError(
            f"{place.topic!r} partition {place.partition} has records on the target that are not those of the source: something else "
            "has written there",
            why="log",
            hint=BEGIN_AGAIN,
        )
    return here


def _last(log: MovableLog, place: TopicPartition, start: int, stop: int) -> InputRecord | None:
    found = last(log, *place, stop=stop) if start < stop else None
    return None if found is None or found.offset < start else found
