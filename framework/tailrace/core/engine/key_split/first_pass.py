"""The first pass: through the causes of a task without calling a handler, to tell its keys apart.

Theory: why a task can be split by key. A task's state is two things. What belongs to a key (instances, entries, timers)
is changed by that key's units alone. What belongs to nobody (positions, watermarks, the clock, what is idle) is changed by
causes alone: a record moves the watermark by its event time, whatever its handlers do, and a timer moves nothing. So what
belongs to nobody can be worked out first, without any handler, and each key then sees exactly what it would have seen:

    a record        the watermarks before it (so it is late, or is not), the clock, and the watermarks after it
    a timer         its actor's watermark and the clock of the first step at whose end they have reached it

Steps are numbered over the whole task, 1 being the first after where it starts. A *series* says at the end of which steps
a watermark or the clock moved, and to what: all only grow, so the step at which a timer is due is found by bisection. Step
0 is the start, whose drain may have been left unfinished.

Three things look like exceptions:

    a failed unit            a punctuated or generated watermark is not asked about a record whose handlers failed; the tape
                             names these records (and the timers, by what their dead letters say of them)
    a handler changes its    which a punctuating function sees afterwards: a shard looks whether it then says the same, and
    event                    the task cannot be split if not (UnsplittableError)
    the end of all input     the watermark rises to the latest timer of any key: the tape says where to. Up to format 1 it
                             does so only if nothing else can have moved it before the commit; if something can, the
                             task cannot be split

Records are dealt out to shards by a hash of their key's bytes. Whatever has no key of its own (refused, keyless, of a key
that has no bytes) goes to shard 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.key_split.course import (
    Chunk,
    Columns,
    Course,
    Series,
    ShardRecords,
    TimerSkip,
    gained,
    pack,
    shard_of,
)
from tailrace.core.engine.redriven import redriven_ids
from tailrace.core.engine.replay import Limit, Replay, Source
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.engine.task import Task
from tailrace.core.engine.watermarks import copy
from tailrace.core.errors import ReplayDivergedError, UnsplittableError
from tailrace.core.records import FOR_OTHERS, Head, InputRecord, Refused

CHUNK_STEPS: Final = 20_000
"""About how many steps a chunk holds."""

_KNOWN_KEYS: Final = 1_000_000

_Row = tuple[int, int, int, int, InputRecord]
"""Step, input, entry of the series that holds before it, that holds after it, record."""


class EmptyState:
    """Holds no rows."""

    def get(self, _row: bytes, /) -> None:
        """Nothing."""

    def get_many(self, rows: Sequence[bytes], /) -> list[bytes | None]:
        """Nothing, as many times as asked for."""
        return [None] * len(rows)

    def scan(self, _start: bytes, _stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Nothing."""
        return iter(())


