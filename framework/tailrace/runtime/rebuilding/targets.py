"""What is settled before a rebuild begins: where each task ends, and that what it needs is there.

A commit of the log is one step for all topics, so the last cuts below the ends of one commit are consistent with one
another: what a task had sent by then is in the inboxes up to the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.errors import OffsetGoneError, SnapshotMismatchError, UsageError
from tailrace.runtime.named_keys import named_keys
from tailrace.runtime.rebuilding.job import Request, Target
from tailrace.runtime.rebuilding.past import Past


class Settled(msgspec.Struct, frozen=True):
    """The targets, the ends of all topics as of the same commit, and which commit that was."""

    targets: tuple[Target, ...]
    ends: dict[str, list[int]]
    position: int
    notes: tuple[str, ...]


def settle(request: Request, past: Past) -> Settled:
    """Look where history ends, and refuse what cannot be done with it.

    Raises:
        UsageError: A key, an offset or a time makes no sense for this app or this log.
        SnapshotMismatchError: The app has never committed.
        OffsetGoneError: The log has deleted what is to be read.
    """
    plan = past.plan
    with past.uncleaned():
        position, ends = past.ends(_topics(past))
        targets: list[Target] = []
        for number in range(plan.partitions):
            found = past.committed(number, end=ends[plan.changelog_topic][number])
            targets.append(Target(number, found.cut, found.position))
    if all(one.cut is None for one in targets):
        raise SnapshotMismatchError(
            f"the app {plan.app!r} has never committed: there is no history to rebuild from",
            mend="Run it first.",
        )
    _check_keys(request, plan)
    _check_offsets(request, past)
    _check_times(request, past, targets)
    notes = tuple(_deleted(request, past, targets))
    return Settled(tuple(targets), ends, position, notes)


def _topics(past: Past) -> list[str]:
    plan, known = past.plan, past.log.topics()
    names = [
        *(one.name for one in plan.inputs),
        *plan.outputs,
        plan.changelog_topic,
        plan.tape_topic,
        plan.dead_letters_topic,
    ]
    return [name for name in dict.fromkeys(names) if name in known]


def _check_keys(request: Request, plan: Plan) -> None:
    try:
        named_keys(plan, request.keys)
    except ValueError as error:
        raise UsageError(str(error), mend="Write it as it stands in the events.") from None


def _check_offsets(request: Request, past: Past) -> None:
    plan, log = past.plan, past.log
    inputs = [one.name for one in plan.inputs]
    for topic, offsets in request.until_offsets.items():
        if topic not in inputs:
            raise UsageError(
                f"the app {plan.app!r} does not read {topic!r}", mend=f"It reads {', '.join(inputs)}."
            )
        for number, offset in offsets.items():
            if number >= plan.partitions:
                raise UsageError(
                    f"{topic!r} has no partition {number}", mend=f"It has 0 to {plan.partitions - 1}."
                )
            start, end = log.start_offset(topic, number), log.end_offset(topic, number)
            if not start <= offset <= end:
                raise UsageError(
                    f"offset {offset} of {topic!r} partition {number} is outside the log, which holds {start} to {end}",
                    mend="Name an offset that is there, or the end.",
                )


def _check_times(request: Request, past: Past, targets: list[Target]) -> None:
    cuts = [tape.decode_cut(one.cut) for one in targets if one.cut is not None]
    for said, reached, what in (
        (request.until_ms, [one.watermark for one in cuts], "watermark"),
        (request.until_clock_ms, [one.now for one in cuts], "clock"),
    ):
        if said is not None and said > max(reached):
            raise UsageError(
                f"the time {said} ms is outside the log: the highest {what} of the app's tasks is {max(reached)} ms",
                mend="Leave the limit out to rebuild up to the last commit.",
            )
    if request.until_ms is not None and request.until_ms < (first := _first_ms(past)):
        raise UsageError(
            f"the time {request.until_ms} ms is outside the log: its first record is of {first} ms",
            mend="Name a time within the log.",
        )


def _first_ms(past: Past) -> int:
    """The least timestamp of what the inputs begin with."""
    found: list[int] = []
    for one in past.plan.inputs:
        for number in range(past.plan.partitions):
            start, end = past.log.start_offset(one.name, number), past.log.end_offset(one.name, number)
            found += [
                first.timestamp_ms for first in past.source(number)(one.name, start, min(start + 1, end))[:1]
            ]
    return min(found, default=0)


def _deleted(request: Request, past: Past, targets: list[Target]) -> Iterator[str]:
    """What the log has deleted of the inputs: an error, or, where that is wanted, notes."""
    if request.base is not None:
        return
    for target in targets:
        if target.cut is None or tape.decode_cut(target.cut).base:
            continue
        number = target.partition
        for name, began in began_at(past, target).items():
            start = past.log.start_offset(name, number)
            if start <= began:
                continue
            if not request.go_on_after_deleted:
                raise OffsetGoneError(
                    f"the log has deleted offsets {began} to {start - 1}, which the rebuild begins with",
                    topic=name,
                    partition=number,
                    offset=began,
                    mend="Start from a snapshot (--from-snapshot), read an archive (--archive), or say that it is to go "
                    "on without them (--after-deleted): state and outputs then differ from the service's.",
                )
            yield f"offsets {began} to {start - 1} of {name} partition {number} are deleted, and left out"


def began_at(past: Past, target: Target) -> dict[str, int]:
    """Where a task began in each input when it began to live: by the first record of its tape."""
    record = next(past.tapes(target.partition, 1), None)
    if record is None or record.inputs is None:
        return {}
    taken = [0] * len(record.inputs)
    for code, *said in tape.causes_of(record.causes):
        if code == tape.RUN:
            taken[said[0]] += said[1]
    known = past.log.topics()
    return {
        name: end - count
        for name, end, count in zip(record.inputs, record.positions or (), taken, strict=True)
        if name in known
    }
