"""The settling of a rebuild: where each task ends, and the check that the history it needs is there.

A commit of the log is one step for all topics, so the last cuts below the ends of one commit are consistent with one
another: the messages that a task had sent by then are in the inboxes up to the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import (
    InputsChangedError,
    OptionError,
    SnapshotMismatchError,
    UnknownTopicError,
)
from tailrace.core.suggestions import did_you_mean
from tailrace.history.reading.app_topics import topics_of
from tailrace.history.reading.beginnings import Beginning, check_tape_begins, taped_beginning
from tailrace.history.reading.end_offsets import (
    behind_last_commit,
    check_after_beginning,
    check_end_offsets,
    check_forwarded,
)
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.reading.replayable import check_kept, gone, until_when
from tailrace.history.reading.same_topics import check_history, note_of_topics, replaced_topics
from tailrace.history.reading.stretches import first
from tailrace.history.reading.upstream_watermarks import without_watermark
from tailrace.history.rebuilding.job import Target
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.request import Request
from tailrace.log.interface import Log
from tailrace.state.snapshots import Snapshot, Snapshots


class Settled(msgspec.Struct, frozen=True):
    """The order, the targets, the ends of all topics as of one commit, and the position of this commit.

    In canonical order tasks end at the ends of their inputs; their targets only describe the service's own last commits.
    """

    order: Literal["tape", "canonical"]
    together: bool
    targets: tuple[Target, ...]
    ends: dict[str, list[int]]
    position: int
    notes: tuple[str, ...]
    finish: bool = False
    """In canonical order: end the inputs, as the service's last run did."""
    topics: bytes = b""
    """The ids of the topics that are read, where the log has ids."""


def settle(request: Request, past: HistorySource) -> Settled:
    """Find where history ends, and refuse requests that this history cannot fulfil.

    Raises:
        OptionError: A key, an offset or a time makes no sense for this app or this log.
        SnapshotMismatchError: The app has never committed, or its inbox does not hold its whole past.
        OffsetGoneError: The log has deleted records that the rebuild needs.
        TopicReplacedError: An input or the tape was deleted and created again, and canonical order was not requested.
    """
    plan = past.plan
    if request.order != "canonical":
        check_history(plan.app, past.log, plan.inputs)
    order, why = _order(request, past)
    why += tuple(_replaced(past)) if order == "canonical" else ()
    with past.compaction_paused():
        read = topics_of(plan, past.log)
        topics = note_of_topics(past.log, read)
        position, ends = past.ends(read)
        targets: list[Target] = []
        for number in range(plan.partitions):
            if plan.changelog_topic not in ends:
                targets.append(Target(number, None, None))
                continue
            found = past.committed(number, end=ends[plan.changelog_topic][number])
            targets.append(Target(number, found.cut, found.position))
    if order == "canonical":
        together = bool(own_inputs(plan)) and not _of_a_part(request)
        if not together:
            _check_inbox(plan, targets)
        settled = Settled(order, together, tuple(targets), ends, position, why, topics=topics)
        return _untaped(request, past, settled)
    if all(one.cut is None for one in targets):
        raise SnapshotMismatchError(
            f"the app {plan.app!r} has never committed: there is no history to rebuild from",
            hint="Run it first.",
        )
    _check_inputs(plan, targets)
    _check_keys(request, plan)
    check_end_offsets(plan, past.log, request.until.offsets)
    _check_times(request, past, targets)
    cuts = {one.partition: tape.decode_cut(one.cut) for one in targets if one.cut is not None}
    check_forwarded(plan, request.until, cuts)
    asked = _asked(request, past)
    beginnings = [(taped_beginning(past, number, cut, asked), cut) for number, cut in cuts.items()]
    for begun, _ in beginnings:
        at = begun.partition, begun.snapshot, begun.decoded
        check_after_beginning(plan, request.until, *at, asked=asked is not None)
    notes = tuple(_deleted(request, past, beginnings))
    if notes:
        notes += (
            "events, timers and outputs are counted as the service's tape has them, what is left out included",
        )
    notes += tuple(_begun_with(request, beginnings))
    if request.partial and own_inputs(plan):
        notes += (_NOT_COMPARED,)
    if request.source.archive is None:
        notes += tuple(until_when(plan, past.log))
    for number, cut in cuts.items():
        notes += tuple(behind_last_commit(plan, request.until, number, cut))
    return Settled(order, False, tuple(targets), ends, position, why + notes, topics=topics)


def _replaced(past: HistorySource) -> Iterator[str]:
    """Notes about topics of which the app has read another one of the same name."""
    plan = past.plan
    for topic in replaced_topics(plan.app, past.log, (one.name for one in plan.inputs)):
        yield (
            f"{topic} was deleted and created again since the service has read it: this is the state that follows from what the new "
            "one holds"
        )


