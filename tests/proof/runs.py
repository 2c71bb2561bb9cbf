"""Runs of tasks without a runtime: a first run that chooses its causes by chance, and runs that follow its tape.

``First`` is what a worker does, reduced to what matters here: it takes runs of records from inputs that grow, reads a
clock, tells of idleness and upstream watermarks, commits whenever it likes, also in the middle of a drain, and crashes.
``follow`` does what the tape of a first run says, but in slices, with commits, crashes, caches and reloads of its own.
Both check what must hold at every commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.intake import refill
from tailrace.core.engine.replay import Replay
from tailrace.core.engine.task import ORIGIN_HEADER, CommitBatch, Task, TaskSettings
from tailrace.core.errors import BadRecordError, HandlerError
from tailrace.core.records import Headers, Output
from tailrace.core.storage import Store
from tailrace.core.values.partitioner import partition_of
from tailrace.state import MemoryStore
from tests.proof.apps import Variant
from tests.proof.invariants import check_cuts
from tests.proof.operations import Chance, Model
from tests.proof.seeds import Feed, Records, append, pick, settings_of, slice_of

LINEAGE = b"the proof"
ALL = (b"", b"\xff")


@dataclass
class Committed:
    """What one task has made durable."""

    store: Store = field(default_factory=MemoryStore)
    outputs: list[Output] = field(default_factory=list)
    tapes: list[bytes] = field(default_factory=list)
    measurements: list[object] = field(default_factory=list)

    def state(self) -> dict[bytes, bytes]:
        """The rows that a changelog would hold."""
        return {row: value for row, value in self.store.scan(*ALL) if not rows.is_local(row)}

    def identity(self) -> bytes:
        """That of the last commit."""
        return tape.decode_cut(self.store.cut or b"").identity

    def standing(self) -> tape.Cut:
        """The cut, without number and identity of the last commit, which depend on how often was committed."""
        assert self.store.cut is not None
        cut = tape.decode_cut(self.store.cut)
        cut.tape, cut.identity = 0, b""
        return cut


class Run:
    """One task at work, its store, and what it has committed."""

    def __init__(
        self,
        plan: Plan,
        partition: int,
        committed: Committed,
        settings: TaskSettings,
        log: Records | None = None,
        *,
        replaying: bool = False,
    ) -> None:
        self.plan = plan
        self.log = {} if log is None else log
        self.partition = partition
        self.committed = committed
        self.replaying = replaying
        self.task = self._made(settings)
        self.waiting: list[Output] = []

    def _made(self, settings: TaskSettings) -> Task:
        task = Task(
            self.plan, self.partition, self.committed.store, self.committed.store.cut,
            lineage=LINEAGE, settings=settings, replaying=self.replaying,
        )  # fmt: skip
        refill(task, lambda name, start, stop: pick(self.log.get((name, self.partition), []), start, stop))
        return task

    def crash(self, settings: TaskSettings) -> None:
        """All that was not committed is gone."""
        self.task = self._made(settings)
        self.waiting = []

    def take(self) -> None:
        """Take the outputs there are, as a driver does now and then."""
        self.waiting += self.task.take_outputs()

    def commit(self) -> list[Output]:
        """Commit, check what must hold, and return the outputs that are visible now."""
        self.take()
        committed, task = self.committed, self.task
        before = None if committed.store.cut is None else tape.decode_cut(committed.store.cut)
        batch = task.commit_batch()
        committed.store.write(batch.rows | batch.index_rows, batch.cut)
        task.committed()
        check_commit(before, batch, self.waiting, f"{self.plan.app}/{self.partition}/")
        check_index(dict(committed.store.scan(*ALL)))
        outputs, self.waiting = self.waiting, []
        committed.outputs += outputs
        committed.tapes.append(batch.tape)
        committed.measurements += batch.measurements
        return outputs


def check_commit(before: tape.Cut | None, batch: CommitBatch, outputs: list[Output], origin: str) -> None:
    """Positions, watermarks, the clock and all counts only grow; outputs are numbered without gap or repeat."""
    after = tape.decode_cut(batch.cut)
    check_cuts(before, after, origin)
    first = 0 if before is None else before.totals.outputs
    numbers = [f"{origin}{first + at}".encode() for at in range(len(outputs))]
    found = [dict(one.headers)[ORIGIN_HEADER].partition(b"\0")[0] for one in outputs]
    assert found == numbers, "a gap or repeat in the outputs"
    assert after.totals.outputs == first + len(outputs)


def check_index(held: dict[bytes, bytes]) -> None:
    """Every timer and every entry that expires has an index row, at its time or before."""
    index = {row for row in held if rows.is_local(row)}
    looked_at: dict[tuple[int, str, bytes, bytes], int] = {}
    for row in index:
        time_ms, actor, key, name = rows.read_index_row(row)
        who = (row[1], actor, key, name)
        looked_at[who] = min(looked_at.get(who, time_ms), time_ms)
    live = {
        (r.actor, r.key)
        for r in map(rows.read_state_row, (x for x in held if x[:1] == rows.STATE))
        if not r.rest
    }
    for row, value in held.items():
        if row[:1] != rows.STATE:
            continue
        parts = rows.read_state_row(row)
        assert (parts.actor, parts.key) in live, f"{row!r} belongs to an instance that is not there"
        for derived in rows.derived_index_rows(row, None, value):
            time_ms, actor, key, name = rows.read_index_row(derived)
            at = looked_at.get((derived[1], actor, key, name))
            assert at is not None, f"{name!r} of {row!r} will never fire"
            assert at <= time_ms, f"{name!r} of {row!r} will fire too late"


# --- the first run -----------------------------------------------------------------------------------------------


class First:
    """The tasks of one app over a common log, driven by chance."""

    def __init__(
        self, plan: Plan, log: Records, random: Random, trace: list[str], *, clock: bool = True
    ) -> None:
        self.plan = plan
        self.log = log
        self.random = random
        self.trace = trace
        self.runs = [
            Run(plan, number, Committed(), settings_of(random), log) for number in range(plan.partitions)
        ]
        self.clock_ms = 0
        self.stops = 0
        self.with_clock = clock
        self.commit_odds = random.choice((0.05, 0.3, 0.8))
        self.crash_odds = random.choice((0, 0.02, 0.15))
        self.arrived = random.choice((0.2, 0.6, 1.0))

    def run(self, steps: int) -> None:
        """Some steps by chance, then everything to its end."""
        for _ in range(steps):
            self._step(self.random.choice(self.runs))
        for _ in range(200):
            moved = [self._finish(run) for run in self.runs]
            if not any(moved):
                return
        raise AssertionError("messages without end")

    def _step(self, run: Run) -> None:
        random, task = self.random, run.task
        chance = random.random()
        if chance < self.crash_odds:
            self._crash(run)
            return
        if task.draining:
            self._guarded(run, lambda: run.task.drain(random.choice((None, 0, 1, 2))))
        elif chance < 0.6:
            one = random.choice(self.plan.inputs)
            self._records(run, one.index, slice_of(random))
        elif chance < 0.8:
            if self.with_clock:
                self.clock_ms += random.choice((-50, 0, 3, 400, 1_500, 9_000))
                self.trace.append(f"{run.partition} clock {self.clock_ms}")
                self._guarded(run, lambda: task.clock(self.clock_ms))
        else:
            source = random.randrange(len(self.plan.sources))
            name, followed = self.plan.sources[source], self._is_followed(source)
            ended = [one.index for one in self.plan.operators if task.watermarks.ended_operators[one.index]]
            if ended and chance < 0.9:
                self.trace.append(f"{run.partition} opened {ended[0]}")
                self._guarded(run, lambda: task.opened(ended[0]))
            elif chance > 0.99:
                alone = [one.index for one in self.plan.operators if len(one.together) == 1]
                operator = random.choice(alone or [0])
                mark = max(0, task.watermarks.ready[operator]) + random.choice((1, 2_000))
                if alone:
                    self.trace.append(f"{run.partition} raised {operator} {mark}")
                    self._guarded(run, lambda: task.raised({operator: min(mark, 2_000_000)}))
            elif followed and chance < 0.95:
                mark = max(0, task.watermark_of(source)) + random.choice((-3, 5, 1_000, 1_002_000))
                self.trace.append(f"{run.partition} upstream {name} {mark}")
                self._guarded(run, lambda: task.upstream(source, min(mark, 2_000_000)))
            elif followed or (self.plan.inputs[source].moves and len(self.plan.inputs) > 1):
                self.trace.append(f"{run.partition} idle {name}")
                self._guarded(run, lambda: task.idle(source))
        if random.random() < 0.3:
            run.take()
        if random.random() < self.commit_odds:
            self._commit(run)

    def _is_followed(self, source: int) -> bool:
        """Whether the watermark of a source is told: that of a channel always is."""
        inputs = self.plan.inputs
        return source >= len(inputs) or inputs[source].watermark == "upstream"

    def _records(self, run: Run, number: int, most: int) -> bool:
        """Take a slice of an input; whether there was one."""
        task, name = run.task, self.plan.inputs[number].name
        position = task.positions[name]
        unread = [r for r in self.log.get((name, run.partition), ()) if r.offset >= position]
        found = unread[: max(1, int(min(most, len(unread)) * self.arrived))]
        if not found:
            return False
        self.trace.append(f"{run.partition} run {name} {found[0].offset}..{found[-1].offset}")
        heads = task.decode(number, found)
        if found[0].offset > position and self.random.random() < 0.5:
            task.skip_to(number, found[0].offset)
        taken = 0

        def take() -> None:
            nonlocal taken
            while taken < len(heads) and not task.draining:
                taken = task.run(number, heads, taken)
                if task.draining and self.random.random() < 0.5:
                    task.drain()

        self._guarded(run, take)
        return True

    def _guarded(self, run: Run, act: Callable[[], object]) -> None:
        """An app that stops at failures: commit what was taken before, or not, and begin anew."""
        try:
            act()
        except (HandlerError, BadRecordError) as error:
            if self.plan.on_error != "stop":
                raise
            self.stops += 1
            assert self.stops < 500, "it stops again and again"
            self.trace.append(f"{run.partition} stopped: {error}")
            if self.random.random() < 0.5:
                self._commit(run)
            self._crash(run)

    def _crash(self, run: Run) -> None:
        self.trace.append(f"{run.partition} crash")
        run.crash(settings_of(self.random))

    def _commit(self, run: Run) -> None:
        self.trace.append(
            f"{run.partition} commit, draining {run.task.draining}, fired {run.task.totals.fired}"
        )
        for output in run.commit():
            if output.topic == self.plan.inbox_topic:
                place = partition_of(output.key or b"", self.plan.partitions)
                append(self.log, output.topic, place, output.key, output.value, output.timestamp_ms)

    def _finish(self, run: Run) -> bool:
        """Read everything, end the inputs, commit; whether anything was left to do."""
        before = run.committed.store.cut
        random = self.random
        while run.task.draining or any(
            self._records(run, one.index, slice_of(random)) for one in self.plan.inputs
        ):
            while run.task.draining:
                self._guarded(run, run.task.drain)
        if random.random() < 0.5:
            for one in self.plan.operators:
                while run.task.draining:
                    self._guarded(run, run.task.drain)
                self._guarded(run, partial(run.task.ended, one.index))
            while run.task.draining:
                self._guarded(run, run.task.drain)
            for actor in self.plan.actors if random.random() < 0.3 else ():
                self._guarded(run, partial(run.task.finish, actor.index))
                while run.task.draining:
                    self._guarded(run, run.task.drain)
        if before is None or run.task.dirty or run.task.totals != tape.decode_cut(before).totals:
            self._commit(run)
        return run.committed.store.cut != before


# --- runs that follow --------------------------------------------------------------------------------------------


class Cause(NamedTuple):
    """A cause as the tape has it, with offsets: ``code`` is the tape's, ``name`` an input, a channel or an actor."""

    code: int
    name: str = ""
    start: int = 0
    stop: int = 0


