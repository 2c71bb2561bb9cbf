"""The whole service under faults, in one process: workers on a log in memory, or on the embedded log with RocksDB.

One seed gives one run. A worker takes turns while the inputs grow; at any operation of the log (and of the states in memory) it may be
struck, by its death (everything in memory is dropped, log and states stay), by a log that does not answer, by a commit whose outcome
nobody tells, by a disk that is full. It may sleep while another takes over with a state of its own, be handed over, and lose its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import TaskSettings
from tailrace.core.errors import (
    BadRecordError,
    FencedError,
    HandlerError,
    LogUnavailableError,
    StateUnavailableError,
    TailraceError,
)
from tailrace.core.records import InputRecord, Output, RawOutput
from tailrace.core.storage import Store
from tailrace.core.values.partitioner import partition_of
from tailrace.history.comparing.state_folders import LiveFolder
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.stretches import scan
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions, ReplayReport
from tailrace.history.snapshots.start_from_snapshot import Start, start_from
from tailrace.log import TopicPartition, TopicSettings, Writer
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.options import LogOptions
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.progress import last_phase
from tailrace.runtime.worker import Worker, WorkerHooks, WorkerSettings
from tailrace.state import StateIdentity, StateMemory, open_store
from tailrace.testing import MemoryLog, replaying
from tests.cast.member import Found
from tests.proof.strikes import AWAY, FULL, KILL, UNKNOWN, Kill, SimulatedStore, random_settings
from tests.soak import checks

_STRIKES = (KILL, KILL, UNKNOWN, AWAY, FULL)
_STRIKES_ON_DISK = (KILL, KILL, UNKNOWN, AWAY)
_OPERATIONS = ("take-over", "query", "append", "commit", "committed", "fetch", "store", "stored", "abort")
_QUIET_TURNS = 20_000


class StruckLog(EmbeddedLog):
    """An embedded log that passes a hook at the operations that can be struck."""

    def __init__(self, path: Path, on_operation: Callable[[str], None], options: LogOptions) -> None:
        super().__init__(path, options)
        self._on_operation = on_operation

    def writer(self, transactional_id: str, /) -> Writer:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # it wraps the other
        self._on_operation("take-over")
        return StruckWriter(super().writer(transactional_id), self._on_operation)

    def end_offset(self, topic: str, partition: int, /) -> int:
        self._on_operation("query")
        return super().end_offset(topic, partition)


class StruckWriter:
    """A writer of that log."""

    shared, lost = None, False

    def __init__(self, writer: Writer, on_operation: Callable[[str], None]) -> None:
        self.transactional_id = writer.transactional_id
        self.inner = writer
        self._on_operation = on_operation

    def append(self, outputs: Iterable[RawOutput], /, partition: int | None = None) -> None:
        self._on_operation("append")
        self.inner.append(outputs, partition)

    def commit(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        group: str = "",
        watermarks: Mapping[str, int | None] | None = None,
        /,
    ) -> Mapping[TopicPartition, int]:
        self._on_operation("commit")
        ends = self.inner.commit(offsets, group, watermarks)
        self._on_operation("committed")
        return ends

    def abort(self) -> None:
        self.inner.abort()

    def close(self) -> None:
        self.inner.close()


class World:
    """A service and what outlives it. ``folder`` None: all of it is in memory."""

    def __init__(
        self,
        plan: Plan,
        seed: int,
        inputs: Sequence[Output],
        folder: Path | None,
        flaky: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.plan = plan
        self.random = Random(f"run {seed}")
        self.folder = folder
        self.trace: list[str] = []
        self.faults = 0
        self.moved = False
        self.now_ms = 1_000_000
        self.start: Start | None = None
        """The snapshot that tasks begin with."""
        self._armed: Callable[[str], None] | None = None
        self._stores: dict[tuple[int, int], SimulatedStore] = {}
        self.log: Any = self.new_log("log")
        self._inputs = list(inputs)
        self._flaky = flaky
        self._worker: Worker | None = None
        self._sleeping: list[Worker] = []
        self._states = self._owners = 0
        self._memory = StateMemory(8 << 20)
        self._prepare()

    def new_log(self, name: str) -> Any:
        """An empty log beside the others."""
        if self.folder is None:
            return MemoryLog(markers=self.random.random() < 0.7, on_operation=self._pass)
        return StruckLog(self.folder / name, self._pass, LogOptions())

    def _prepare(self) -> None:
        prepare_log(self.log, self.plan, create_declared=True)
        for one in self.plan.inputs:
            if not one.is_inbox:
                self.log.create_topic(one.name, TopicSettings(self.plan.partitions))

    def run(self, steps: int) -> ReplayReport:
        """A life under faults to its end, and all of it replayed from nothing."""
        self.live(steps)
        self.rest(ends=True)
        report = self.replay()
        self.close()
        return report

    def live(self, steps: int) -> None:
        """So many steps, with whatever a seed makes strike."""
        try:
            for _ in range(steps):
                self._step()
        finally:
            self._drop_all()

    def feed(self, inputs: Sequence[Output]) -> None:
        """More inputs, which come bit by bit."""
        self._inputs += inputs

    def rest(self, inputs: Sequence[Output] | None = None, *, ends: bool = False) -> None:
        """Without faults, read what is left (or what is given) and everything else there is; ``ends``: and all inputs end."""
        if inputs is not None:
            self._inputs = [*inputs, *self._inputs]
        try:
            self._settle(len(self._inputs) if inputs is None else len(inputs), ends=ends)
        finally:
            self._drop_all()

    def replay(self) -> ReplayReport:
        """Check the numbers of the outputs, and replay all from nothing: it must be the same bytes."""
        if not self.moved and not any(self.log.topics()[name].compacted for name in self.plan.outputs):
            checks.check_numbers(self.log, self.plan)
        if self.folder is None:
            stores = [self._open(self._states, number) for number in range(self.plan.partitions)]
            return replaying.replay(self.plan, self.log, stores, TaskSettings())
        self.log.verify()
        with closing(LiveFolder(self.state, self.plan)) as live:
            report = replay(self.plan, self.log, ReplayOptions(compare=True), live=live.states)
            assert not live.notes, live.notes
        assert not report.differences.count, report.differences.shown
        assert {"outputs", "the changelog", f"the state in {self.state / self.plan.app}"} <= set(
            report.compared
        )
        return report

    def lose_state(self) -> None:
        """Another machine."""
        self._states += 1

    def move(self, log: Any, plan: Plan) -> None:
        """Go on with another log; the former is closed."""
        self.log.close()
        self.log, self.plan, self.moved = log, plan, True
        self.lose_state()

    def rows(self) -> dict[bytes, bytes]:
        """What the changelogs of all tasks come to together."""
        history, found = AppHistory(self.plan, self.log), list[tuple[bytes, bytes]]()
        for number in range(self.plan.partitions):
            some = history.committed(number, with_rows=True).rows
            found += () if some is None else some.scan(rows.STATE, rows.prefix_end(rows.STATE))
        assert len(dict(found)) == len(found), "a row is in two tasks"
        return dict(found)

    def outputs(self, app: tr.App, topics: Iterable[str]) -> Found:
        """What is in these topics and that of dead letters: decoded, of a table the last values, of dead letters reason and key."""
        found = Found()
        for name in (*topics, self.plan.dead_letters_topic):
            if name not in self.log.topics():
                continue
            count = self.log.partitions(name)
            some = [(number, one) for number in range(count) for one in scan(self.log, name, number)]
            if name in app.topics:
                assert all(one.key is None or partition_of(one.key, count) == number for number, one in some)
            found.update(decoded(app, name, [one for _, one in some]))
        return found

    def close(self) -> None:
        """Let go of everything."""
        self._drop_all()
        self.log.close()

    def _drop_all(self) -> None:
        self._armed = None
        for worker in (self._worker, *self._sleeping):
            drop(worker)
        self._worker, self._sleeping = None, []

    @property
    def state(self) -> Path:
        """The folder of the present state."""
        assert self.folder is not None
        return self.folder / f"state-{self._states}"

    def _step(self) -> None:
        random = self.random
        count = random.randint(0, 6)
        self._feed(count)
        self.now_ms += random.choice((-500, 0, 7, 600, 40_000))
        chance = random.random()
        if chance < 0.1 and self._worker is not None:
            self._note("sleeps, and another takes over")
            self._sleeping.append(self._worker)
            self._worker, self._states = None, self._states + 1
            self.faults += 1
        elif chance < 0.2 and self._sleeping:
            self._wake(self._sleeping.pop())
        elif chance < 0.28 and self._worker is not None:
            self._note("is handed over")
            worker, self._worker = self._worker, None
            self._guarded(worker, worker.leave)
            if random.random() < 0.5:
                self._note("state is lost")
                self.lose_state()
                self.faults += 1
        elif chance < 0.34:
            self._note("is cleaned")
            if self.folder is None:
                self.log.compact(self.plan.changelog_topic, drop_deletions=False)
            else:
                self.log.clean()
        else:
            self._work()

    def _work(self) -> None:
        random = self.random
        if random.random() < 0.5:
            self._arm()
        self._flaky(random.random() < 0.3)
        worker = self._worker
        if worker is None:
            worker = self._worker = self._new()
            self._guarded(worker, worker.start)
        for _ in range(random.randint(1, 6)):
            if self._worker is None:
                break
            self._note("takes a turn")
            self._guarded(worker, worker.turn)
        self._armed = None
        self._flaky(False)

    def _guarded(self, worker: Worker, act: Callable[[], object]) -> None:
        """What ends a worker, ends it: nothing is committed on the way out."""
        try:
            act()
        except (Kill, HandlerError, BadRecordError, LogUnavailableError, StateUnavailableError) as error:
            self._note(f"ended by {type(error).__name__}")
            self._armed = None
            drop(worker)
            self._worker = None

    def _wake(self, worker: Worker) -> None:
        """One that slept goes on. It may have been replaced meanwhile, and then can do nothing."""
        self._note("one that slept wakes")
        try:
            worker.turn()
            worker.leave()
        except (FencedError, HandlerError, BadRecordError) as error:
            self._note(f"and ends: {type(error).__name__}")
        drop(worker)
        if self._worker is not None:
            return
        self._states += 1

    def _settle(self, count: int, *, ends: bool) -> None:
        self._armed = None
        self._feed(count)
        self._drop_all()
        self._note("runs to its end")
        worker = self._worker = self._new(bounded=True)
        worker.start()
        for _ in range(_QUIET_TURNS):
            self.now_ms += 10  # the merge may wait for a while
            worker.turn()
            if worker.quiet:
                if not ends or worker.phase == last_phase(worker.plan):
                    break
                worker.advance()
        else:
            raise AssertionError("it never comes to rest")
        worker.leave()

    def _feed(self, count: int) -> None:
        some, self._inputs = self._inputs[:count], self._inputs[count:]
        if some:
            self.log.append_all(some)

    def _new(self, *, bounded: bool = False) -> Worker:
        random = self.random
        self._owners += 1
        settings = WorkerSettings(
            slice_records=random.choice((1, 3, 50, 10_000)),
            retry_ms=1,
            retry_most_ms=1,
            partition=replace(random_settings(random), bounded=bounded),
        )
        return Worker(
            self.plan,
            self.log,
            range(self.plan.partitions),
            partial(self._open, self._states),
            settings=replace(settings, bounded=bounded),
            hooks=WorkerHooks(check_owned=partial(self._check_owned, self._owners), begin=self._begin),
            clock=lambda: self.now_ms,
        )

    def _open(self, state: int, number: int) -> Store:
        if self.folder is None:
            return self._stores.setdefault((state, number), SimulatedStore(self._pass))
        place = self.folder / f"state-{state}" / self.plan.app / str(number)
        return open_store(place, StateIdentity(self.plan.app, number), self._memory)

    def _begin(self, number: int, store: Store) -> None:
        if self.start is not None:
            start_from(self.plan, number, self.log, store, self.start, 1)

    def _check_owned(self, owner: int) -> None:
        """As a claim does: the last who asked for the tasks has them."""
        if owner != self._owners:
            raise FencedError("another has been started since")

    def _arm(self) -> None:
        strike = self.random.choice(_STRIKES if self.folder is None else _STRIKES_ON_DISK)
        at = strike.at or frozenset(_OPERATIONS)
        left = self.random.randint(1, 8)

        def struck(name: str) -> None:
            nonlocal left
            left -= name in at
            if left == 0:
                self.faults += 1
                self._armed = None
                self._note(f"{strike.name} at {name}")
                raise strike.error()

        self._armed = struck

    def _pass(self, name: str) -> None:
        if self._armed is not None:
            self._armed(name)

    def _note(self, what: str) -> None:
        self.trace.append(what)


def decoded(app: tr.App, topic: str, records: Iterable[InputRecord | Output]) -> Found:
    """Records of a topic as the oracles of the cast say them."""
    if topic not in app.topics:
        return Found((topic, (dict(one.headers)["tailrace-reason"], one.key)) for one in records)
    declared = app.topics[topic]
    if declared.is_table:
        records = {one.key: one for one in records}.values()
    decode = msgspec.json.Decoder(declared.type).decode
    return Found((topic, decode(one.value)) for one in records if one.value is not None)


def drop(worker: Worker | None) -> None:
    """Let go of the folders, as death does; nothing is committed."""
    if worker is None:
        return
    for slot in worker.slots:
        if slot.partition is not None:
            try:
                slot.partition.close()
            except TailraceError:
                pass
            slot.partition = None