class KeySplitPlan(Task):
    """A task that calls no handler: causes go in, chunks come out. It has the cut and the tape of the real one.

    ``totals`` count what does not depend on handlers: records, late and refused ones.
    """

    def __init__(
        self,
        plan: Plan,
        partition: int,
        shards: int,
        cut: bytes | None = None,
        *,
        lineage: bytes = b"",
        positions: Mapping[str, int] | None = None,
        settings: TaskSettings | None = None,
        replaying: bool = False,
        chunk_steps: int = CHUNK_STEPS,
    ) -> None:
        super().__init__(
            plan,
            partition,
            EmptyState(),
            cut,
            lineage=lineage,
            positions=positions,
            settings=settings,
            replaying=replaying,
        )
        self.shards = shards
        self.step = 0
        self._chunks: list[Chunk] = []
        self._chunk_steps = chunk_steps
        self._chunk = 0
        self._first = 1
        self._known: list[dict[Any, int]] = [{} for _ in plan.inputs]
        self._series: Columns = ([0], [[one] for one in self._watermarks.of_operator], [self.now])
        self._rows: list[list[_Row]] = [[] for _ in range(shards)]
        self._skips: list[list[tape.Skip]] = [[] for _ in range(shards)]

    def run(self, number: int, heads: Sequence[Head], start: int = 0) -> int:
        """Take all records from ``heads[start]`` on, each with a step of its own. See ``Task.run``."""
        if start >= len(heads):
            return start
        plan, marks = self.plan.inputs[number], self._watermarks
        skips, now, known = self._units.skips, self.now, self._known[number]
        one = self._inputs[number]
        moving, asked, judged, lag = one.moving, one.asked, one.judged, one.lag
        inbox, moves, by_event = one.inbox, plan.moves, plan.watermark == "events"
        slept, marks.idle[number] = marks.idle[number], False
        own = marks.of_source[number]
        together = None if inbox and judged else marks.together(number)
        watermark, ceiling = (marks.highest(number), 0) if together is None else together
        add: list[Callable[[_Row], None]] = [rows.append for rows in self._rows]
        step, at = self.step, len(self._series[0]) - 1
        late = refused = for_others = 0
        for offset, time_ms, key, event, record in islice(heads, start, None):
            if event is FOR_OTHERS:
                for_others += 1
                continue
            step += 1
            assert record is not None
            if time_ms is None:
                if type(event) is Refused:
                    if plan.on_error == "stop":
                        self._units.refuse(number, event, record)
                    refused += 1
                    add[0]((step, number, at, at, record))
                    continue
                time_ms = now
            shard = known.get(key)
            if shard is None:
                shard = self._shard(number, key, event)
            if skips and (number, offset) in skips:
                self._skips[shard].append(tape.Skip(number, offset, list(skips[number, offset])))
                said = time_ms - lag if by_event else NO_WATERMARK
            elif asked:
                said = self._said(number, offset, time_ms, key, event, record)
            else:
                said = time_ms - lag
            if (
                judged
                and time_ms <= watermark
                and (
                    together is not None
                    or marks.late_for(plan, time_ms, event.route.operator if inbox else -1)
                )
                and not self.is_redriven(number, record)
            ):
                late += 1
            if moving and said > own:
                own = said
                if together is None:
                    marks.of_source[number] = own
                    before = list(marks.of_operator)
                    marks.advance(moves)
                    watermark, moved = marks.highest(number), marks.of_operator != before
                else:
                    moved = own > watermark and ceiling > watermark
                    if moved:
                        watermark = own if own < ceiling else ceiling  # noqa: FURB136  # faster
                        marks.stand(number, own, watermark)
                if moved:
                    self._note(step, now)
                    add[shard]((step, number, at, at + 1, record))
                    at += 1
                    continue
            add[shard]((step, number, at, at, record))
        if together is not None:
            marks.stand(number, own, watermark)
        self.step = step
        if for_others == len(heads) - start:
            marks.idle[number] = slept
        self.totals.records += len(heads) - start - refused - for_others
        self.totals.for_others += for_others
        self.totals.late += late
        self.totals.refused += refused
        before_ms = self.positions[plan.name]
        self.positions[plan.name] = heads[-1][0] + 1
        self._tape.run(number, self.positions[plan.name] - before_ms)
        if step - self._first >= self._chunk_steps:
            self.close_chunk()
        return len(heads)

    def _note(self, step: int, clock_ms: int) -> None:
        """Add where watermarks and clock stand at the end of a step."""
        steps, series, clocks = self._series
        steps.append(step)
        clocks.append(clock_ms)
        for column, mark in zip(series, self._watermarks.of_operator, strict=True):
            column.append(mark)

    def finish(self, operator: int, to_ms: int | None = None) -> None:
        """See ``Task.finish``. UnsplittableError without ``to_ms``: no timer is known here."""
        if to_ms is None and self.plan.operators[operator].actor is not None:
            raise UnsplittableError("the latest pending timer may be that of any key")
        super().finish(operator, to_ms)

    def finish_all(self, to_ms: int | None = None) -> None:
        """See ``finish``."""
        if to_ms is None:
            raise UnsplittableError("the latest pending timer may be that of any key")
        super().finish_all(to_ms)

    def course(self, base: bytes | None) -> Course:
        """What is known of the task as a whole where it stands, having started from ``base``; closes the last chunk."""
        self.close_chunk()
        before = 0 if base is None else tape.decode_cut(base).totals.for_others
        cut, for_others = self.commit_batch().cut, self.totals.for_others - before
        return Course(self.shards, self.lineage, base, cut, None, self.step, [], for_others)

    def take_chunks(self) -> list[Chunk]:
        """The chunks that are done since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks

    @property
    def causes(self) -> Sequence[int]:
        """The causes since the last commit, as the tape has them."""
        return self._tape.causes

    def close_chunk(self) -> None:
        """Add what has gathered to ``chunks``, if there is anything."""
        if self.step < self._first and self._chunk:
            return
        steps, watermarks, clocks = self._series
        dealt = [
            _columns(rows, self._first, skips) for rows, skips in zip(self._rows, self._skips, strict=True)
        ]
        series = Series.of(steps, watermarks, clocks)
        self._chunks.append(Chunk(self._chunk, self._first, self.step, series, dealt))
        self._chunk += 1
        self._first = self.step + 1
        self._series = (steps[-1:], [one[-1:] for one in watermarks], clocks[-1:])
        self._rows = [[] for _ in range(self.shards)]
        self._skips = [[] for _ in range(self.shards)]

    def _advance(self) -> None:
        super()._advance()  # no timer is pending here, so this drains nothing
        self.step += 1
        _, watermarks, clocks = self._series
        if self.now != clocks[-1] or [one[-1] for one in watermarks] != self._watermarks.of_operator:
            self._note(self.step, self.now)
        if self.step - self._first >= self._chunk_steps:
            self.close_chunk()

    def is_redriven(self, number: int, record: InputRecord | None) -> bool:
        """See ``TaskState.is_redriven``. UnsplittableError where such a record was taken for late: shards do not."""
        if self.addressees.format >= 2:
            return super().is_redriven(number, record)
        if record is not None and redriven_ids(record.headers, self.plan.dead_letters_topic):
            raise UnsplittableError("a redriven record was taken for late by an earlier version of tailrace")
        return False

    def _shard(self, number: int, key: Any, event: Any) -> int:
        """The shard of a key that is not known yet."""
        plan, known = self.plan.inputs[number], self._known[number]
        codec = plan.key_codec if not plan.is_inbox else event.route.target.key_codec
        try:
            shard = 0 if key is None else shard_of(codec.encode(key), self.shards)
        except Exception:  # noqa: BLE001  # whatever it is, a table meets it as well
            shard = 0  # no instance can be its own: whoever takes it has no state, or fails
        if not plan.is_inbox:  # where one dictionary would hold keys of several actors
            if len(known) >= _KNOWN_KEYS:
                known.clear()
            known[key] = shard
        return shard

    def _said(
        self, number: int, offset: int, time_ms: int, key: Any, event: Any, record: InputRecord | None
    ) -> int:
        """The watermark that an event states by itself."""
        try:
            return self._watermarks.said(self.plan.inputs[number], event, time_ms)
        except Exception as error:
            if not self._units.replaying:
                raise UnsplittableError(
                    f"the watermark of {self.plan.inputs[number].name} fails at offset {offset}, or its handlers do: "
                    "only they can tell"
                ) from error
            self._context.key, self._context.event_time = key, time_ms
            self._units.failed(error, 0, number, offset, record)
            raise AssertionError("a failure that is not on the tape ends a replay") from error


def _columns(rows: list[_Row], first: int, skips: list[tape.Skip]) -> ShardRecords:
    """Rows as columns."""
    if not rows:
        return ShardRecords(first, b"", b"", b"", b"", [], skips)
    steps, inputs, before, after, records = zip(*rows, strict=True)
    return ShardRecords(
        first,
        pack("I", [step - first for step in steps]),
        pack("H", inputs),
        pack("I", before),
        pack("I", after),
        list(records),
        skips,
    )


def stated(plan: InputPlan) -> Callable[[Any, int], object] | None:
    """What the events of an input say of the watermark, as far as that can be told of one alone; None if that is sure.

    The whole asks after the handlers, the first pass before them: it must be the same.
    """
    if plan.watermark not in ("punctuated", "generator") or plan.topic is None or plan.topic.immutable:
        return None

    def says(event: Any, time_ms: int) -> object:
        generator = None if plan.generator is None else copy(plan.generator)
        try:
            if generator is not None:
                return generator.on_event(event, time_ms), msgspec.msgpack.encode(generator)
            return None if plan.punctuate is None else plan.punctuate(event, time_ms)
        except Exception as error:  # noqa: BLE001  # it is a user's function
            return repr(error)

    return says


class FirstPass(Replay):
    """The first pass along a tape: ``take`` its records in turn, then ask for the ``course``.

    It starts where ``cut`` says, or with nothing. The replay's checks are made as far as they do not depend on handlers.
    """

    task: KeySplitPlan

    def __init__(
        self,
        plan: Plan,
        partition: int,
        shards: int,
        source: Source,
        cut: bytes | None = None,
        *,
        lineage: bytes = b"",
        settings: TaskSettings | None = None,
        limit: Limit | None = None,
        any_environment: bool = False,
        chunk_steps: int = CHUNK_STEPS,
    ) -> None:
        task = KeySplitPlan(
            plan,
            partition,
            shards,
            cut,
            lineage=lineage,
            settings=settings,
            replaying=True,
            chunk_steps=chunk_steps,
        )
        super().__init__(task, source, limit=limit, some_keys=True, any_environment=any_environment)
        self._source = source
        self._base = cut
        self._start = msgspec.structs.replace(task.totals)
        self._known_totals = True
        self._timer_skips: list[TimerSkip] = []

    def take(self, record: tape.TapeRecord) -> bool:
        """See ``Replay.take``. Raises UnsplittableError as well."""
        task, first = self.task, self.task.step
        self._check_finish(record)
        try:
            whole = super().take(record)
        except ReplayDivergedError as error:
            if any(one.generator is not None or one.punctuate is not None for one in task.plan.inputs):
                raise UnsplittableError(
                    f"perhaps handlers change events before these state a watermark: {error}"
                ) from error
            raise
        if whole or self._is_last_step(record):
            self.settle()
        else:
            self._known_totals = False
        # The drain of the last step before may have been left to this commit.
        self._timer_skips += [
            TimerSkip(skip.number, first, task.step, skip.headers) for skip in record.skips if skip.input < 0
        ]
        return whole

    def course(self, cut: bytes | None) -> Course:
        """What is now known of the task as a whole, whose last commit had this cut. Closes the last chunk."""
        course = self.task.course(self._base)
        if cut is not None:
            course.cut = cut
        if self._known_totals:
            course.totals = gained(self._start, self.task.totals)
        course.timer_skips = self._timer_skips
        return course

    def _check_finish(self, record: tape.TapeRecord) -> None:
        """Whether the commit's watermark is the one that the end of input has led to."""
        if record.inputs is not None:
            self.follow_on(record)
        still = {one.name for one in self.task.plan.inputs if not one.moves}
        finished = False
        for code, *said in tape.causes_of(record.causes):
            if finished and code != tape.CLOCK and not (code == tape.RUN and self._names[said[0]] in still):
                raise UnsplittableError(
                    f"commit {record.number} of app {self.task.plan.app!r} partition {self.task.partition} goes on "
                    "after the end of all input: the tape does not say how far the watermark rose at that end"
                )
            finished = finished or code == tape.FINISH

    def _is_last_step(self, record: tape.TapeRecord) -> bool:
        """Whether a limit was reached with the very last step of a commit, which may have left its drain unfinished."""
        unnamed = (tape.CLOCK, tape.ENDED, tape.OPENED, tape.RISEN)
        causes = [
            (code, self._numbers[self._names[said[0]]], *said[1:])
            if said and code not in unnamed
            else (code, *said)
            for code, *said in tape.causes_of(record.causes)
        ]
        taken = [tuple(cause) for cause in tape.causes_of(self.task.causes)]
        if not taken or len(taken) != len(causes) or taken[:-1] != causes[:-1]:
            return False
        last, here = causes[-1], taken[-1]
        if last[0] != tape.RUN or here[:2] != last[:2]:
            return last == here
        name = self.task.plan.inputs[last[1]].name
        at = self.task.positions[name]
        return not self._source(name, at, at + last[2] - here[2])