Skips = dict[tuple[int, int, int], Headers]


def causes_of(plan: Plan, tapes: list[bytes]) -> tuple[list[Cause], Skips]:
    """The causes of all commits in one list, runs of one input joined across commits; and all skips."""
    causes: list[Cause] = []
    skips: Skips = {}
    positions = {one.name: 0 for one in plan.inputs}
    names: list[str] = []
    operators: list[str] = []
    numbers = {one.name: one.index for one in plan.inputs}
    for data in tapes:
        record = tape.decode_tape(data)
        names = names if record.inputs is None else [*record.inputs, *record.channels]
        operators = record.operators or operators
        for skip in record.skips:
            number = skip.input if skip.input < 0 else numbers[names[skip.input]]
            skips[number, skip.number, skip.operator] = tuple(skip.headers)
        codes = iter(record.causes)
        for code in codes:
            if code == tape.RUN:
                name, count = names[next(codes)], next(codes)
                start = positions[name]
                positions[name] = stop = start + count
                if causes and causes[-1].code == tape.RUN and causes[-1].name == name:
                    causes[-1] = causes[-1]._replace(stop=stop)
                else:
                    causes.append(Cause(code, name, start, stop))
            elif code == tape.CLOCK:
                causes.append(Cause(code, start=next(codes)))
            elif code in (tape.ENDED, tape.OPENED, tape.RISEN, tape.RAISED):
                operator = operators[next(codes)]
                start = next(codes) if code in (tape.RISEN, tape.RAISED) else 0
                causes.append(Cause(code, operator, start, next(codes) if code == tape.RAISED else 0))
            else:
                causes.append(Cause(code, names[next(codes)], next(codes)))
    return causes, skips


