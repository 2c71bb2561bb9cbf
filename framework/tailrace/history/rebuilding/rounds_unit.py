"""The units of a rebuild in rounds: one partition in one round, and one partition put together (see ``core.engine.rounds``).

A round writes files for later units: rows, outputs, and what it sends to each partition, sorted by event time. A *frame*
of what is sent has all events up to the watermark that the task publishes then, so files can be merged while they are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.delivery import BEYOND
from tailrace.core.engine.input_lane import PartitionHistory
from tailrace.core.engine.observer import Watch
from tailrace.core.engine.rounds import (
    Behind,
    NotInRoundsError,
    joined,
    plan_of_round,
    published_in,
    rounds_of,
)
from tailrace.core.engine.task import Task
from tailrace.core.engine.timers import FOREVER
from tailrace.core.engine.watermarks import published_by
from tailrace.core.errors import ReplayDivergedError
from tailrace.core.records import CHANNEL, Headers, InputRecord, Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.beginnings import Beginning, rows_of_keys
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.rebuilding.blocks import BlockReader, BlockWriter
from tailrace.history.rebuilding.canonical_history import OwnInputs
from tailrace.history.rebuilding.canonical_unit import CanonicalRun, one_commit
from tailrace.history.rebuilding.job import Job, Unit
from tailrace.history.rebuilding.output_files import Frame, write_outputs
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.results import TaskResult, UnitResult
from tailrace.history.rebuilding.task_folder import write_rows
from tailrace.history.rebuilding.work_folder import WorkFolder

_AT_ONCE = 10_000

Sent: TypeAlias = tuple[int, int, bytes | None, bytes | None, Headers]
"""A record that the app has sent: event time, timestamp, key, value, headers."""
SentTo: TypeAlias = tuple[str, int]
"""Where records are sent: a topic or a channel, and a partition."""


class Made(msgspec.Struct):
    """What a round has made: the names of files in the folder of blocks, and what later units need to know."""

    cut: bytes
    schema: bytes
    rows: str
    outputs: str
    sent: list[tuple[SentTo, str, int]]
    """Files of what was sent, with their numbers of records."""
    published: dict[str, int | None]
    stood: dict[str, int | None]
    """The same as if no source was idle."""
    read: dict[str, int]
    """By topic that is read, the number of records."""


def made_in(job: Job, work: WorkFolder, number: int, partition: int) -> Made:
    """What a unit of an earlier round has made."""
    found = work.result(Unit(job=job, kind="round", partition=partition, round=number).name)
    if found is None:
        raise ReplayDivergedError(
            f"round {number} of partition {partition} has not been run", hint="Run the rebuild again."
        )
    return msgspec.msgpack.decode(found.made, type=Made)


def run_round(unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> UnitResult:
    """Run a partition in one round."""
    with ExitStack() as closing:
        try:
            return _RoundRun(unit, past, work, attempt, closing, Watch()).run()
        except NotInRoundsError as error:
            return UnitResult(unit=unit.name, attempt=attempt, not_in_rounds=str(error))


class _RoundRun(CanonicalRun):
    def prepare(self, begun: dict[int, Beginning]) -> None:
        """See ``CanonicalRun``."""
        job, number = self.job, self.unit.round
        self._whole, self._rounds = self.plan, rounds_of(self.plan)
        self.plan = plan_of_round(self._whole, self._rounds, number)
        for at, one in begun.items():
            begun[at] = replace(one, positions={**one.positions, **dict.fromkeys(self.own, BEYOND)})
        self._behind = Behind(self._whole)
        self.settings = replace(self.settings, promises=self._behind)
        numbers = range(job.partitions)
        self._before = [made_in(job, self.work, n, at) for n in range(number) for at in numbers]
        self._sends = _Sends(self, self._whole)
        inbox = {self.plan.inbox_topic} if self._channels() else set[str]()
        self._read = [one.name for one in self.plan.inputs if one.routes or one.name in inbox]

    def _channels(self) -> list[str]:
        """The channels of the actors of this round."""
        found = {one for operator in self.plan.operators for one in operator.sources}
        return [name for at, name in enumerate(self.plan.sources) if at in found and CHANNEL in name]

    def history(self, number: int) -> PartitionHistory:
        """See ``CanonicalRun``. Raises NotInRoundsError."""
        if self.unit.round:
            before = made_in(self.job, self.work, self.unit.round - 1, number)
            self.tasks[0].totals.outputs = tape.decode_cut(before.cut).totals.outputs
        outside = self.past.source(number)
        own = OwnInputs(self.job, self.past, number, outside)
        ends, upstream, read = dict[str, int](), dict[str, Any](), dict[str, Iterator[InputRecord]]()
        if not self._whole.has_messages and self.plan.inbox_topic in self.job.ends:
            own.check_sent(self.plan.inbox_topic, self.job.ends[self.plan.inbox_topic][number])
        for name in self._read:
            if name not in self.own:
                ends[name] = self.job.ends[name][number]
                continue
            own.check_sent(name, self.job.ends[name][number] if name in self.job.ends else 0)
            names = self._channels() if self.own[name].is_inbox else [name]
            places = [(of, number) for of in names]
            files = [one for made in self._before for one in made.sent if one[0] in places]
            read[name] = _merged(self.work, [file for _, file, _ in files])
            ends[name] = BEYOND + sum(count for *_, count in files)
            for of in names:
                marks = [at for made in self._before if (at := made.published.get(of)) is not None]
                stood = [at for made in self._before if (at := made.stood.get(of)) is not None]
                found = [min(marks)] if marks else [max(stood), None]
                upstream[of] = [(ends[name], mark) for mark in found]

        def source(name: str, start: int, stop: int) -> Sequence[InputRecord]:
            return list(islice(read[name], stop - start)) if name in read else outside(name, start, stop)

        timed = self.result.work.phases.reading(source)
        idle = {name for name, at in self.job.idle if at == number}
        return PartitionHistory(timed, ends, upstream, idle=idle, sent=[*read])

    def sent(self, task: Task, outputs: Sequence[Output]) -> None:
        """See ``CanonicalRun``."""
        self._sends.take(outputs)
        self._sends.flush(self._published(task.published_ms).get)

    def write(self, result: UnitResult) -> None:
        """See ``CanonicalRun``. Raises NotInRoundsError."""
        (task,), (sink,) = self.tasks, self.sinks
        sent, totals = self._sends.finish(), task.totals
        if sent and (totals.late or self._behind.behind):
            raise NotInRoundsError("some events were late, or emitted behind the watermark")
        if totals.refused:
            raise NotInRoundsError("some records are refused")
        store, outputs = sink.folder.store, sink.folder.finished_outputs()
        assert store.cut is not None
        state = ((row, value) for row, value in store.rows() if row[:1] == rows.STATE)
        rises = self.job.finish or self.job.request.as_of_ms is not None
        result.made = msgspec.msgpack.encode(
            Made(
                store.cut,
                store.get(rows.SCHEMA_ROW) or b"",
                self.block("rows", iter(lambda: list(islice(state, _AT_ONCE)), [])),
                "" if outputs is None else self.block("outputs", outputs),
                sent,
                self._published(task.published_ms if rises else self.order.reached.__getitem__),
                self._published(task.watermarks.of_operator.__getitem__),
                {one.name: one.count for one in self.order.lanes if one.name != self.plan.inbox_topic},
            )
        )

    def _published(self, of: Callable[[int], int | None]) -> dict[str, int | None]:
        """What is published for topics and channels, given what their writers publish."""
        some = published_in(self._whole, self._rounds, self.unit.round)
        return published_by(some, {writer: of(writer) for one in some for writer in one.writers})

    def block(self, what: str, frames: Iterator[Any]) -> str:
        """Write a file of blocks, and return its name."""
        with BlockWriter(self.work.blocks / f"{self.unit.name}-{what}-{self.attempt}") as writer:
            for one in frames:
                writer.write(one)
        return writer.path.name


class _Sends:
    """What one partition sends in a round: a file for each topic or channel, and each partition."""

    def __init__(self, run: CanonicalRun, whole: Plan) -> None:
        self._run, self._partitions = run, whole.partitions
        self._held: defaultdict[SentTo, list[Sent]] = defaultdict(list)
        self._files: dict[SentTo, BlockWriter] = {}
        self._counts: defaultdict[SentTo, int] = defaultdict(int)
        self._reached: dict[SentTo, int] = {}
        self._lags = {
            one.name: source.out_of_order_ms + 1 + one.out_of_order_ms
            for source in whole.inputs
            for one in whole.published
            if source.repartitioned and {route.operator for route in source.routes} == {*one.writers}
        }
        """By topic of forwarded records: how far one may be behind the one before."""
        self._highest: dict[str, int] = {}

    def take(self, outputs: Sequence[Output]) -> None:
        """Accept outputs. Raises NotInRoundsError."""
        for one in outputs:
            to = self._run.own.get(one.topic)
            if to is None:
                continue
            time_ms, name = one.timestamp_ms, one.topic
            if to.is_inbox:  # of messages that different rounds read, each has its own
                name = f"{name}{CHANNEL}{rows.decode_envelope(one.value or b'')[0]}"
            elif to.time_of is not None and one.value is not None:
                try:
                    time_ms = to.time_of(to.decode(one.value)) or time_ms
                except Exception as error:
                    raise NotInRoundsError(f"an event for {name} cannot be decoded: {error}") from error
            if (lag_ms := self._lags.get(name)) is not None:
                highest_ms = self._highest.get(name, time_ms)
                if time_ms <= highest_ms - lag_ms:
                    raise NotInRoundsError(f"late events are forwarded to {name}")
                self._highest[name] = max(time_ms, highest_ms)
            place = (name, partition_of(one.key or b"", self._partitions))
            self._held[place].append((time_ms, one.timestamp_ms, one.key, one.value, one.headers))

    def flush(self, marks: Callable[[str], int | None]) -> None:
        """Write all up to a watermark of each topic or channel. Raises NotInRoundsError."""
        for place, held in self._held.items():
            mark = marks(place[0])
            if mark is None or not held:
                continue
            held.sort(key=itemgetter(0))
            if held[0][0] <= self._reached.get(place, NO_WATERMARK):
                raise NotInRoundsError(f"some events were sent to {place[0]} behind its watermark")
            self._reached[place], stop = mark, bisect_right(held, mark, key=itemgetter(0))
            if stop:
                self._file(place).write(held[:stop])
                self._counts[place] += stop
                self._held[place] = held[stop:]

    def _file(self, place: SentTo) -> BlockWriter:
        if place not in self._files:
            name = f"{self._run.unit.name}-sent-{len(self._files)}-{self._run.attempt}"
            self._files[place] = BlockWriter(self._run.work.blocks / name)
        return self._files[place]

    def finish(self) -> list[tuple[SentTo, str, int]]:
        """Write the rest, and return the files."""
        self.flush(lambda _: FOREVER)
        for file in self._files.values():
            file.close()
        return [(place, file.path.name, self._counts[place]) for place, file in self._files.items()]


def _merged(work: WorkFolder, files: Sequence[str]) -> Iterator[InputRecord]:
    """The records of some files in the order of their event times; of equal ones, in the order of the files."""
    sent = (_flat(work, file, list[Sent]) for file in files)
    for number, (_, *fields) in enumerate(merge(*sent, key=itemgetter(0))):
        yield InputRecord(BEYOND + number, *fields)


def _flat(work: WorkFolder, name: str, type: Any) -> Iterator[Any]:
    return chain.from_iterable(BlockReader[list[Any]](work.blocks / name, type))


def run_gather(unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> UnitResult:
    """Put the rounds of a partition together."""
    job, plan, number = unit.job, past.plan, unit.partition
    every = [[made_in(job, work, n, at) for at in range(job.partitions)] for n in range(job.rounds)]
    mine = [some[number] for some in every]
    counts = [[one.read.get(name, 0) for one in mine] for name in {*chain(*(one.read for one in mine))}]
    now_ms = max(tape.decode_cut(one.cut).now for some in every for one in some)
    ends = {name: of[number] for name, of in job.ends.items()}
    cuts, twice = [tape.decode_cut(one.cut) for one in mine], sum(sum(some) - max(some) for some in counts)
    cut = one_commit(joined(plan, rounds_of(plan), cuts, ends, now_ms, twice), None)
    keys = job.request.keys
    wanted = rows_of_keys(plan, named_keys(plan, keys).keys if keys else None)
    state = merge(*(_flat(work, one.rows, list[tuple[bytes, bytes]]) for one in mine), key=itemgetter(0))
    kept = (pair for pair in state if wanted(pair[0]))
    files = [work.blocks / one.outputs for one in mine if one.outputs]
    frames = chain.from_iterable(BlockReader[Frame](file, Frame) for file in files)
    task = TaskResult(
        partition=number,
        cut=cut,
        totals=tape.decode_cut(cut).totals,
        state=write_rows(job, number, attempt, kept, mine[-1].schema),
        outputs=write_outputs(job, number, attempt, frames) if files else None,
    )
    return UnitResult(unit=unit.name, attempt=attempt, tasks=(task,))
