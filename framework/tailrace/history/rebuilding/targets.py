"""Settles a rebuild: its order, where each task ends, and the check that the needed history is there.

A commit of the log is one step for all topics, so the last cuts below the ends of one commit are consistent
with one another: the messages that a task had sent by then are in the inboxes up to the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.stages import has_circle, own_inputs
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import InputsChangedError, OptionError, SnapshotMismatchError
from tailrace.history.provenance.judging import check_base
from tailrace.history.provenance.topics import check_history, note_of_topics, replaced_topics
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.app_topics import topics_of
from tailrace.history.reading.beginnings import Beginning, check_tape_begins, check_whole, taped_beginning
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.reading.replayable import (
    BEFORE_SNAPSHOT,
    WITHOUT_DELETED,
    check_after_beginning,
    check_kept,
    gone,
)
from tailrace.history.reading.stretches import first
from tailrace.history.reading.tape_records import last_version
from tailrace.history.rebuilding.failures import naming_stages
from tailrace.history.rebuilding.job import Settled, SettledOrder, Target
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.request import Request
from tailrace.history.rebuilding.stage_targets import settle_in_stages
from tailrace.log.interface import Ends, TopicPartition
from tailrace.state.snapshots import Snapshot, Snapshots


def settle(request: Request, past: HistorySource) -> Settled:
    """Find where history ends, and refuse requests that this history cannot fulfil.

    Raises:
        OptionError: A key, an offset or a time makes no sense for this app or this log.
        SnapshotMismatchError: The app has never committed, or the base cannot be continued from.
        OffsetGoneError: The log has deleted records that the rebuild needs.
        OtherHistoryError: An input or the tape was deleted and created again, and stages were not
        requested.
    """
    plan = past.plan
    try:
        named_keys(plan, request.keys)
    except ValueError as error:
        raise OptionError(str(error), hint="Write it as it stands in the events.") from None
    base = _base(request, past)
    if request.order != "stages":
        check_history(plan.app, past.log, plan.inputs)
    order, notes = _order(request, past)
    settled = msgspec.structs.replace(_last_commits(past, order, request), notes=notes)
    if base is not None:
        settled = msgspec.structs.replace(settled, base=base.manifest.id)
    if order == "stages":
        return settle_in_stages(request, past, base, settled)
    with naming_stages():
        return settle_along_tape(request, past, base, settled)


def _last_commits(past: HistorySource, order: SettledOrder, request: Request) -> Settled:
    """The last commits of all tasks as of one commit of the log, and the ends of all topics then. In stages no task may be within a
    drain there, which other code may divide otherwise. Topics that ``source.ends`` lacks, as another version reads them, end now.
    """
    plan, given = past.plan, request.source.ends
    with past.compaction_paused():
        read = topics_of(plan, past.log)
        topics = note_of_topics(past.log, read)

        def ends() -> Ends:
            if given is None:
                return past.ends(read)
            more = {} if {*read} <= given.offsets.keys() else past.ends(read).offsets
            return given._replace(offsets={**more, **given.offsets})

        is_free = order == "stages" and given is None and not request.limited
        (_, offsets), found = past.last_commits(ends, outside_drains=is_free)
    targets = [Target(number, one.cut, one.position) for number, one in enumerate(found)]
    targets = targets or [Target(number, None, None) for number in range(plan.partitions)]
    return Settled(order=order, targets=tuple(targets), ends=offsets, topics=topics)


def _base(request: Request, past: HistorySource) -> Snapshot | None:
    """The snapshot that the rebuild is to continue from, if one was requested."""
    if request.source.base is None:
        return None
    base = Snapshots(request.source.base, past.plan.app).open(request.source.base_id)
    # In an app that sends to itself, the other keys are run as well.
    check_whole(base, past.plan, () if own_inputs(past.plan) else request.keys)
    return base


def _order(request: Request, past: HistorySource) -> tuple[SettledOrder, tuple[str, ...]]:
    """The order to use, and the notes about it."""
    plan, log = past.plan, past.log
    if request.as_of_ms is not None:
        _check_as_of(request)
        return "stages", (
            f"as of {instant(request.as_of_ms)}: in stages, without events from after this time",
            *_replaced(past),
        )
    if request.order == "stages":
        return "stages", tuple(_replaced(past))
    if request.order == "tape":
        _check_strict(request)
        with naming_stages():
            AppHistory(plan, log)
        return "tape", ()
    if why := _why_in_stages(request, past):
        return "stages", (f"{why}: in stages", *_replaced(past))
    return "tape", ()


def _why_in_stages(request: Request, past: HistorySource) -> str:
    """Why a rebuild does not go along the tape if its order is not given; empty if it does."""
    plan, log = past.plan, past.log
    if plan.tape_topic not in log.topics():
        return "the app has never run on this log, so there is no tape"
    places = [TopicPartition(plan.tape_topic, number) for number in range(plan.partitions)]
    if request.source.base is None and any(log.start_offset(*one) for one in places):
        return "the beginning of the tape is deleted"
    for given, option in _only_in_stages(request):
        if given:
            return f"{option} is given"
    others = {last_version(log, one) for one in places} - {"", plan.version}
    if others and not has_circle(plan):
        return f"the tape was written by version {max(others)!r}, and this code is version {plan.version!r}"
    return ""


def _only_in_stages(request: Request) -> tuple[tuple[bool, str], ...]:
    return (
        (request.failures.on_error != "stop", f"--on-error {request.failures.on_error}"),
        (request.source.after_deleted, "--after-deleted"),
        (request.execution.split > 1, "--split"),
    )


def _check_strict(request: Request) -> None:
    """Refuse what the tape, which allows no difference, does not go with."""
    for given, option in _only_in_stages(request):
        if given:
            raise OptionError(
                f"--order tape does not go with {option}: along the tape, everything is as it was recorded",
                hint=f"Leave {option} out, or rebuild with --order stages.",
            )


def _check_as_of(request: Request) -> None:
    """Refuse what does not go with a point in event time."""
    for given, option, why in (
        (request.order == "tape", "--order tape", "the tape goes by the order of arrival"),
        (request.until.any, "another limit", "it would end before the time"),
        (request.source.base is not None, "--from-snapshot", "its state may hold events from after the time"),
    ):
        if given:
            raise OptionError(f"--as-of does not go with {option}: {why}", hint=f"Leave {option} out.")


def _replaced(past: HistorySource) -> Iterator[str]:
    """Notes about topics of which the app has read another one of the same name."""
    plan = past.plan
    for topic in replaced_topics(plan.app, past.log, (one.name for one in plan.inputs)):
        yield (
            f"{topic} was deleted and created again since the service has read it: this is the state that "
            "follows from what the new one holds"
        )


# --- along the tape: each task ends at its last commit, or at a limit before it


def settle_along_tape(
    request: Request, past: HistorySource, base: Snapshot | None, settled: Settled
) -> Settled:
    """Check that the tape, and what it names, can be replayed up to the last commits; add the notes."""
    plan = past.plan
    cuts = {one.partition: tape.decode_cut(one.cut) for one in settled.targets if one.cut is not None}
    if not cuts:
        raise SnapshotMismatchError(
            f"the app {plan.app!r} has never committed: there is no history to rebuild from",
            hint="Run it first, or use --order stages, which needs no tape.",
        )
    _check_inputs(plan, [*cuts.values()])
    _check_time(request, past, [*cuts.values()])
    if base is not None:
        for one in settled.targets:
            check_base(plan, past.log, base, one.partition, one.cut, taped=True)
    beginnings = [(taped_beginning(past, number, cut, base), cut) for number, cut in cuts.items()]
    for begun, _ in beginnings:
        at = begun.partition, begun.snapshot, begun.decoded
        check_after_beginning(plan, request.until, *at, asked=base is not None)
    _check_deleted(past, beginnings)
    return replace(settled, notes=(*settled.notes, *_begun_with(request, beginnings)))


def _check_inputs(plan: Plan, cuts: Sequence[tape.Cut]) -> None:
    """Refuse the tape of an app that has read undeclared inputs: their records have no handler."""
    inputs = [one.name for one in plan.inputs]
    before = dict.fromkeys(name for cut in cuts for name, position in cut.positions.items() if position)
    if not (dropped := sorted(before.keys() - {*inputs})):
        return
    had = {name for cut in cuts for name in cut.positions}
    new = [name for name in inputs if name not in had]
    now = f" and now reads {', '.join(map(repr, new))}" if new else ""
    raise InputsChangedError(
        f"the app {plan.app!r} no longer reads {', '.join(map(repr, dropped))}{now}, unlike when it last "
        "committed",
        hint="Declare the former input again, or use --order stages, which reads what the code declares now.",
    )


def _check_time(request: Request, past: HistorySource, cuts: Sequence[tape.Cut]) -> None:
    until_ms = request.until.watermark_ms
    if until_ms is None:
        return
    highest_ms = max(_first_level(past.plan, one) for one in cuts)
    if until_ms > highest_ms:
        raise OptionError(
            f"the time {instant(until_ms)} is outside the log: the highest watermark of the app's tasks is "
            f"{instant(highest_ms)}",
            hint="Leave the limit out to rebuild up to the last commit.",
        )
    if until_ms < (first_ms := _first_ms(past)):
        raise OptionError(
            f"the time {instant(until_ms)} is outside the log: its first record is of {instant(first_ms)}",
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


def _check_deleted(past: HistorySource, beginnings: list[tuple[Beginning, tape.Cut]]) -> None:
    """Raises OffsetGoneError: the log has deleted records that the tape names."""
    for begun, cut in beginnings:
        number = begun.partition
        if begun.snapshot is not None:
            check_kept(past.log, number, begun.positions, cut.positions, "rebuild", BEFORE_SNAPSHOT)
            continue
        check_tape_begins(past, number)
        for name, began in begun.positions.items():
            # from where it has read nothing, it misses nothing
            if past.log.start_offset(name, number) > began < cut.positions.get(name, began):
                raise gone(past.log, name, number, began, "rebuild", WITHOUT_DELETED)


def _begun_with(request: Request, beginnings: list[tuple[Beginning, tape.Cut]]) -> Iterator[str]:
    """Notes that the tape begins with a snapshot, and what this means for the code and the outputs."""
    if request.source.base is not None:
        return
    for base in sorted({cut.base for _, cut in beginnings} - {""}):
        begun = [one for one, cut in beginnings if cut.base == base]
        numbers = ", ".join(str(one.partition) for one in begun)
        many = "partitions" if "," in numbers else "partition"
        yield (
            f"{many} {numbers} began with the snapshot {base}: this code is not run on what came before it; "
            "--order stages runs it on all that is there"
        )
        if request.to.outputs != "none" and (left_out := sum(one.outputs for one in begun)):
            before = f"from before the snapshot {base}, of {many} {numbers}"
            yield f"not written: {counted(left_out, 'output')} {before}"