def _asked(request: Request, past: HistorySource) -> Snapshot | None:
    """The snapshot that the rebuild is to continue from, if one was requested."""
    if request.source.base is None:
        return None
    return Snapshots(request.source.base, past.plan.app).open(request.source.base_id)


def _begun_with(request: Request, beginnings: list[tuple[Beginning, tape.Cut]]) -> Iterator[str]:
    """Notes that the tape begins with a snapshot, and what this means for changed code and for the outputs."""
    if request.source.base is not None:
        return
    for base in sorted({cut.base for _, cut in beginnings} - {""}):
        begun = [one for one, cut in beginnings if cut.base == base]
        numbers = ", ".join(str(one.partition) for one in begun)
        many = "partitions" if "," in numbers else "partition"
        yield (
            f"{many} {numbers} began with the snapshot {base}: this code is not run on what came before it; "
            "--order canonical runs it on all that is there"
        )
        if request.to.outputs != "none" and (left_out := sum(one.outputs for one in begun)):
            yield f"not written: {counted(left_out, 'output')} from before the snapshot {base}, of {many} {numbers}"


def _check_inbox(plan: Plan, targets: list[Target]) -> None:
    """Refuse canonical order for a task that was started from a snapshot: its earlier messages are in no inbox."""
    for one in targets if plan.inbox_topic is not None else ():
        base = "" if one.cut is None else tape.decode_cut(one.cut).base
        if base:
            raise SnapshotMismatchError(
                f"the app {plan.app!r} was started from the snapshot {base}, so its inbox does not hold the messages of its "
                "whole past, which canonical order would have to deliver",
                hint="Rebuild it along its tape (--order tape), or rebuild the app that the snapshot was made of.",
            )


def _order(request: Request, past: HistorySource) -> tuple[Literal["tape", "canonical"], tuple[str, ...]]:
    """The order to use, and the notes about it."""
    plan, log = past.plan, past.log
    if request.order != "auto":
        return request.order, ()
    if plan.tape_topic not in log.topics():
        return "canonical", ("the app has never run on this log: in canonical order, as there is no tape",)
    if request.source.base is None and any(
        log.start_offset(plan.tape_topic, n) for n in range(plan.partitions)
    ):
        return "canonical", ("the beginning of the tape is deleted: in canonical order",)
    return "tape", ()


def _untaped(request: Request, past: HistorySource, settled: Settled) -> Settled:
    """The checks and notes for a rebuild without a tape."""
    plan, log = past.plan, past.log
    own = own_inputs(plan)
    _check_keys(request, plan)
    check_end_offsets(plan, past.log, request.until.offsets)
    asked = _asked(request, past)
    for entry in () if asked is None else asked.manifest.tasks:
        cut = tape.decode_cut(entry.cut) if entry.cut else None
        check_after_beginning(plan, request.until, entry.partition, asked, cut, asked=True)
    notes: list[str] = []
    for one in plan.inputs:
        if settled.together and one.name in own:
            continue
        if one.name not in settled.ends and not one.is_inbox:
            raise UnknownTopicError(
                "the log has no such topic, and the app reads it",
                topic=one.name,
                hint=did_you_mean(
                    one.name,
                    log.topics(),
                    "Check the path of the log. If the code has renamed the input, declare its former topic.",
                ),
            )
        if (found := len(settled.ends.get(one.name, ()))) not in (0, plan.partitions):
            raise InputsChangedError(
                f"{one.name!r} has {found} partitions, the app {plan.app!r} has {plan.partitions}",
                hint="Give the app the input's number.",
            )
        for number in (
            range(plan.partitions) if one.name in settled.ends and request.source.base is None else ()
        ):
            start = log.start_offset(one.name, number)
            if start and not request.source.after_deleted:
                raise gone(log, one.name, number, 0, "rebuild", _WITHOUT)
            if start:
                notes.append(
                    f"offsets 0 to {start - 1} of {one.name} partition {number} are deleted, and left out"
                )
    if settled.together:
        notes.append(
            "what the app sends to itself comes from this code, and not from what is recorded: all partitions run as one"
        )
    elif own:
        if plan.inbox_topic is not None and not any(settled.ends.get(plan.inbox_topic, [])):
            raise OptionError(
                "the messages of the app are not recorded in this log, so all partitions have to run as one",
                hint="Rebuild all keys, with a limit by offsets at most (no --key, --until or --until-clock).",
            )
        notes.append(
            "what the app sends to itself is taken as it was recorded, as only a part is rebuilt: it is not what this code "
            "would send, if the code has changed"
        )
    if not request.limited:
        notes += _held_back(plan, log)
    return msgspec.structs.replace(
        settled, notes=(*settled.notes, *notes), finish=not request.limited and _has_ended(settled)
    )


