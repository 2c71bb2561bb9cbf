"""Settles a rebuild in canonical order: where each task ends.

with a limit            there, or at the end of its inputs
the app has run         at the service's last commit, so that the snapshot can replace the service's state while
                        producers write. An input that the service has not read: at its end
it has never run        at the end of its inputs
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from tailrace.core.counting import counted, listed
from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.rounds import rounds_of, whole_because
from tailrace.core.errors import InputsChangedError, OptionError, SnapshotMismatchError, UnknownTopicError
from tailrace.core.suggestions import did_you_mean
from tailrace.history.dead_letters.redriving import open_letters
from tailrace.history.reading.beginnings import check_not_edited
from tailrace.history.reading.replayable import WITHOUT_DELETED, check_after_beginning, gone
from tailrace.history.reading.upstream_watermarks import without_watermark
from tailrace.history.rebuilding.job import Settled, Target
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.request import Request
from tailrace.log.interface import Log
from tailrace.state.snapshots import Snapshot

_SHOWN = 5
_AT_ENDS = 100
"""Offsets that are read at once, at both ends of an input."""
"""Tasks named in a note."""
_DELIVERED = "what the app sends to itself comes from this code, and not from what is recorded: "


def settle_canonical(
    request: Request, past: HistorySource, base: Snapshot | None, settled: Settled
) -> Settled:
    """Check that the inputs can be read from their beginning, or from the base; add the notes."""
    plan, log = past.plan, past.log
    own = own_inputs(plan)
    if own:
        _check_part(request, plan)
    if not request.limited:
        settled = replace(settled, ends=_last_positions(past, base, settled, own))
    if own and base is not None:
        _check_in_flight(base, plan, settled)
    for entry in () if base is None else base.manifest.tasks:
        cut = tape.decode_cut(entry.cut) if entry.cut else None
        check_after_beginning(plan, request.until, entry.partition, base, cut, asked=True)
    notes = list(settled.notes)
    for target in settled.targets if base is None else ():
        notes += [said for said in check_not_edited(past, target.partition, target.cut) if said not in notes]
    for one in plan.inputs:
        if one.name not in own:
            _check_input(one, plan, log, settled)
            notes += _deleted(one, request, log, settled)
            if (topic := log.topics().get(one.name)) is not None and topic.compacted:
                notes.append(
                    f"{one.name} is compacted: records that it no longer has are left out, and the state may "
                    "differ from that of a service that has read them"
                )
    rounds = 0
    if own:
        whole = _whole_because(request, base) or whole_because(plan)
        rounds = 0 if whole else 1 + max(rounds_of(plan).values())
        notes.append(
            _DELIVERED
            + (f"all partitions run as one ({whole})" if whole else f"in {rounds} rounds along the graph")
        )
    notes += _letters(plan, log)
    if not request.limited:
        notes += _held_back(plan, log)
    finish = not request.limited and _has_ended(settled.targets)
    return replace(
        settled,
        notes=tuple(notes),
        clock_ms=time.time_ns() // 1_000_000,
        delivers_sends=bool(own),
        finish=finish,
        rounds=rounds,
        idle=tuple(_idle_at_end(past, settled)) if rounds and not finish and request.as_of_ms is None else (),
    )


def _letters(plan: Plan, log: Log) -> Iterator[str]:
    """A note that redriving the open dead letters would handle their records twice."""
    if plan.dead_letters_topic in log.topics() and (count := sum(1 for _ in open_letters(log, plan.app))):
        yield (
            f"records of {counted(count, 'open dead letter')} are handled in their places. After a service has started from "
            f"this snapshot, do not redrive them: tailrace dead-letters drop {plan.app}"
        )


def _whole_because(request: Request, base: Snapshot | None) -> str:
    """Why this request of an app that sends to itself cannot be run in rounds, as text. Empty if it can be."""
    for wanted, why in (
        (base is not None, "it continues from a snapshot"),
        (request.until.any, "it stops at an offset"),
        (request.source.after_deleted, "a part of the log is deleted"),
    ):
        if wanted:
            return why
    return ""


def _idle_at_end(past: HistorySource, settled: Settled) -> Iterator[tuple[str, int]]:
    """The inputs that are idle from their ends on; see ``core.engine.rounds``."""
    ended: dict[tuple[InputPlan, int], int] = {}
    begun: list[int] = []
    for one in past.plan.inputs:
        is_outside = not one.is_inbox and one.name not in own_inputs(past.plan)
        for number, end in enumerate(settled.ends[one.name] if is_outside else ()):
            read, places = past.source(number), range(past.log.start_offset(one.name, number), end, _AT_ENDS)
            for found in (
                next((some for at in way if (some := read(one.name, at, min(at + _AT_ENDS, end)))), ())
                for way in (places, reversed(places))
            ):
                begun += [record.timestamp_ms for record in found[:1]]
                ended[one, number] = found[-1].timestamp_ms if found else NO_WATERMARK
    for place, at in ended.items():
        since_ms = min(begun, default=0) if at == NO_WATERMARK else at
        if max(ended.values()) - since_ms >= place[0].idle_after_ms:
            yield place[0].name, place[1]


def _last_positions(
    past: HistorySource, base: Snapshot | None, settled: Settled, delivered: Collection[str]
) -> dict[str, list[int]]:
    """The ends of the topics, in inputs from outside as of the service's last commits. Not before a base. What was redriven by now counts,
    handled or not: the rebuild handles its original, or has to handle it.
    """
    cuts = [None if one.cut is None else tape.decode_cut(one.cut).positions for one in settled.targets]
    read = {name for cut in cuts if cut is not None for name in cut} - {*delivered, past.plan.inbox_topic}
    begun = [_positions_in(base, number) for number in range(past.plan.partitions)]
    found = dict(settled.ends)
    for name in read & found.keys() & {one.name for one in past.plan.inputs}:
        starts = [
            (cut or {}).get(name, past.log.start_offset(name, number)) for number, cut in enumerate(cuts)
        ]
        found[name] = [
            min(end, max(at, before.get(name, 0)))
            for at, before, end in zip(starts, begun, found[name], strict=True)
        ]
    return found


def _positions_in(base: Snapshot | None, number: int) -> Mapping[str, int]:
    cut = b"" if base is None else base.manifest.task(number).cut
    return tape.decode_cut(cut).positions if cut else {}


def _check_part(request: Request, plan: Plan) -> None:
    """Refuse parts of an app that sends to itself which cannot be separated from the whole: all its tasks run as one."""
    if request.until.watermark_ms is not None:
        raise OptionError(
            f"the app {plan.app!r} sends records to itself, and --until stops each partition at a record of its own: "
            "what the others had sent it by then is not known in canonical order",
            hint="Use --as-of with the time: it goes by event time, and includes what was sent before.",
        )
    if request.keys and request.to.outputs != "none":
        raise OptionError(
            f"the app {plan.app!r} sends records to itself, so in canonical order all keys are run, and the outputs of "
            "some keys cannot be separated from the others'",
            hint="Leave out --outputs, or --key.",
        )


def _check_in_flight(base: Snapshot, plan: Plan, settled: Settled) -> None:
    """Refuse a base without ends: only these tell which of its own records the app had not read yet."""
    if not base.manifest.ends and any(any(settled.ends.get(name, ())) for name in own_inputs(plan)):
        raise SnapshotMismatchError(
            f"the snapshot {base.manifest.id} was stopped by a limit, and does not tell what the app had "
            "under way to itself there: in canonical order nobody would send that again",
            hint="Continue from a snapshot without a limit, or rebuild from the beginning.",
        )


def _check_input(one: InputPlan, plan: Plan, log: Log, settled: Settled) -> None:
    """Check that the log has an input, with the partitions of the app."""
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


def _deleted(one: InputPlan, request: Request, log: Log, settled: Settled) -> Iterator[str]:
    """Find deleted records of an input: raise an error, or, if the request accepts it, return notes."""
    if one.name not in settled.ends or request.source.base is not None or one.is_inbox:
        return
    for number in range(len(settled.ends[one.name])):
        start = log.start_offset(one.name, number)
        if start and not request.source.after_deleted:
            raise gone(log, one.name, number, 0, "rebuild", WITHOUT_DELETED)
        if start:
            yield f"offsets 0 to {start - 1} of {one.name} partition {number} are deleted, and left out"


def _held_back(plan: Plan, log: Log) -> Iterator[str]:
    """Notes about tasks of other apps for which the rebuild waits at the end of its history."""
    for one in plan.inputs:
        if one.own or one.watermark != "upstream" or not (waits_for := without_watermark(log, one.name)):
            continue
        named = listed(waits_for, _SHOWN)
        yield (
            f"{one.name}: {named} had no watermark at the end of this history (a task without records has "
            "none after a start, until "
            "it is idle), so event time waits there: timers that a service has fired before may be pending "
            "here"
        )


def _has_ended(targets: Sequence[Target]) -> bool:
    """Whether the inputs of the service have ended for good in all tasks."""
    cuts = [None if one.cut is None else tape.decode_cut(one.cut) for one in targets]
    return all(cut is not None and {*cut.ended_operators} >= {*(cut.operators or ())} for cut in cuts)
