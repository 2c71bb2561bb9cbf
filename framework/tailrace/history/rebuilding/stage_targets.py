"""Settles a rebuild in stages: where each task ends, and what is known of its reference data.

with a limit            there, or at the end of its inputs
the app has run         at the service's last commit: its positions, the watermarks of its operators, and its clock. So the snapshot
                        can replace the service's state while producers write, whatever was idle in the service. An input that the
                        service has not read: at its end. A new operator: at the lowest of its sources
it has never run        at the end of its inputs, each operator as far as these go
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from tailrace.core.counting import counted, listed
from tailrace.core.declare.plan import InputPlan, OperatorPlan, Plan
from tailrace.core.durations import A_DAY_MS, NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.input_decoder import InputDecoder
from tailrace.core.engine.stage_order import has_processing_time
from tailrace.core.engine.stages import Stages, own_inputs
from tailrace.core.engine.timers import FOREVER
from tailrace.core.errors import InputsChangedError, OptionError, SnapshotMismatchError, UnknownTopicError
from tailrace.core.names import is_own, redriven_of
from tailrace.core.suggestions import did_you_mean
from tailrace.history.dead_letters.redriving import open_letters
from tailrace.history.reading.beginnings import check_not_edited
from tailrace.history.reading.replayable import WITHOUT_DELETED, check_after_beginning, gone
from tailrace.history.reading.stretches import first, scan
from tailrace.history.reading.upstream_watermarks import without_watermark
from tailrace.history.rebuilding.job import Settled, StandOf, Target
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.request import Request
from tailrace.log.interface import Log
from tailrace.state.snapshots import Snapshot

_SHOWN = 5
"""Tasks named in a note."""
_AT_ENDS = 100
"""Offsets that are read at once, at the end of an input."""


def settle_in_stages(
    request: Request, past: HistorySource, base: Snapshot | None, settled: Settled
) -> Settled:
    """Check that the inputs can be read from their beginning, or from the base; add the notes.
    Raises OptionError: the app has a circle.
    """
    plan, log, stages = past.plan, past.log, Stages(past.plan)
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
    read = [one.name for one in plan.inputs if one.name in settled.ends]
    starts = {name: [log.start_offset(name, one) for one in range(len(settled.ends[name]))] for name in read}
    settled = replace(settled, starts=starts)
    notes = list(settled.notes)
    for target in settled.targets if base is None else ():
        notes += [said for said in check_not_edited(past, target.partition, target.cut) if said not in notes]
    for one in plan.inputs:
        _check_input(one, plan, log, settled, is_own=one.name in own)
        if is_own(one.name, plan.app):
            continue
        notes += _deleted(one, request, log, settled)
        if (topic := log.topics().get(one.name)) is not None and topic.compacted:
            notes.append(
                f"{one.name} is compacted: records that it no longer has are left out, and the state may "
                "differ from that of a service that has read them"
            )
    if own:
        notes.append(
            "what the app sends to itself comes from this code, and not from what is recorded: in "
            f"{counted(stages.count, 'stage')} along the graph"
        )
    if one_order := in_one_order(plan):
        notes.append(
            f"{listed(one_order, _SHOWN)}: on arrival, of several inputs or of what the app sends itself. In a service that depends on "
            "the schedule, and here on the event times: results may differ in this order alone"
        )
    if clocked := [one.name for one in plan.actors if has_processing_time(one)]:
        notes.append(
            f"{listed(clocked, _SHOWN)}: processing time goes by the timestamps of records, and not by the clock of the service"
        )
    notes += _late_after_idle(settled.targets)
    notes += _letters(plan, log)
    if not request.limited:
        notes += _held_back(plan, log)
    finish = not request.limited and _has_ended(settled.targets)
    if request.execution.split > 1:
        _check_split(request, plan, log, finish=finish)
    settled = replace(
        settled,
        notes=tuple(notes),
        clock_ms=time.time_ns() // 1_000_000,
        finish=finish,
        stages=stages.count,
        stands=_stands(request, stages, settled, finish=finish),
    )
    return replace(
        settled,
        end_clock_ms=0 if request.limited else _end_clock_ms(past, settled),
        first_ms=_first_ms(request, past, settled, is_new=base is None),
    )


def in_one_order(plan: Plan) -> list[str]:
    """The operators that handle on arrival, and not one input from outside alone: in stages their order is one of several."""
    own = own_inputs(plan)
    return [one.name for one in plan.operators if not one.ordered and not _reads_one(plan, one, own)]


def _reads_one(plan: Plan, operator: OperatorPlan, own: Mapping[str, InputPlan]) -> bool:
    """Whether an operator gets the events of one input from outside, in the order of their offsets, and nothing else."""
    read = {one.index for one in plan.inputs if operator.index in one.touches} | {*operator.sources}
    return len(read) == 1 and all(one < len(plan.inputs) and plan.inputs[one].name not in own for one in read)


def _stands(request: Request, stages: Stages, settled: Settled, *, finish: bool) -> tuple[StandOf, ...]:
    """By partition, where the operators end; empty: where their inputs do."""
    plan, cuts = (
        stages.plan,
        [None if one.cut is None else tape.decode_cut(one.cut) for one in settled.targets],
    )
    names = [one.name for one in plan.operators]
    if request.as_of_ms is not None:
        return (StandOf(dict.fromkeys(names, request.as_of_ms)),) * plan.partitions
    if finish:
        return (StandOf({}),) * plan.partitions
    if request.limited or not any(cuts):
        return ()
    marks = [
        {
            name: NO_WATERMARK if cut is None else cut.operators[name]
            for name in names
            if cut is None or name in cut.operators
        }
        for cut in cuts
    ]
    for one in sorted(plan.operators, key=lambda one: stages.of[one.index]):
        for number, cut in enumerate(cuts):
            if one.name not in marks[number] and cut is not None:
                known = [*_known_marks(plan, one, cut, marks)]
                marks[number] |= {one.name: min(known)} if known else {}
    return tuple(StandOf(mine, 0 if cut is None else cut.now) for mine, cut in zip(marks, cuts, strict=True))


def _known_marks(
    plan: Plan, operator: OperatorPlan, cut: tape.Cut, marks: Sequence[Mapping[str, int]]
) -> Iterator[int]:
    """The watermarks of the sources of an operator that the service does not have, as far as they are known."""
    writers = {one.name: one.writers for one in plan.published}
    for source in operator.sources:
        name = plan.sources[source]
        if name in writers:
            found = (mine.get(plan.operators[one].name) for mine in marks for one in writers[name])
            yield from (mark for mark in found if mark is not None)
        elif name in cut.watermarks:
            yield cut.watermarks[name]


def _end_clock_ms(past: HistorySource, settled: Settled) -> int:
    """The highest timestamp at the ends of the inputs from outside."""
    found, own = [0], own_inputs(past.plan)
    for one in past.plan.inputs:
        if one.is_inbox or one.name in own:
            continue
        for number, end in enumerate(settled.ends.get(one.name, ())):
            start = max(past.log.start_offset(one.name, number), end - _AT_ENDS)
            records = past.source(number)(one.name, start, end) if start < end else ()
            found += [record.timestamp_ms for record in records]
    latest_ms = (settled.clock_ms or 0) + A_DAY_MS
    return max(one for one in found if one <= latest_ms)


def _first_ms(
    request: Request, past: HistorySource, settled: Settled, *, is_new: bool
) -> dict[str, list[int]]:
    """By input with reference data and partition, the timestamp up to which its records come before all others."""
    plan, found = past.plan, dict[str, list[int]]()
    for one in plan.inputs:
        if one.name not in settled.ends or not _is_reference(one):
            continue
        ends = settled.ends[one.name]
        if request.tables == "first":
            found[one.name] = [FOREVER] * plan.partitions
        elif request.tables == "as-of" or not is_new:
            continue
        else:
            before = [
                _read_before_the_first_commit(past, one.name, number) for number in range(plan.partitions)
            ]
            found[one.name] = [
                max(
                    (record.timestamp_ms for record in scan(past.log, one.name, number, 0, min(at, end))),
                    default=NO_WATERMARK,
                )
                for number, (at, end) in enumerate(zip(before, ends, strict=True))
            ]
            if not any(before):
                _check_is_before(past, one, settled)
    for one in plan.inputs:  # the copies of a broadcast topic
        if one.broadcast and one.repartitioned and one.name in found:
            found |= {route.name: [max(found[one.name])] * plan.partitions for route in one.routes}
    return found


def _is_reference(one: InputPlan) -> bool:
    """Whether an input from outside has reference data."""
    return not one.is_inbox and (one.watermark == "none" or (one.broadcast and one.repartitioned))


def _read_before_the_first_commit(past: HistorySource, name: str, number: int) -> int:
    """Up to which offset of an input the service had read at its first commit; 0: nothing, or that is not known."""
    topic = past.plan.tape_topic
    if topic not in past.log.topics() or (record := first(past.log, topic, number)) is None:
        return 0
    found = tape.decode_tape(record.value or b"")
    return dict(zip(found.inputs or (), found.positions or (), strict=True)).get(name, 0)


def _check_is_before(past: HistorySource, reference: InputPlan, settled: Settled) -> None:
    """Refuse reference data of which nothing lies before the first event: nobody can say what the first events would have found."""
    plan, own = past.plan, own_inputs(past.plan)
    stamps, events = list[int](), list[int]()
    for number in range(plan.partitions):
        for one in plan.inputs:
            if one.is_inbox or one.name in own or number >= len(settled.ends.get(one.name, ())):
                continue
            record = first(past.log, one.name, number)
            if record is None or record.offset >= settled.ends[one.name][number]:
                continue
            if one.name == reference.name:
                stamps.append(record.timestamp_ms)
            elif not _is_reference(one):
                ((_, time_ms, *_),) = InputDecoder(plan, one).decode([record])
                events.append(record.timestamp_ms if time_ms is None else time_ms)
    if stamps and events and min(stamps) > min(events):
        raise OptionError(
            f"nothing of the reference data in {reference.name!r} lies before the first event: the first of its records has the "
            f"timestamp {min(stamps)} ms, and the first event is of {min(events)} ms",
            hint="Say what the events find: --tables first has all of it read before them, --tables as-of each record at its timestamp.",
        )


def _late_after_idle(targets: Sequence[Target]) -> Iterator[str]:
    """A note about what was late in the service for a reason that no record tells."""
    late = Counter[str]()
    for one in targets:
        for name, source in () if one.cut is None else tape.decode_cut(one.cut).idleness.items():
            late[name] += source.late
    for name, count in sorted((+late).items()):
        yield (
            f"{counted(count, 'event')} of {name} {'was' if count == 1 else 'were'} late in the service because this input had been idle: "
            "here they may be in time"
        )


def _letters(plan: Plan, log: Log) -> Iterator[str]:
    """A note that redriving the open dead letters would handle their records twice."""
    if plan.dead_letters_topic in log.topics() and (count := sum(1 for _ in open_letters(log, plan.app))):
        yield (
            f"records of {counted(count, 'open dead letter')} are handled in their places. After a service has started from "
            f"this snapshot, do not redrive them: tailrace dead-letters drop {plan.app}"
        )


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
    """Refuse parts of an app that sends to itself which cannot be separated from the whole: any key may send to any other."""
    if request.until.watermark_ms is not None:
        raise OptionError(
            f"the app {plan.app!r} sends records to itself, and --until stops each partition at a record of its own: "
            "what the others had sent it by then is not known in stages",
            hint="Use --as-of with the time: it goes by event time, and includes what was sent before.",
        )
    if own := sorted({*request.until.offsets} & {*own_inputs(plan)}):
        raise OptionError(
            f"the app {plan.app!r} writes {own[0]!r} itself: in stages its records come from this code, and have no offsets of their own",
            hint="Name offsets of inputs from outside.",
        )
    if request.keys and request.to.outputs != "none":
        raise OptionError(
            f"the app {plan.app!r} sends records to itself, so in stages all keys are run, and the outputs of "
            "some keys cannot be separated from the others'",
            hint="Leave out --outputs, or --key.",
        )


def _check_split(request: Request, plan: Plan, log: Log, *, finish: bool) -> None:
    """Refuse what makes the keys of a partition depend on each other within a stage."""
    for given, why in (
        (request.keys, "--key: only some keys are run"),
        (any(one.broadcast for one in plan.inputs), "broadcast topics: every range would need all tables"),
        (finish, "inputs that have ended for good: event time rises to the last timer of all keys"),
        (redriven_of(plan.app) in log.topics(), "redriven records: they depend on what has failed again"),
    ):
        if given:
            raise OptionError(f"--split does not go with {why}", hint="Leave --split out.")


def _check_in_flight(base: Snapshot, plan: Plan, settled: Settled) -> None:
    """Refuse a base without ends: only these tell which of its own records the app had not read yet."""
    if not base.manifest.ends and any(any(settled.ends.get(name, ())) for name in own_inputs(plan)):
        raise SnapshotMismatchError(
            f"the snapshot {base.manifest.id} was stopped by a limit, and does not tell what the app had "
            "under way to itself there: in stages nobody would send that again",
            hint="Continue from a snapshot without a limit, or rebuild from the beginning.",
        )


def _check_input(one: InputPlan, plan: Plan, log: Log, settled: Settled, *, is_own: bool) -> None:
    """Check that the log has an input, with the partitions of the app. One that the app writes need not be there."""
    if one.name not in settled.ends and not one.is_inbox and not is_own:
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
    """Find deleted records of an input that others may write: raise an error, or, if the request accepts it, return notes."""
    if one.name not in settled.ends or request.source.base is not None or one.is_inbox:
        return
    for number, start in enumerate(settled.starts[one.name]):
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
