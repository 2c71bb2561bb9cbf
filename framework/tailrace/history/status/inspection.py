"""The status of an app, from the log. The app is not contacted, and nothing is changed.

Theory. With each commit a task writes its cut, as the last record of the commit's batch in its partition of
the changelog. So its positions, watermarks and idle sources are read from the end of the changelog, without
folding it. The owner of a task is in its claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Literal

import msgspec

from tailrace.core import rows
from tailrace.core.counting import counted
from tailrace.core.declare.actor import declaration_of
from tailrace.core.declare.plan import InputPlan, OperatorPlan, Plan
from tailrace.core.durations import A_DAY_MS, A_MINUTE_MS, is_instant, spelled
from tailrace.core.engine import tape
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.query import QueryReader
from tailrace.core.engine.tape import Idleness
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import TailraceError
from tailrace.core.names import transactional_id
from tailrace.history.provenance.topics import replaced_topics
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.app_topics import oldest_ms
from tailrace.history.reading.changelog import last_cut
from tailrace.history.reading.stretches import batches, first, last
from tailrace.history.reading.tape_records import tape_record
from tailrace.history.status.holding import Held, Holding, lag_of
from tailrace.history.status.last_failure import LastFailure, last_failure
from tailrace.log.interface import Log, TopicPartition
from tailrace.log.tasks import Owner

Follows = Literal["events", "writers", "nothing"]


class SourceReport(msgspec.Struct, frozen=True):
    """An input of a task, or the messages to one of its actors (``<inbox>#<actor>``)."""

    topic: str
    follows: Follows
    """The origin of its watermark. ``nothing``: no operator waits for it (reference data, an inbox)."""
    position: int
    end: int
    lag: int
    """Number of records to read; for messages to an actor, those of the whole inbox."""
    watermark_ms: int | None
    idle: bool
    start: int = 0
    """The oldest offset that the log has."""
    replayable_since_ms: int | None = None
    """The timestamp of the oldest record, if the log has deleted records before it."""
    late_after_idle: int = 0
    """Number of events that were late because the input had been idle."""
    idle_ms: int = 0
    """How long it had been idle when the last such event came first after it."""
    late_cause: str = ""
    """The same in words, and what helps; empty if there was none."""


class OperatorReport(msgspec.Struct, frozen=True):
    """An actor or a function in one task."""

    name: str
    kind: Literal["actor", "function"]
    watermark_ms: int | None
    held_by: Held | None
    """The source that holds it back. None: it has ended, or all of its sources are idle."""
    ended: bool
    """Its input was ended for good (``--end-of-input``)."""
    feedback: tuple[str, ...]
    """Topics from its own circle, for which it does not wait."""
    waiting: dict[str, int]
    """By input: the number of events that were read and wait for their turn in the order of event time."""
    stored: Stored | None = None
    """What is stored of an actor; None: this was not counted."""


class TaskReport(msgspec.Struct, frozen=True):
    """One task of an app, as of its last commit."""

    partition: int
    owner: Owner | None
    """None: no process owns it now."""
    committed_ms: int | None
    """The time of its last commit, by its own clock. None: it has not committed yet."""
    commits: int
    lag: int
    dead_letters: int
    """Number of dead letters in this partition of the app's dead-letter topic."""
    sources: tuple[SourceReport, ...]
    operators: tuple[OperatorReport, ...]


class AppReport(msgspec.Struct, frozen=True):
    """The status of an app. ``at_ms``: the time of the request, by the caller's clock."""

    app: str
    version: str
    at_ms: int
    tasks: tuple[TaskReport, ...]
    problems: tuple[str, ...] = ()
    """What is wrong with the app's topics: those that were replaced, those that keep records for too short a time, and
    records that no task has written."""
    last_failure: LastFailure | None = None
    """Why a process has ended, until its task commits again."""


def inspect_app(
    plan: Plan, log: Log, now_ms: int, owner_of: Callable[[str], Owner | None], *, with_stored: bool = False
) -> AppReport:
    """The status of all tasks of an app; with what is stored of its actors, if asked. Raises UnknownTopicError or InputsChangedError."""
    plan = AppHistory(plan, log).plan
    tasks = [_Task(plan, number, log, owner_of) for number in range(plan.partitions)]
    clocks = [one.clock_ahead(now_ms) for one in tasks]
    problems = (*_problems(plan, log), *kept_too_short(plan, log, now_ms), *filter(None, clocks))
    reports = tuple(one.report(stored(plan, log, one.number) if with_stored else {}) for one in tasks)
    failure = last_failure(log, plan.app, ((one.partition, one.committed_ms) for one in reports))
    return AppReport(plan.app, plan.version, now_ms, reports, problems, failure)


def stands_still(number: int, task_ms: int, now_ms: int) -> str:
    """The words for a task whose last clock reading is ahead of this machine's."""
    ahead_ms = task_ms - now_ms
    ahead = spelled(ahead_ms // A_DAY_MS * A_DAY_MS or ahead_ms // A_MINUTE_MS * A_MINUTE_MS)
    return (
        f"processing time of task {number} stands still at {instant(task_ms)}, {ahead} ahead of the clock, and its processing-time timers "
        "with it: the task has read a clock that was wrong, or this one is"
    )


def _problems(plan: Plan, log: Log) -> Iterator[str]:
    for topic in replaced_topics(plan.app, log, (one.name for one in plan.inputs)):
        yield f"{topic} was deleted and created again since the app has read it: the app does not start on it"
    for number in range(plan.partitions):
        place = TopicPartition(plan.tape_topic, number)
        try:
            record = last(log, *place)
            if record is not None:
                tape_record(place, record)
        except TailraceError as error:
            yield error.what


class _Task:
    def __init__(self, plan: Plan, number: int, log: Log, owner_of: Callable[[str], Owner | None]) -> None:
        self._plan, self.number, self._log, self._owner_of = plan, number, log, owner_of
        changelog = TopicPartition(plan.changelog_topic, number)
        found = last_cut(log, changelog)
        self._committed_ms = None if found is None else found.timestamp_ms
        self._cut = None if found is None or found.value is None else tape.decode_cut(found.value)
        self._marks = Watermarks(plan)
        if self._cut is not None:
            self._marks.resume(self._cut)
        known = {} if self._cut is None else self._cut.positions
        self._places = {one.name: TopicPartition(one.name, number) for one in plan.inputs}
        self._positions = {
            name: known.get(name, log.start_offset(*place)) for name, place in self._places.items()
        }
        self._lags = {name: lag_of(log, place, self._positions[name]) for name, place in self._places.items()}

    def clock_ahead(self, now_ms: int) -> str | None:
        """What is wrong if the task's clock is more than a minute ahead of this one."""
        if self._cut is None or self._cut.now - now_ms <= A_MINUTE_MS:
            return None
        return stands_still(self.number, self._cut.now, now_ms)

    def report(self, kept: Mapping[str, Stored]) -> TaskReport:
        """The status of the task. ``kept``: what is stored, by actor."""
        plan, log, number = self._plan, self._log, self.number
        letters = TopicPartition(plan.dead_letters_topic, number)
        holding = Holding(plan, number, log, lambda publisher: self._owner_of(publisher) is not None)
        return TaskReport(
            partition=number,
            owner=self._owner_of(transactional_id(plan.app, number)),
            committed_ms=self._committed_ms,
            commits=0 if self._cut is None else self._cut.tape,
            lag=sum(self._lags.values()),
            # Not by offsets: on Kafka, the markers of transactions have offsets, too.
            dead_letters=sum(map(len, batches(log, *letters))),
            sources=tuple(self._sources()),
            operators=tuple(self._operator(one, holding, kept.get(one.name)) for one in plan.operators),
        )

    # --- sources and operators

    def _sources(self) -> Iterator[SourceReport]:
        plan = self._plan
        channels = range(len(plan.inputs), len(plan.sources))
        for one in plan.inputs:
            if not one.is_inbox:
                yield self._source(one, one.index, _follows(one))
            elif (self._plan.has_messages and not channels) or self._lags[one.name]:
                yield self._source(one, one.index, "nothing")
            for source in channels if one.is_inbox else ():
                yield self._source(one, source, "writers")

    def _source(self, one: InputPlan, source: int, follows: Follows) -> SourceReport:
        marks, place, name = self._marks, self._places[one.name], self._plan.sources[source]
        start, known = self._log.start_offset(*place), self._marks.idleness.get(name, Idleness(0))
        return SourceReport(
            topic=name,
            follows=follows,
            position=self._positions[one.name],
            end=self._log.end_offset(*place),
            lag=self._lags[one.name],
            watermark_ms=None if follows == "nothing" else _known(marks.of_source[source]),
            idle=marks.idle[source],
            start=start,
            replayable_since_ms=oldest_ms(self._log, place) if start else None,
            late_after_idle=known.late,
            idle_ms=known.idle_ms,
            late_cause=cause_of(self._plan, name, known.late, known.idle_ms) if known.late else "",
        )

    def _waiting(self, operator: str) -> dict[str, int]:
        ordered = None if self._cut is None else self._cut.ordered.get(operator)
        return {} if ordered is None else {name: count for name, (_, count, _) in ordered.lows.items()}

    def _operator(self, one: OperatorPlan, holding: Holding, kept: Stored | None) -> OperatorReport:
        source = holding.lowest(self._marks, one.index)
        return OperatorReport(
            name=one.name,
            kind="function" if one.actor is None else "actor",
            watermark_ms=_known(self._marks.of_operator[one.index]),
            held_by=None if source is None else holding.why(source, self._marks, self._positions),
            ended=self._marks.ended_operators[one.index],
            feedback=one.feedback,
            waiting=self._waiting(one.name),
            stored=kept,
        )


def _follows(one: InputPlan) -> Follows:
    if one.watermark == "none":
        return "nothing"
    return "writers" if one.watermark == "upstream" else "events"


def _known(watermark_ms: int) -> int | None:
    return watermark_ms if is_instant(watermark_ms) else None


class Stored(msgspec.Struct):
    """What one task has stored of an actor."""

    keys: int = 0
    rows: int = 0
    bytes: int = 0
    """Of the names and values of the rows, before any compression."""
    timers: int = 0
    """Without those of values that expire."""
    open: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """In operators and fields of the library: how many windows, sessions and cases are open, or events of each input kept."""


def stored(plan: Plan, log: Log, partition: int) -> dict[str, Stored]:
    """By actor, at the last commit of a task. Takes the memory and time of folding its partition of the changelog."""
    found = {one.name: Stored() for one in plan.actors}
    committed = AppHistory(plan, log).committed(partition, with_rows=True)
    if committed.cut is None or committed.rows is None:
        return found
    marks, reader = Watermarks(plan), QueryReader(plan, partition, committed.rows)
    marks.resume(tape.decode_cut(committed.cut))
    actors = {one.name: one for one in plan.actors}
    state = committed.rows.scan(rows.STATE, rows.prefix_end(rows.STATE))
    for prefix, some in groupby(state, lambda one: rows.key_prefix(one[0])):
        of_key, at = dict(some), rows.read_state_row(prefix)
        if (actor := actors.get(at.actor)) is None:
            continue  # it is declared no more
        one, spread = found[actor.name], rows.spread({row[len(prefix) :]: of_key[row] for row in of_key})
        timers = {row: rows.decode_timer(value) for row, value in spread.items() if row[:1] == b"t"}
        one.keys += 1
        one.rows += len(of_key)
        one.bytes += sum(len(row) + len(value) for row, value in of_key.items())
        one.timers += sum(row[2:3] != rows.EXPIRY for row in timers)
        if actor.schema.meaning:
            due = (timer.time_ms - 1 for row, timer in timers.items() if row[1] == rows.EVENT_TIME)
            fired_ms = min([marks.of_operator[actor.index], *due])
            instance = reader.instance(actor.cls, actor.key_codec.decode(at.key))
            for name, count in declaration_of(actor.cls).opened(instance, fired_ms).items():
                one.open[name] = one.open.get(name, 0) + count
    return found


def kept_too_short(plan: Plan, log: Log, now_ms: int) -> Iterator[str]:
    """A sentence or two for each topic that keeps records for a shorter time than events wait in ordered actors: a start reads again
    what waits. By what is declared, and by what waits in the tasks of the app.
    """
    ordered, known = {one.index for one in plan.operators if one.ordered}, log.topics()
    for one in plan.inputs:
        waits = ordered.intersection(one.moves, (route.operator for route in one.routes))
        kept_ms = known[one.name].retention_ms if waits and one.name in known else None
        if kept_ms is None:
            continue
        longest_ms = max(each.out_of_order_ms for each in plan.inputs if waits.intersection(each.moves))
        oldest_ms = min(_waiting(plan, log, one.name), default=now_ms)
        if longest_ms > kept_ms:
            why = f"for up to the out_of_order of {spelled(longest_ms)}"
        elif now_ms - oldest_ms > kept_ms:
            why = f"the oldest one is of {instant(oldest_ms)}"
        else:
            continue
        yield (
            f"{one.name!r} keeps records for {spelled(kept_ms)}, and events wait in it for longer, to be handled in event-time "
            f"order: {why}. If one is deleted before it is handled, the app does not start any more. Keep the topic for longer"
        )


def _waiting(plan: Plan, log: Log, topic: str) -> Iterator[int]:
    """In each task, the timestamp of the first record of a topic that waits."""
    for number in range(plan.partitions):
        found = last_cut(log, TopicPartition(plan.changelog_topic, number))
        cut = None if found is None or found.value is None else tape.decode_cut(found.value)
        lows = (
            [] if cut is None else [one.lows[topic][0] for one in cut.ordered.values() if topic in one.lows]
        )
        record = first(log, topic, number, min(lows)) if lows else None
        if record is not None:
            yield record.timestamp_ms


_SECOND_MS = 1_000


def cause_of(plan: Plan, source: str, late: int, idle_ms: int) -> str:
    """The number of late events, the source that had been idle, for how long, and what helps."""
    one = next((each for each in plan.inputs if each.name == source), None)
    what = f"{counted(late, 'event')} late because {source!r} had been idle for {shown(idle_ms)}"
    if one is None or one.watermark == "upstream":
        return f"{what}, as its writers were: raise the idle_after of their inputs"
    return f"{what}: raise its idle_after ({spelled(one.idle_after_ms)})"


def shown(duration_ms: int) -> str:
    """A duration in seconds, or larger units; a short one in milliseconds."""
    return spelled(duration_ms if duration_ms < _SECOND_MS else duration_ms // _SECOND_MS * _SECOND_MS)