def follow(
    plan: Plan,
    partition: int,
    tapes: list[bytes],
    log: Records,
    random: Random,
    trace: list[str],
    store: Store | None = None,
) -> Committed:
    """Run a task again by the same causes, with slices, commits, crashes, caches and reloads of its own."""
    causes, skips = causes_of(plan, tapes)
    committed = Committed() if store is None else Committed(store)
    run = Run(plan, partition, committed, settings_of(random), log, replaying=True)
    commit_odds = random.choice((0.02, 0.3, 0.9))
    crash_odds = random.choice((0, 0.05, 0.2))
    last_drained = tape.decode_tape(tapes[-1]).totals.drained
    run.task.follow(skips, 1 << 62)
    at, fallback, crashes = 0, 0, 0
    while True:
        task = run.task
        chance = random.random()
        if chance < crash_odds and crashes < 100:
            trace.append(f"follow {partition}: crash, back to cause {fallback}")
            run.crash(settings_of(random))
            run.task.follow(skips, 1 << 62)
            at, crashes = fallback, crashes + 1
        elif chance < crash_odds + commit_odds * 0.5 and task.dirty:
            trace.append(f"follow {partition}: commit at cause {at}, draining {task.draining}")
            run.commit()
            fallback = at
        elif task.draining:
            task.drain(random.choice((None, 1, 2)))
        elif at == len(causes):
            break
        else:
            cause = causes[at]
            trace.append(f"follow {partition}: {cause} fired {task.totals.fired}")
            at += _cause(run, cause, log, random)
    assert task.totals.drained == last_drained, f"{last_drained} had been drained, now {task.totals.drained}"
    run.commit()
    return committed


