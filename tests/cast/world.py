"""The whole service under faults, in one process: workers on a log in memory, or on the embedded log with RocksDB.

Theory. A seed gives a run, but for the moments of retries, which are of the real clock. A worker takes turns while the inputs grow; at any operation of the log (and of the states in memory) it
may be struck. In memory, the committed records are checked after every step (``CommitObserver``)::

    kill         the worker ends before, in or after an operation       log and states stay; the next owner finds what was committed
    unknown      a commit took effect, or not, and nobody says which    the owner looks
    log away     the log does not answer                                the owner ends, or waits
    disk full    a state in memory cannot be written                    the owner ends; the log knows
    zombie       a worker sleeps while another takes over               it is fenced
    rebalance    handed over to a worker with the same state or none    restored from the changelog
    lost store   deleted, or (in memory) without its tail               restored from the changelog
    duplicate    a producer sends a record twice (if that is asked)     two records
    flaky        what a handler depends on outside fails (``flaky``)    stops or goes to the dead letters, once
    the log      compacts, expires a transaction, is started again      workers that were fenced by it begin anew
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import msgspec

from tailrace.core import errors, rows
from tailrace.core.declare.app import App
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import TaskSettings
from tailrace.core.names import transactional_id
from tailrace.core.records import Output
from tailrace.core.storage import Store
from tailrace.core.values.partitioner import partition_of
from tailrace.history.comparing.replayed_state import LiveFolder
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.stretches import scan
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions, ReplayReport
from tailrace.history.snapshots.start_from_snapshot import Start, start_from
from tailrace.log import TopicSettings
from tailrace.log.options import LogOptions
from tailrace.processes.environment import timezones_version
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.progress import last_phase
from tailrace.runtime.worker import Worker, WorkerHooks, WorkerSettings
from tailrace.state import StateIdentity, StateMemory, open_store
from tailrace.testing import MemoryLog, replaying
from tests.cast.member import Found
from tests.cast.struck_log import StruckLog
from tests.proof.invariants import CommitObserver
from tests.proof.strikes import AWAY, FULL, KILL, UNKNOWN, Kill, SimulatedStore, random_settings
from tests.soak import checks

_STRIKES = (KILL, KILL, UNKNOWN, AWAY, FULL)
_STRIKES_ON_DISK = (KILL, KILL, UNKNOWN, AWAY)
_OPERATIONS = ("take-over", "query", "append", "commit", "committed", "fetch", "store", "stored", "abort")
_QUIET_TURNS = 20_000


class World:
    """A service and what outlives it. ``folder`` None: all of it is in memory."""

    def __init__(
        self,
        plan: Plan,
        seed: int,
        inputs: Sequence[Output],
        folder: Path | None,
        flaky: Callable[[bool], None] = lambda _: None,
        *,
        duplicates: bool = False,
    ) -> None:
        self.plan = plan
        self.random = Random(f"run {seed}")
        self.folder = folder
        self.trace: list[str] = []
        self.faults = Counter[str]()
        self.tick_ms = 10
        """How far the clock moves in a turn without faults: the merge may wait for a while."""
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
        self._duplicates, self._disturbed = duplicates, False
        self._copies: dict[tuple[int, int], SimulatedStore] = {}
        self._prepare()
        self.observer = CommitObserver(plan, self.log) if folder is None else None

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
                self.look()
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
            return replaying.replay(self.plan, self.log, stores, TaskSettings(timezones=timezones_version()))
        self.log.verify()
        with closing(LiveFolder(self.state, self.plan)) as live:
            report = replay(
                self.plan,
                self.log,
                ReplayOptions(compare=True, settings=TaskSettings(timezones=timezones_version())),
                live=live.states,
            )
            assert not live.notes, live.notes
        assert not report.differences.count, report.differences.shown
        assert {"outputs", "the changelog", f"the state in {self.state / self.plan.app}"} <= set(
            report.compared
        )
        return report

    def lose_state(self) -> None:
        """Another machine: nothing on its disk."""
        self._states += 1

    def become(self, plan: Plan) -> None:
        """Go on as another app on this log."""
        self.plan, self.moved = plan, True
        prepare_log(self.log, plan, create_declared=True)

    def move(self, log: Any, plan: Plan) -> None:
        """Go on with another log; the former is closed."""
        self.log.close()
        self.log, self.plan, self.moved = log, plan, True
        self.lose_state()

    def look(self) -> None:
        """In memory, check what must hold after every step."""
        if self.observer is None:
            return
        strike, self._armed = self._armed, None
        self.observer.look()
        for (_, number), store in [*self._stores.items()]:
            self.observer.look_at_store(number, store)
        self._armed = strike

    def rows(self) -> dict[bytes, bytes]:
        """What the changelogs of all tasks come to together."""
        history, found = AppHistory(self.plan, self.log), list[tuple[bytes, bytes]]()
        for number in range(self.plan.partitions):
            some = history.committed(number, with_rows=True).rows
            found += () if some is None else some.scan(rows.STATE, rows.prefix_end(rows.STATE))
        assert len(dict(found)) == len(found), "a row is in two tasks"
        return dict(found)

    def outputs(self, app: App, topics: Iterable[str]) -> Found:
        """What is in these topics and that of dead letters: decoded, of a table the last values, of dead letters reason and key."""
        found = Found()
        for name in (*topics, self.plan.dead_letters_topic):
            if name not in self.log.topics():
                continue
            found.update(decoded(app, name, self.written(name)))
            if name in app.topics:
                count = self.log.partitions(name)
                for number in range(count):
                    keys = (one.key for one in scan(self.log, name, number))
                    assert all(key is None or partition_of(key, count) == number for key in keys)
        return found

    def written(self, topic: str) -> list[Output]:
        """The records of a topic, by partition."""
        return [
            Output(topic, one.key, one.value, one.timestamp_ms, one.headers)
            for number in range(self.log.partitions(topic))
            for one in scan(self.log, topic, number)
        ]

    def close(self) -> None:
        """Let go of everything."""
        self._drop_all()
        self.log.close()

    def _drop_all(self) -> None:
        self._armed = None
        for worker in (self._worker, *self._sleeping):
            self._drop(worker)
        self._worker, self._sleeping = None, []

    def _drop(self, worker: Worker | None) -> None:
        """It is dead: what it has opened is left as it is, if others can still have it."""
        if self.folder is not None:
            drop(worker)

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
            self.faults["zombie"] += 1
        elif chance < 0.2 and self._sleeping:
            self._wake(self._sleeping.pop())
        elif chance < 0.28 and self._worker is not None:
            self._note("is handed over")
            worker, self._worker = self._worker, None
            self._guarded(worker, worker.leave)
            self.faults["rebalance"] += 1
            if random.random() < 0.5:
                self._lose_some()
        elif chance < 0.36:
            self._disturb()
        else:
            self._work()
        if self.folder is None and random.random() < 0.2:
            self._copies = {place: store.copy() for place, store in self._stores.items()}

    def _lose_some(self) -> None:
        """The state of the last owner is gone, or in memory is what it was a while ago."""
        self.faults["lost store"] += 1
        self._note("state is lost")
        old = {place: store.copy() for place, store in self._copies.items() if place[0] == self._states}
        if old and self.random.random() < 0.7:
            self._note("in part")
            self._stores.update(old)
        else:
            self.lose_state()

    def _disturb(self) -> None:
        """What a log does by itself."""
        kind = self.random.choice(("compaction", "expired transaction", "log restart"))
        if self.folder is not None:
            kind = "cleaning"
            self.log.clean()
        elif kind == "compaction":
            self.log.compact(self.plan.changelog_topic, drop_deletions=False)
        elif kind == "expired transaction":
            self._disturbed = True
            self.log.expire(transactional_id(self.plan.app, self.random.randrange(self.plan.partitions)))
        else:
            self._disturbed = True
            self.log.crash()
        self.faults[kind] += 1
        self._note(kind)

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
            with repeatable():
                act()
        except (
            Kill,
            errors.HandlerError,
            errors.BadRecordError,
            errors.LogUnavailableError,
            errors.StateUnavailableError,
            errors.FencedError,
        ) as error:
            if isinstance(error, errors.FencedError) and not self._disturbed:
                raise
            self._note(f"ended by {type(error).__name__}")
            self._armed = None
            self._drop(worker)
            self._worker = None

    def _wake(self, worker: Worker) -> None:
        """One that slept goes on. It may have been replaced meanwhile, and then can do nothing."""
        self._note("one that slept wakes")
        try:
            with repeatable():
                worker.turn()
                worker.leave()
        except (errors.FencedError, errors.HandlerError, errors.BadRecordError) as error:
            self._note(f"and ends: {type(error).__name__}")
        self._drop(worker)
        if self._worker is None:
            self._states += 1

    def _settle(self, count: int, *, ends: bool) -> None:
        self._armed = None
        self._feed(count)
        self._drop_all()
        self._note("runs to its end")
        worker = self._worker = self._new(bounded=True)
        with repeatable():
            worker.start()
            for _ in range(_QUIET_TURNS):
                self.now_ms += self.tick_ms
                worker.turn()
                if worker.quiet:
                    if not ends or worker.phase == last_phase(worker.plan):
                        break
                    worker.advance()
            else:
                raise AssertionError("it never comes to rest")
            worker.leave()
        self.look()
        if self.observer is not None:
            self.observer.look_for_gaps()

    def _feed(self, count: int) -> None:
        some, self._inputs = self._inputs[:count], self._inputs[count:]
        if self._duplicates:
            twice = [one for one in some if self.random.random() < 0.05]
            self.faults["duplicate"] += len(twice)
            some = [*some, *twice]
        if some:
            self.log.append_all(some)

    def _new(self, *, bounded: bool = False) -> Worker:
        self._owners += 1
        self._disturbed = False
        settings = self.drawn_settings()
        partition = replace(
            settings.partition,
            bounded=bounded,
            task=replace(settings.partition.task, timezones=timezones_version()),
        )
        return Worker(
            self.plan,
            self.log,
            range(self.plan.partitions),
            partial(self._open, self._states),
            settings=replace(settings, bounded=bounded, retry_ms=1, retry_most_ms=1, partition=partition),
            hooks=WorkerHooks(check_owned=partial(self._check_owned, self._owners), begin=self._begin),
            clock=lambda: self.now_ms,
        )

    def drawn_settings(self) -> WorkerSettings:
        """Those of the next worker."""
        slices = self.random.choice((1, 3, 50, 10_000))
        return WorkerSettings(slice_records=slices, partition=random_settings(self.random))

    def _open(self, state: int, number: int) -> Store:
        if self.folder is None:
            return self._stores.setdefault((state, number), SimulatedStore(self._pass))
        place = self.folder / f"state-{state}" / self.plan.app / str(number)
        return open_store(place, StateIdentity(self.plan.app, number), self._memory)

    def _begin(self, number: int) -> None:
        if self.start is not None:
            start_from(self.plan, number, self.log, self.start, 1)

    def _check_owned(self, owner: int) -> None:
        """As a claim does: the last who asked for the tasks has them."""
        if owner != self._owners:
            raise errors.FencedError("another has been started since")

    def _arm(self) -> None:
        strike = self.random.choice(_STRIKES if self.folder is None else _STRIKES_ON_DISK)
        at = strike.at or frozenset(_OPERATIONS)
        left = self.random.randint(1, 8)

        def struck(name: str) -> None:
            nonlocal left
            left -= name in at
            if left == 0:
                self.faults[strike.name] += 1
                self._armed = None
                self._note(f"{strike.name} at {name}")
                raise strike.error()

        self._armed = struck

    def _pass(self, name: str) -> None:
        if self._armed is not None:
            self._armed(name)

    def _note(self, what: str) -> None:
        self.trace.append(what)


def repeatable() -> AbstractContextManager[object]:
    """The seeds of new tasks and the nonces of their commits are the same in each run."""
    return mock.patch.object(os, "urandom", lambda count: b"." * count)


def decoded(app: App, topic: str, records: Iterable[Output]) -> Found:
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
            except errors.TailraceError:
                pass
            slot.partition = None
