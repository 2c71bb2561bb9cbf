"""Copies of topics: the same records at the same offsets, so all that refers to an offset stays right.

Theory. Positions in cuts and groups, causes on the tape, seeds of randomness, dead letters, snapshots and archives refer to offsets.
They need no translation if every record keeps its own. A partition is copied from where the target's ends::

    the target's partition              then
    has no records                      it begins where the source's begins, or later if history is left behind
    ends within the source's            the last record that both should have is compared, and the rest is appended
    ends behind the source's            the same, for a topic that other apps write, too, and which they continue on the target;
                                        refused for a topic that belongs to the app: it has run there
    has another record there            refused: it is another topic

The changelog is different. It is compacted, so its offsets mean nothing, but for one thing: a state folder or a snapshot that stands at
a position of it must find every later change behind that position. So the copy begins behind the end of the source, and has the
last value of each row, deletions included. A row that only an older copy has is deleted. A task's rows and its cut are one commit
under its transactional id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import AppMovedError, OffsetGoneError, TopicMismatchError
from tailrace.core.records import InputRecord, Output
from tailrace.history.changelog import Folded, beginning, fold, last_cut
from tailrace.history.cut_notes import moved_notes
from tailrace.history.left_inputs import left_headers
from tailrace.history.same_topics import noted_topics
from tailrace.history.stretches import first, last
from tailrace.history.upstream_watermarks import transactional_id
from tailrace.log.interface import MovableLog, Placer, Reader, Stretch, TopicPartition, TopicSettings

_AT_ONCE = 5_000
_ROWS_AT_ONCE = 20_000


class Copied(NamedTuple):
    """What was copied of a topic by this run."""

    topic: str
    partitions: int
    records: int
    begins: list[int]
    """The first offset of each partition on the target."""


class CopyStatus(NamedTuple):
    """How far a copy has come: offsets of all partitions together."""

    done: int
    all: int
    records: int


class TopicCopy:
    """Copies topics from one log to another: once, or again up to later ends. ``begins`` gives where a partition begins that has no
    records on the target yet; ``of_app`` tells the topics that belong to the app.

    Raises:
        TopicMismatchError, AppMovedError: A topic of the target has other settings or other records.
    """

    def __init__(
        self,
        source: MovableLog,
        target: MovableLog,
        placer: Placer,
        topics: Sequence[str],
        begins: Callable[[TopicPartition, int], int],
        of_app: Callable[[str], bool],
        tell: Callable[[CopyStatus], None] | None = None,
    ) -> None:
        self._source, self._target, self._placer, self._tell = source, target, placer, tell
        settings = source.topics()
        for topic in topics:
            _create(target, topic, settings[topic])
        ends = source.ends(topics).offsets
        self._positions = {
            place: _position(source, target, placer, place, end, begins(place, end), of_app(place.topic))
            for topic in topics
            for place, end in _places(topic, ends[topic])
        }
        self._counts = dict.fromkeys(topics, 0)

    def catch_up(self) -> None:
        """Copy up to the present ends of the source.

        Raises:
            OffsetGoneError: The source has deleted records that were to be copied next.
        """
        positions = self._positions
        found = self._source.ends(self._counts).offsets
        ends: dict[TopicPartition, int] = {}
        for topic, some in found.items():
            ends.update(_places(topic, some))
        left: list[TopicPartition] = [place for place in ends if positions[place] < ends[place]]
        reader = self._source.reader({place: positions[place] for place in left})
        try:
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
        finally:
            reader.close()

    def report(self) -> list[Copied]:
        """What was copied so far."""
        places = {topic: self._target.partitions(topic) for topic in self._counts}
        return [
            Copied(
                topic,
                many,
                self._counts[topic],
                [self._target.start_offset(topic, one) for one in range(many)],
            )
            for topic, many in places.items()
        ]

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


def _places(topic: str, ends: Sequence[int]) -> Iterator[tuple[TopicPartition, int]]:
    return ((TopicPartition(topic, number), end) for number, end in enumerate(ends))


def copy_changelog(
    plan: Plan,
    number: int,
    source: MovableLog,
    target: MovableLog,
    placer: Placer,
    end: int,
    left: Mapping[str, int],
) -> int:
    """Copy the state of a task. ``left``: where it has left inputs. Returns the number of records written: 0 if the target has the same
    state.

    Raises:
        OffsetGoneError: The source has deleted rows of the state.
    """
    place = TopicPartition(plan.changelog_topic, number)
    state = fold(source, place, beginning(source, place), end)
    before = fold(target, place, target.start_offset(*place))
    if is_same_state(state, before) or state.cut is None:
        return 0
    if target.end_offset(*place) < end:
        placer.append([Stretch(place, (), end)])
    gone = {row: None for row, value in before.rows.items() if value is not None and row not in state.rows}
    changed: dict[bytes, bytes | None] = {**gone, **state.rows}
    now_ms, some = time.time_ns() // 1_000_000, iter(changed.items())
    writer = target.writer(transactional_id(plan.app, number))
    try:
        while batch := list(islice(some, _ROWS_AT_ONCE)):
            writer.append([Output(place.topic, row, value, now_ms) for row, value in batch], number)
        headers = noted_topics(plan, target) + moved_notes(last_cut(source, place, end))
        headers += left_headers(target, left)
        writer.append([Output(place.topic, rows.CUT_ROW, state.cut, now_ms, headers)], number)
        writer.commit()
    finally:
        writer.close()
    return len(changed) + 1


def is_same_state(one: Folded, other: Folded) -> bool:
    """Whether two changelogs have the same rows and the same cut, byte for byte."""
    return one.cut == other.cut and live_rows(one) == live_rows(other)


def live_rows(folded: Folded) -> dict[bytes, bytes]:
    """The rows that are not deleted."""
    return {row: value for row, value in folded.rows.items() if value is not None}


def _create(target: MovableLog, topic: str, settings: TopicSettings) -> None:
    known = target.topics().get(topic)
    if known is None:
        target.create_topic(topic, settings)
    elif (known.partitions, known.compacted) != (settings.partitions, settings.compacted):
        raise TopicMismatchError(
            f"the target has the topic with {known}, the source with {settings}",
            topic=topic,
            hint="Keys would be spread in another way. Use another prefix or cluster, or delete the topic on the target.",
        )


def _position(
    source: MovableLog,
    target: MovableLog,
    placer: Placer,
    place: TopicPartition,
    end: int,
    begin: int,
    is_of_app: bool,
) -> int:
    """Where to continue a copy; see the head of this file."""
    here = target.end_offset(*place)
    if not here or (here <= begin and first(target, *place) is None):
        if begin:
            placer.begin_at(place, begin)
        return begin
    start = source.start_offset(*place)
    if here < start:
        raise OffsetGoneError(
            f"the source has deleted offsets {here} to {start - 1}, which the target does not have yet",
            topic=place.topic,
            partition=place.partition,
            offset=here,
            hint="Delete the topic on the target, and run the command again.",
        )
    shared = max(start, target.start_offset(*place)), min(here, end)
    if _last(source, place, *shared) != _last(target, place, *shared):
        raise AppMovedError(
            f"{place.topic!r} partition {place.partition} has another record before offset {shared[1]} on the target than on the source",
            hint="It is another topic of the same name. Use another prefix or cluster, or delete it on the target.",
        )
    if here > end and is_of_app:
        raise AppMovedError(
            f"{place.topic!r} partition {place.partition} ends at {end} on the source and at {here} on the target: the app has run there",
            hint="An app has one history. Delete its topics on the target to replace the history there.",
        )
    return min(here, end)


def _last(log: MovableLog, place: TopicPartition, start: int, stop: int) -> InputRecord | None:
    found = last(log, *place, stop=stop) if start < stop else None
    return None if found is None or found.offset < start else found
