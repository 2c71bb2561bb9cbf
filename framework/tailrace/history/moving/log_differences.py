"""Compares the two logs of a move: whether an app finds on the target exactly what it had on the source.

    records     of every topic that was copied, at the same offsets, field by field, as far as both logs have them
    state       of every task: the rows of the folded changelog, timers included, and the cut: positions, watermarks, counts
    messages    those between a task's position and the end of its inbox; they are records of a topic, and counted apart
    positions   of the app's group; an expired one counts as equal, since the cut has it. And where inputs were left
    watermarks  the last publication of each publisher

If the app has run on the target since, records are compared up to the end of the source, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple, TypeAlias

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.records import InputRecord
from tailrace.history.app_topics import begun_group
from tailrace.history.changelog import fold
from tailrace.history.left_inputs import left_by
from tailrace.history.moving.copying import live_rows
from tailrace.history.stretches import batches
from tailrace.log.interface import MovableLog, TopicPartition

_MOST = 10
Left: TypeAlias = dict[int, dict[str, int]]
"""Where the tasks of an app have left inputs, by partition and topic."""


class Compared(NamedTuple):
    """What was compared. ``differences`` has a line for each of the first differences."""

    records: int = 0
    rows: int = 0
    messages: int = 0
    has_run: bool = False
    """The app has run on the target since, so only records were compared."""
    differences: tuple[str, ...] = ()


def compare_logs(
    plans: Sequence[Plan],
    source: MovableLog,
    target: MovableLog,
    topics: Sequence[str],
    lefts: Sequence[Left],
) -> Compared:
    """Compare the two logs. ``lefts``: for each plan, the positions in inputs that were left. Reads everything that is compared."""
    found, counted = list[str](), [0, 0, 0]
    ends = source.ends([*topics, *(plan.changelog_topic for plan in plans)]).offsets
    for topic in topics:
        for number, end in enumerate(ends[topic]):
            found += _records(source, target, TopicPartition(topic, number), end, counted)
    has_run = any(
        target.end_offset(plan.tape_topic, number) > ends[plan.tape_topic][number]
        for plan in plans
        for number in range(plan.partitions)
    )
    if not has_run:
        for plan, left in zip(plans, lefts, strict=True):
            for number in range(plan.partitions):
                found += _state(plan, number, source, target, ends, counted)
                found += _inputs_left(plan, number, target, left.get(number, {}))
            found += _offsets(plan, source, target)
            found += _watermarks(plan, source, target, topics)
    records, rows, messages = counted
    return Compared(records, rows, messages, has_run, tuple(found[:_MOST]))


def _records(
    source: MovableLog, target: MovableLog, place: TopicPartition, end: int, counted: list[int]
) -> Iterator[str]:
    start = max(source.start_offset(*place), target.start_offset(*place))
    stop = min(end, target.end_offset(*place))
    if stop < end:
        yield f"{place.topic} partition {place.partition} ends at {stop} on the target, and at {end} on the source"
    if start >= stop:
        return
    both = (chain.from_iterable(batches(log, *place, start, stop)) for log in (source, target))
    for one, other in zip_longest(*both):
        counted[0] += 1
        if one != other:
            yield f"{place.topic} partition {place.partition}: {_shown(one)} on the source, {_shown(other)} on the target"
            return


def _shown(record: InputRecord | None) -> str:
    return "no record" if record is None else f"the record at offset {record.offset} with key {record.key!r}"


def _state(
    plan: Plan,
    number: int,
    source: MovableLog,
    target: MovableLog,
    ends: dict[str, list[int]],
    counted: list[int],
) -> Iterator[str]:
    place = TopicPartition(plan.changelog_topic, number)
    one = fold(source, place, source.start_offset(*place), ends[place.topic][number])
    other = fold(target, place, target.start_offset(*place))
    said = f"{plan.app} partition {number}"
    if one.cut != other.cut:
        yield f"{said}: the cut (positions, watermarks, counts) differs"
    rows, others = live_rows(one), live_rows(other)
    counted[1] += len(rows)
    if rows != others:
        differing = [row for row in rows.keys() | others.keys() if rows.get(row) != others.get(row)]
        yield f"{said}: {len(differing)} rows of {len(rows)} differ, the first of them {min(differing)!r}"
    if plan.inbox_topic is not None and one.cut is not None:
        at = tape.decode_cut(one.cut).positions.get(plan.inbox_topic, 0)
        counted[2] += sum(
            map(len, batches(source, plan.inbox_topic, number, at, ends[plan.inbox_topic][number]))
        )


def _offsets(plan: Plan, source: MovableLog, target: MovableLog) -> Iterator[str]:
    places = [TopicPartition(one.name, number) for one in plan.inputs for number in range(plan.partitions)]
    for group in (plan.app, begun_group(plan.app)):
        here = target.committed_offsets(group, places)
        for place, offset in source.committed_offsets(group, places).items():
            if here.get(place, offset) != offset:
                yield (
                    f"{group}: the group is at offset {offset} of {place.topic} partition {place.partition} on the source, at "
                    f"{here[place]} on the target"
                )


def _inputs_left(plan: Plan, number: int, target: MovableLog, left: Mapping[str, int]) -> Iterator[str]:
    here = left_by(plan, target, number) if left else {}
    for name, at in left.items():
        if here.get(name) != at:
            yield (
                f"{plan.app} partition {number}: {name!r} was left at offset {at} on the source, and at "
                f"{here.get(name, 'no offset')} on the target"
            )


def _watermarks(plan: Plan, source: MovableLog, target: MovableLog, topics: Sequence[str]) -> Iterator[str]:
    here = target.publications()
    for (topic, publisher), watermark_ms in source.publications().items():
        if publisher.rpartition("-")[0] != plan.app or topic.partition("#")[0] not in topics:
            continue
        if (topic, publisher) not in here or here[topic, publisher] != watermark_ms:
            yield (
                f"{topic}: {publisher} has published {watermark_ms} on the source, and "
                f"{here.get((topic, publisher), 'nothing')} on the target"
            )
