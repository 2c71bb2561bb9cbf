"""The settling of a rebuild along the tape: each task ends at its last commit, or at a limit before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import InputsChangedError, OptionError, SnapshotMismatchError
from tailrace.history.reading.beginnings import Beginning, check_tape_begins, taped_beginning
from tailrace.history.reading.limits import check_after_beginning
from tailrace.history.reading.replayable import BEFORE_SNAPSHOT, WITHOUT_DELETED, check_kept, gone
from tailrace.history.reading.stretches import first
from tailrace.history.rebuilding.job import Settled
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.request import Request
from tailrace.state.snapshots import Snapshot

_COUNTED_ALL = (
    "events, timers and outputs are counted as the service's tape has them, what is left out included"
)
_NOT_COMPARED = (
    "what the app sends to itself is taken as it was recorded: without the deleted records it cannot be compared with "
    "what this code sends. --order canonical reads what this code sends"
)


def settle_along_tape(
    request: Request, past: HistorySource, base: Snapshot | None, settled: Settled
) -> Settled:
    """Check that the tape, and what it names, can be replayed up to the last commits; add the notes."""
    plan = past.plan
    cuts = {one.partition: tape.decode_cut(one.cut) for one in settled.targets if one.cut is not None}
    if not cuts:
        raise SnapshotMismatchError(
            f"the app {plan.app!r} has never committed: there is no history to rebuild from",
            hint="Run it first, or use --order canonical, which needs no tape.",
        )
    _check_inputs(plan, [*cuts.values()])
    _check_time(request, past, [*cuts.values()])
    beginnings = [(taped_beginning(past, number, cut, base), cut) for number, cut in cuts.items()]
    for begun, _ in beginnings:
        at = begun.partition, begun.snapshot, begun.decoded
        check_after_beginning(plan, request.until, *at, asked=base is not None)
    notes = [*_deleted(request, past, beginnings)]
    notes += [_COUNTED_ALL] if notes else []
    notes += _begun_with(request, beginnings)
    notes += [_NOT_COMPARED] if request.source.after_deleted and own_inputs(plan) else []
    return replace(settled, notes=(*settled.notes, *notes))


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
        hint="Declare the former input again, or use --order canonical, which reads what the code declares "
        "now.",
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


def _deleted(
    request: Request, past: HistorySource, beginnings: list[tuple[Beginning, tape.Cut]]
) -> Iterator[str]:
    """Find deleted records of the inputs: return notes if the request accepts it, else raise an error."""
    for begun, cut in beginnings:
        number = begun.partition
        if begun.snapshot is not None:
            check_kept(past.log, number, begun.positions, cut.positions, "rebuild", BEFORE_SNAPSHOT)
            continue
        check_tape_begins(past, number)
        for name, began in begun.positions.items():
            start = past.log.start_offset(name, number)
            if start <= began or cut.positions.get(name, began) <= began:
                continue  # from where it has read nothing, it misses nothing
            if not request.source.after_deleted:
                raise gone(past.log, name, number, began, "rebuild", WITHOUT_DELETED)
            yield f"offsets {began} to {start - 1} of {name} partition {number} are deleted, and left out"


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
            "--order canonical runs it on all that is there"
        )
        if request.to.outputs != "none" and (left_out := sum(one.outputs for one in begun)):
            before = f"from before the snapshot {base}, of {many} {numbers}"
            yield f"not written: {counted(left_out, 'output')} {before}"
