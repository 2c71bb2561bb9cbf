"""The proof's random apps on what a service really runs on: workers, the embedded log, RocksDB, in one process.

One seed gives one run. A worker takes turns while the inputs grow; at any operation of the log it may be struck, by its death
(everything in memory is dropped, the folders stay), by a log that does not answer, by a commit whose outcome nobody
tells. It may sleep while another takes over with a state of its own, be handed over, and lose its state. In the end
everything is read, and all of it replayed from nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import TaskSettings
from tailrace.core.errors import BadRecordError, FencedError, HandlerError, LogUnavailableError, TailraceError
from tailrace.core.records import Output, RawOutput
from tailrace.core.storage import Store
from tailrace.history.replay.report import ReplayReport
from tailrace.log import TopicPartition, TopicSettings, Writer
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.options import LogOptions
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.progress import last_phase
from tailrace.runtime.worker import Worker, WorkerHooks, WorkerSettings
from tailrace.state import StateIdentity, StateMemory, open_store
from tests.proof.strikes import AWAY, KILL, UNKNOWN, Kill, random_settings
from tests.soak import checks

_STRIKES = (KILL, KILL, UNKNOWN, AWAY)
_OPERATIONS = ("take-over", "query", "append", "commit", "committed")
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


class Run:
    """One run; ``run`` is all of it."""

    def __init__(
        self, plan: Plan, seed: int, inputs: list[Output], folder: Path, flaky: Callable[[bool], None]
    ) -> None:
        self.plan = plan
        self.random = Random(f"run {seed}")
        self.folder = folder
        self.trace: list[str] = []
        self.faults = 0
        self.now_ms = 1_000_000
        self._armed: Callable[[str], None] | None = None
        options = LogOptions()
        self.log = StruckLog(folder / "log", self._pass, options)
        prepare_log(self.log, plan, create_declared=True)
        for one in plan.inputs:
            if not one.is_inbox:
                self.log.create_topic(one.name, TopicSettings(plan.partitions))
        self._inputs = inputs
        self._flaky = flaky
        self._worker: Worker | None = None
        self._sleeping: list[Worker] = []
        self._states = self._owners = 0
        self._memory = StateMemory(8 << 20)

    def run(self, steps: int) -> ReplayReport:
        """Do it all, and replay it."""
        try:
            for _ in range(steps):
                self._step()
            self._settle()
        finally:
            for worker in (self._worker, *self._sleeping):
                drop(worker)
        checks.check_numbers(self.log, self.plan)
        self.log.verify()
        try:
            return checks.check_replay(self.log, self.plan, self._state, TaskSettings())
        finally:
            self.log.close()

    @property
    def _state(self) -> Path:
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
                shutil.rmtree(self._state, ignore_errors=True)
                self.faults += 1
        elif chance < 0.34:
            self._note("is cleaned")
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
        except (Kill, HandlerError, BadRecordError, LogUnavailableError) as error:
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

    def _settle(self) -> None:
        self._armed = None
        self._feed(len(self._inputs))
        for worker in (self._worker, *self._sleeping):
            drop(worker)
        self._sleeping = []
        self._note("runs to its end")
        worker = self._worker = self._new(bounded=True)
        worker.start()
        for _ in range(_QUIET_TURNS):
            self.now_ms += 10  # the merge may wait for a while
            worker.turn()
            if worker.quiet:
                if worker.phase == last_phase(worker.plan):
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
            partition=random_settings(random),
        )
        return Worker(
            self.plan,
            self.log,
            range(self.plan.partitions),
            partial(self._open, self._state),
            settings=replace(settings, bounded=bounded),
            hooks=WorkerHooks(check_owned=partial(self._check_owned, self._owners)),
            clock=lambda: self.now_ms,
        )

    def _open(self, state: Path, number: int) -> Store:
        place = state / self.plan.app / str(number)
        return open_store(place, StateIdentity(self.plan.app, number), self._memory)

    def _check_owned(self, owner: int) -> None:
        """As a claim does: the last who asked for the tasks has them."""
        if owner != self._owners:
            raise FencedError("another has been started since")

    def _arm(self) -> None:
        strike = self.random.choice(_STRIKES)
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