def _held_back(plan: Plan, log: Log) -> Iterator[str]:
    """Notes about tasks of other apps for which the rebuild waits at the end of its history."""
    for one in plan.inputs:
        if one.own or one.watermark != "upstream" or not (waits_for := without_watermark(log, one.name)):
            continue
        named = ", ".join(waits_for[:_SHOWN]) + (", ..." if len(waits_for) > _SHOWN else "")
        yield (
            f"{one.name}: {named} had no watermark at the end of this history (a task without records has none after a start, until "
            "it is idle), so event time waits there: timers that a service has fired before may be pending here"
        )


def _has_ended(settled: Settled) -> bool:
    """Whether the service's last run was a bounded one that reached its end in all tasks."""
    cuts = [None if one.cut is None else tape.decode_cut(one.cut) for one in settled.targets]
    return all(cut is not None and {*cut.ended_operators} >= {*(cut.operators or ())} for cut in cuts)


def _of_a_part(request: Request) -> bool:
    """Whether only some keys are rebuilt, or only up to a limit that each task reaches on its own."""
    return request.until.watermark_ms is not None or request.until.clock_ms is not None or bool(request.keys)


def _check_inputs(plan: Plan, targets: list[Target]) -> None:
    """Refuse the tape of an app that has read from inputs which the code does not declare: their records have no handler."""
    inputs = [one.name for one in plan.inputs]
    cuts = [tape.decode_cut(one.cut) for one in targets if one.cut is not None]
    before = dict.fromkeys(name for cut in cuts for name, position in cut.positions.items() if position)
    if not (gone := sorted(before.keys() - {*inputs})):
        return
    had = {name for cut in cuts for name in cut.positions}
    new = [name for name in inputs if name not in had]
    raise InputsChangedError(
        f"the app {plan.app!r} no longer reads {', '.join(map(repr, gone))}{_now_reads(new)}, unlike when it last committed",
        hint="Declare the former input again, or use --order canonical, which reads what the code declares now.",
    )


def _now_reads(new: list[str]) -> str:
    return f" and now reads {', '.join(map(repr, new))}" if new else ""


def _check_keys(request: Request, plan: Plan) -> None:
    try:
        named_keys(plan, request.keys)
    except ValueError as error:
        raise OptionError(str(error), hint="Write it as it stands in the events.") from None


def _check_times(request: Request, past: HistorySource, targets: list[Target]) -> None:
    cuts = [tape.decode_cut(one.cut) for one in targets if one.cut is not None]
    for said, reached, what in (
        (request.until.watermark_ms, [_first_level(past.plan, one) for one in cuts], "watermark"),
        (request.until.clock_ms, [one.now for one in cuts], "clock"),
    ):
        if said is not None and said > max(reached):
            raise OptionError(
                f"the time {said} ms is outside the log: the highest {what} of the app's tasks is {max(reached)} ms",
                hint="Leave the limit out to rebuild up to the last commit.",
            )
    if request.until.watermark_ms is not None and request.until.watermark_ms < (first_ms := _first_ms(past)):
        raise OptionError(
            f"the time {request.until.watermark_ms} ms is outside the log: its first record is of {first_ms} ms",
            hint="Name a time within the log.",
        )


def _first_level(plan: Plan, cut: tape.Cut) -> int:
    """See ``Watermarks.of_first_level``."""
    marks = Watermarks(plan)
    marks.resume(cut)
    return marks.of_first_level


def _first_ms(past: HistorySource) -> int:
    """The least timestamp of the first records of the inputs."""
    found: list[int] = []
    for one in past.plan.inputs:
        for number in range(past.plan.partitions):
            record = first(past.log, one.name, number)
            found += [] if record is None else [record.timestamp_ms]
    return min(found, default=0)


def _deleted(
    request: Request, past: HistorySource, beginnings: list[tuple[Beginning, tape.Cut]]
) -> Iterator[str]:
    """Find records of the inputs that the log has deleted: raise an error, or, if the request accepts it, return notes."""
    for begun, cut in beginnings:
        number = begun.partition
        if begun.snapshot is not None:
            check_kept(past.log, number, begun.positions, cut.positions, "rebuild", f"{_ANEW}.")
            continue
        check_tape_begins(past, number)
        for name, began in begun.positions.items():
            start = past.log.start_offset(name, number)
            if start <= began or cut.positions.get(name, began) <= began:
                continue  # from where it has read nothing, it misses nothing
            if not request.source.after_deleted:
                raise gone(past.log, name, number, began, "rebuild", _WITHOUT)
            yield f"offsets {began} to {start - 1} of {name} partition {number} are deleted, and left out"


_ANEW = "Read an archive (--archive), start from a newer snapshot (--from-snapshot)"
_NOT_COMPARED = (
    "what the app sends to itself is taken as it was recorded, as only a part is rebuilt: it is not compared with what this "
    "code sends"
)
_SHOWN = 5
"""Tasks named in a note."""
_WITHOUT = (
    f"{_ANEW}, or continue without them (--after-deleted): state and outputs then differ from the service's."
)
