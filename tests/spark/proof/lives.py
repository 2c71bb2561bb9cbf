"""A live run of a seed's app on a real log: workers that are struck, replaced and handed over; and what it has come to."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.records import InputRecord, Output
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding.output_files import MANIFEST, OutputsManifest
from tailrace.history.rebuilding.request import PARQUET, Request
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.environment import timezones_version
from tailrace.runtime.worker import Worker
from tailrace.state.snapshots import Place, Snapshots
from tailrace.state.snapshots.arrow import parquet
from tests.cast.world import World
from tests.history.rebuilding.lived import TaskState, live, rebuilt
from tests.proof.operations import Chance
from tests.proof.seeds import START_MS
from tests.spark.proof.seeded import Given, given

STEPS = 20
CAUSES = {
    tape.RUN: "runs",
    tape.CLOCK: "clock readings",
    tape.IDLE: "idle",
    tape.UPSTREAM: "upstream watermarks",
    tape.ENDED: "ends of inputs",
    tape.OPENED: "opened",
    tape.RISEN: "finished",
}


class Fed:
    """Appends the records of the inputs, each to its partition, and now and then what a service before would publish."""

    def __init__(self, log: EmbeddedLog, one: Given, random: Random) -> None:
        self._log = log
        self._left = list(one.inputs)
        self._random = random
        self._writer = log.writer("feeder")
        self._followed = {each.name for each in one.app.plan().inputs if each.watermark == "upstream"}
        self._mark = START_MS

    def feed(self, count: int) -> None:
        some, self._left = self._left[:count], self._left[count:]
        for partition, output in some:
            if output.topic in self._followed and self._random.random() < 0.5:
                self._mark += self._random.choice((0, 5, 700, 4_000))
                self._writer.append([output], partition)
                self._writer.commit(None, "", {output.topic: self._mark})
            else:
                self._log.append_all([output], partition)

    def rest(self) -> None:
        self.feed(len(self._left))


class Life(World):
    """One life. It ends with its inputs, or before: with whatever was committed last."""

    def __init__(self, seed: int, folder: Path) -> None:
        one = given(seed)
        chance = Random(f"chance {seed}")

        def flaky(may_fail: bool) -> None:
            Chance.fires = staticmethod(lambda: may_fail and chance.random() < 0.5)

        super().__init__(one.app.plan(), seed, [], folder, flaky)
        self._fed = Fed(self.log, one, self.random)
        self._wanted = one.wanted
        self._pace = self.random.choice((1, 4))
        self.ended = False
        """Whether it came to its end: every drain is done."""

    def live(self, steps: int = STEPS) -> None:
        try:
            for _ in range(steps):
                self.now_ms += self.random.choice((0, 0, 0, 0, 70_000))  # long enough to be idle
                self._step()
            if self.random.random() < 0.4:
                self._stop_on_the_way()
            settles = 0.4 if self._wanted is None else 0.8
            if not self.log.end_offset(self.plan.tape_topic, 0) or self.random.random() < settles:
                self._fed.rest()
                self.rest(ends=True)
                self.ended = True
        finally:
            self._flaky(False)
            self.close()

    def _feed(self, count: int) -> None:
        self._fed.feed(count * self._pace)

    def _new(self, *, bounded: bool = False) -> Worker:
        worker = super()._new(bounded=bounded)
        partition = worker.settings.partition
        task = replace(partition.task, timezones=timezones_version())
        worker.settings = replace(worker.settings, partition=replace(partition, task=task))
        return worker

    def _stop_on_the_way(self) -> None:
        """The last that is heard of it is a commit, with what it has just sent still to be read."""
        self._drop_all()
        self._feed(4)
        worker = self._worker = self._new()
        for act in (worker.start, worker.turn, worker.leave):
            if self._worker is worker:  # else that has ended it
                self._guarded(worker, act)
        self._worker = None


def never_lived(seed: int, folder: Path) -> None:
    """A log that has the inputs, and nothing else."""
    one = given(seed)
    plan = one.app.plan()
    log = EmbeddedLog(folder / "log")
    for each in plan.inputs:
        if not each.is_inbox:
            log.create_topic(each.name, TopicSettings(plan.partitions))
    Fed(log, one, Random(f"fed {seed}")).rest()
    log.close()


# --- what it has come to -----------------------------------------------------------------------------------------------


class Whole(NamedTuple):
    """All there is to a run, by task: rows with timers and cut, outputs in their order, messages under way."""

    states: list[TaskState]
    outputs: list[list[Output]]
    messages: list[list[InputRecord]]


def lived(folder: Path, plan: Plan) -> Whole:
    """What the log says that a service has come to."""
    states = [one if one.cut is not None else one._replace(position=-1) for one in live(folder, plan)]
    cuts = [None if one.cut is None else tape.decode_cut(one.cut) for one in states]
    counts = [0 if cut is None else cut.totals.outputs for cut in cuts]
    log = EmbeddedLog(folder / "log", create=False)
    try:
        found = AppHistory(plan, log).outputs({number: range(count) for number, count in enumerate(counts)})
        outputs = [[found[number][at] for at in range(count)] for number, count in enumerate(counts)]
        messages: list[list[InputRecord]] = [[] for _ in cuts]
        if plan.inbox_topic is not None:
            for number, cut in enumerate(cuts):
                if cut is not None:
                    start = cut.positions[plan.inbox_topic]
                    messages[number] = list(scan(log, plan.inbox_topic, number, start))
        return Whole(states, outputs, messages)
    finally:
        log.close()


def made(asked: Request, plan: Plan, id: str) -> Whole:
    """What a rebuild has come to."""
    snapshot = Snapshots(asked.to.uri, plan.app).open(id)
    assert snapshot.verify() == []
    folder = Place.at(asked.to.outputs.removeprefix(PARQUET)) / plan.app / id
    named = msgspec.json.decode((folder / MANIFEST).read(), type=OutputsManifest)
    assert {one.name for one in folder.entries()} == {MANIFEST, *(file.name for file in named.files)}
    outputs: list[list[Output]] = [[] for _ in range(plan.partitions)]
    for file in named.files:
        table = parquet.read_table(folder.path + f"/{file.name}")
        times = table.column("timestamp").cast("int64").to_pylist()
        for row, time_ms in zip(table.to_pylist(), times, strict=True):
            assert row["number"] == len(outputs[file.partition]), "a gap in the numbers"
            headers = tuple((one["key"], one["value"]) for one in row["headers"])
            output = Output(row["topic"], row["key"], row["value"], time_ms, headers)
            outputs[file.partition].append(output)
    messages = [list(snapshot.messages(number)) for number in range(plan.partitions)]
    return Whole(rebuilt(snapshot), outputs, messages)


def files(asked: Request, plan: Plan, id: str) -> list[list[tuple[str, int, str]]]:
    """The files of a snapshot, by task: table, rows, checksum."""
    manifest = Snapshots(asked.to.uri, plan.app).open(id).manifest
    return [[(one.table, one.rows, one.sha256) for one in task.files] for task in manifest.tasks]


def assert_same(one: Whole, other: Whole, what: str) -> None:
    """Every byte; the first difference is told."""
    for number, (then, now) in enumerate(zip(one.states, other.states, strict=True)):
        mine, others = dict(then.rows), dict(now.rows)
        for row in sorted(mine.keys() | others.keys()):
            assert mine.get(row) == others.get(row), f"{what}: task {number}: the row {row!r} differs"
        assert then == now, f"{what}: task {number} stands elsewhere"
    for number, (emitted, again) in enumerate(zip(one.outputs, other.outputs, strict=True)):
        for at, (first, second) in enumerate(zip(emitted, again, strict=False)):
            assert first == second, f"{what}: output {at} of task {number} differs"
        assert len(emitted) == len(again), f"{what}: task {number}: another number of outputs"
    assert one.messages == other.messages, f"{what}: other messages are under way"


def figures(folder: Path, plan: Plan) -> Counter[str]:
    """What there was in a life."""
    log = EmbeddedLog(folder / "log", create=False)
    counts: Counter[str] = Counter()
    try:
        history = AppHistory(plan, log)
        for number in range(plan.partitions):
            for record in history.tapes(number, 1 << 62):
                counts["commits"] += 1
                counts["skips"] += len(record.skips)
                counts["timers skipped"] += sum(skip.input < 0 for skip in record.skips)
                for code, *_ in tape.causes_of(record.causes):
                    counts[CAUSES[code]] += 1
            cut = history.committed(number).cut
            if cut is not None:
                counts.update(msgspec.structs.asdict(tape.decode_cut(cut).totals))
    finally:
        log.close()
    return counts