def _cause(run: Run, cause: Cause, log: Records, random: Random) -> bool:
    """Bring a cause, or a part of a run of records, to the task; whether it is done."""
    task, code = run.task, cause.code
    numbers = {name: number for number, name in enumerate(run.plan.sources)}
    if code == tape.RUN:
        number, position = numbers[cause.name], task.positions[cause.name]
        found = pick(log.get((cause.name, run.partition), []), position, cause.stop)
        some = found[: slice_of(random)]
        if some:
            task.run(number, task.decode(number, some))
            if random.random() < 0.2:
                run.take()
        if len(some) == len(found) and (not some or task.positions[cause.name] == some[-1].offset + 1):
            task.skip_to(number, cause.stop)
        return task.positions[cause.name] == cause.stop
    if code == tape.CLOCK:
        task.clock(task.now + cause.start)
    elif code == tape.IDLE:
        task.idle(numbers[cause.name])
    elif code == tape.UPSTREAM:
        task.upstream(numbers[cause.name], task.watermark_of(numbers[cause.name]) + cause.start)
    else:
        operator = [one.name for one in run.plan.operators].index(cause.name)
        if code == tape.ENDED:
            task.ended(operator)
        elif code == tape.OPENED:
            task.opened(operator)
        elif code == tape.RAISED:
            task.raised({operator: cause.start}, more=bool(cause.stop))
        else:
            task.finish(operator, cause.start)
    return True


def assert_equal(first: Committed, again: Committed, what: str) -> None:
    """Outputs, state rows, measurements and standing are the same, byte for byte."""
    for number, (one, other) in enumerate(zip(first.outputs, again.outputs, strict=False)):
        assert one == other, f"{what}: output {number} differs"
    assert len(first.outputs) == len(again.outputs), f"{what}: another number of outputs"
    then, now = first.state(), again.state()
    for row in sorted(then.keys() | now.keys()):
        assert then.get(row) == now.get(row), f"{what}: the row {row!r} differs"
    assert first.standing() == again.standing(), f"{what}: stands elsewhere"
    assert first.measurements == again.measurements, f"{what}: metrics differ"


# --- whole runs ------------------------------------------------------------------------------------------------------

SIZES = (4, 4, 15, 15, 15, 40, 40, 40, 40, 300)
"""Records per input: mostly few, so that there can be many seeds."""


def first_run(
    model: Model, variant: Variant, random: Random, log: Records, trace: list[str], *, clock: bool = True
) -> First:
    """A run in which anything may happen. ``clock``: also timers of processing time."""
    Feed(model, variant, random, most=random.choice(SIZES), clock=clock).fill(log)
    flaky = random.choice((0.0, 0.3))
    Chance.fires = staticmethod(lambda: random.random() < flaky)
    try:
        first = First(model.app.plan(), log, random, trace)
        first.run(random.choice((5, 20, 60)))
    finally:
        Chance.fires = staticmethod(lambda: False)
    return first


def replayed(plan: Plan, partition: int, tapes: list[bytes], log: Records, random: Random) -> Committed:
    """A replay as the framework does it, commit by commit."""
    again = Committed(MemoryStore())
    task = Task(plan, partition, again.store, lineage=LINEAGE, settings=settings_of(random), replaying=True)
    replay = Replay(task, lambda name, start, stop: pick(log.get((name, partition), []), start, stop))
    for data in tapes:
        replay.take(tape.decode_tape(data))
        again.outputs += task.take_outputs()
        batch = task.commit_batch()
        again.store.write(batch.rows | batch.index_rows, batch.cut)
        again.measurements += batch.measurements
        task.committed()
    return again
