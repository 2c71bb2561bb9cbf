"""A whole service in one thread: all partitions of an app over an in-memory log, driven as by a worker.

An influence that a worker gets from outside (an upstream watermark, an input that becomes idle) is a *signal*
here. A signal belongs to the position at which it was given. A service that starts again after a crash gets
it again at that position, as a live reader finds the publications of its producers again. An input that was
idle at the last commit becomes idle again at once if it has nothing to read: a live service waits for its
``idle_after``, but in a test no time passes while a service is down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from tailrace.core.declare.plan import Plan
from tailrace.core.declare.user_metrics import KINDS
from tailrace.core.engine.task import CommitBatch, Task, TaskSettings
from tailrace.core.storage import Store
from tailrace.history.snapshots.start_from_snapshot import start_from
from tailrace.runtime.clocks import Clock
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings
from tailrace.state import StateIdentity, StateMemory, open_store
from tailrace.testing.emitted import Out, Outbox
from tailrace.testing.memory_log import MemoryLog
from tailrace.testing.snapshot import HarnessSnapshot

StateKind = Literal["memory", "rocksdb"]

_NEVER = 1 << 60

LINEAGE = b"harness"
"""The seed of all randomness: the same in every run, so that tests can be repeated."""


class _Signal(NamedTuple):
    """A signal on an input when a task was at these positions: a watermark, or that the input is now idle."""

    input: int
    positions: dict[str, int]
    watermark: int | Literal["idle"]


class ServiceOptions(NamedTuple):
    """How a service is run. None of it changes a result.

    ``commit_every`` is a number of records; None leaves commits to the caller altogether.
    """

    task: TaskSettings
    slice_size: int
    commit_every: int | None
    state: StateKind
    after_end: bool = False


class Service:
    """The partitions of an app. It is down until ``start``, and again after ``stop`` and ``kill``."""

    def __init__(
        self,
        plan: Plan,
        log: MemoryLog,
        clock: Clock,
        options: ServiceOptions,
        *,
        on_visible: Callable[[list[Out]], None],
    ) -> None:
        """``on_visible`` is given what each round of commits has made visible, as ``visible`` is."""
        self.plan = plan
        self.options = options
        self.stores: list[Store] = []
        """Committed state, by partition; they hold it while the service is up."""
        self.partitions: list[Partition] = []
        self.visible: list[Out] = []
        """All that was emitted and committed."""
        self.metrics: dict[str, float | list[float]] = {}
        self._log = log
        self._clock = clock
        self._settings = PartitionSettings(
            commit_interval_ms=_NEVER,
            commit_entries=_NEVER,
            commit_records=_NEVER,
            deletions_kept_ms=_NEVER,
            after_end=options.after_end,
            task=replace(options.task, max_record_bytes=log.max_record_bytes),
        )
        self._on_visible = on_visible
        self._commits = 0
        self._base: HarnessSnapshot | None = None  # its folder stays for as long as the tape may be replayed
        self._taken_before = [0] * plan.partitions
        self._outbox = Outbox(plan, log)
        on_disk = options.state == "rocksdb"
        self._folders = TemporaryDirectory(prefix="tailrace-") if on_disk else None
        self._memory = StateMemory() if on_disk else None
        self._generation = 0
        self._signals: list[list[_Signal]] = [[] for _ in range(plan.partitions)]
        """Given since the last commit."""
        self._to_repeat: list[deque[_Signal]] = [deque() for _ in range(plan.partitions)]
        self._idle = [[False] * len(plan.inputs) for _ in range(plan.partitions)]
        """By partition and input: whether it was idle at the last commit."""

    @property
    def up(self) -> bool:
        """Whether it has been started."""
        return bool(self.partitions)

    def task(self, number: int) -> Task:
        """The live task of a partition."""
        return self.partitions[number].task

    # --- up and down

    def begin(self, snapshot: HarnessSnapshot) -> None:
        """Have every task begin with a snapshot. Raises SnapshotError if it does not fit the app."""
        self._base = snapshot
        # A test that starts from a snapshot has decided that the app continues.
        self._settings = replace(self._settings, after_end=True)
        start = snapshot.start(self.options.task.timezones)
        for number in range(self.plan.partitions):
            start_from(self.plan, number, self._log, start, self._clock())

    def start(self) -> None:
        """Restore every partition. All take their ids over first, so nothing left open is in the way."""
        if not self.stores:
            self.stores = [self._open(number) for number in range(self.plan.partitions)]
        self.partitions = [
            Partition(
                self.plan,
                number,
                self._log,
                store,
                self._clock,
                lineage=LINEAGE,
                draw_nonce=lambda: LINEAGE,
                settings=self._settings,
                on_committed=partial(self._committed, number),
            )
            for number, store in enumerate(self.stores)
        ]
        for number, one in enumerate(self.partitions):
            one.restore()
            self._note_idle(number)
        for one in self.partitions:
            # As a worker does it: before one of them takes a record.
            if one.dirty:
                one.commit()

    def _note_idle(self, number: int) -> None:
        """Make idle inputs without new records idle again: in a test no time passes during a stop."""
        task = self.task(number)
        for one in self.plan.inputs:
            end = self._log.end_offset(one.name, number)
            if one.watermark == "upstream" or not self._idle[number][one.index]:
                continue  # what its writers have published is found again
            if task.positions[one.name] >= end:
                self._to_repeat[number].appendleft(_Signal(one.index, dict(task.positions), "idle"))

    def stop(self, *, keep_state: bool) -> None:
        """Commit, and hand all partitions back in good order. Without state, the next owner restores it."""
        for one in self.partitions:
            one.revoke()
        self._look()
        self._down(keep_state=keep_state)

    def kill(self) -> None:
        """Die without a word: open transactions stay open, and memory is gone. A folder stays as it is."""
        for store in self.stores:
            store.close()
        for signals, repeat in zip(self._signals, self._to_repeat, strict=True):
            repeat.extendleft(reversed(signals))
            signals.clear()
        self._down(keep_state=self._folders is not None)

    def close(self) -> None:
        """Die, and remove the folders."""
        self.kill()
        if self._folders is not None:
            self._folders.cleanup()

    def _down(self, *, keep_state: bool) -> None:
        self.partitions = []
        if self._folders is not None or not keep_state:
            self.stores = []
        if not keep_state:
            self._generation += 1

    def _open(self, number: int) -> Store:
        folder = None
        if self._folders is not None:
            folder = Path(self._folders.name) / str(self._generation) / str(number)
        return open_store(folder, StateIdentity(self.plan.app, number), self._memory)

    def take_all(self) -> None:
        """Take what can be read, partition after partition."""
        most, every = self.options.slice_size, self.options.commit_every
        for number in range(len(self.partitions)):
            while self._poll(number, most if every is None else min(most, max(1, every - self._taken()))):
                if every is not None and self._taken() >= every:
                    self.commit()

    def commit(self) -> bool:
        """Commit every partition that has something to commit. Returns False if there was none."""
        committed = False
        for one in self.partitions:
            if one.state is State.RUNNING and one.dirty:
                one.commit()
                committed = True
        if committed:
            self._commits += 1
            self._look()
        return committed

    def commit_until_quiet(self) -> bool:
        """Take and commit until no message is on its way. Returns whether anything was committed."""
        begun = self._commits
        while True:
            before = self._commits
            self.take_all()  # may commit, too, and so send to a partition that was asked before
            self.commit()
            if self._commits == before:
                return self._commits > begun

    def end_input(self, phase: int) -> None:
        """Have every task enter a phase of the end of input, see ``runtime.progress``."""
        for one in self.partitions:
            one.end_input(phase)

    def raise_watermark(self, number: int, to_ms: int) -> None:
        """Tell every task that all of an input has come up to ``to_ms``."""
        for partition in range(self.plan.partitions):
            self._signal(partition, number, to_ms)

    def fall_idle(self, number: int) -> None:
        """Tell every task that there is nothing to read on an input."""
        for partition in range(self.plan.partitions):
            self._signal(partition, number, "idle")

    def read_clock(self) -> None:
        """Bring the clock's reading to every task, so that the next handlers see the time."""
        for one in self.partitions:
            one.task.clock(self._clock())
            drain(one.task)

    def _poll(self, number: int, most: int) -> bool:
        """Let a partition take a slice of at most ``most`` records. Returns whether it had anything to do."""
        partition, repeat = self.partitions[number], self._to_repeat[number]
        if not repeat or partition.state is not State.RUNNING:
            return partition.poll(most)
        at, signal = partition.task.positions, repeat[0]
        before = any(at[name] < position for name, position in signal.positions.items())
        if before and partition.poll(1):
            return True
        repeat.popleft()
        self._apply(number, signal)
        return True

    def _taken(self) -> int:
        """Records taken since the last commit."""
        return sum(_records_of(one.task) for one in self.partitions) - sum(self._taken_before)

    def _signal(self, partition: int, number: int, watermark: int | Literal["idle"]) -> None:
        if self.up:
            self._apply(partition, _Signal(number, dict(self.task(partition).positions), watermark))
            return
        # It is found by who comes up again, behind what is in the log by now.
        ends = {one.name: self._log.end_offset(one.name, partition) for one in self.plan.inputs}
        self._to_repeat[partition].append(_Signal(number, ends, watermark))

    def _apply(self, partition: int, signal: _Signal) -> None:
        task = self.task(partition)
        drain(task)
        if signal.watermark == "idle":
            task.idle(signal.input)
        else:
            task.upstream(signal.input, signal.watermark)
        drain(task)
        self._signals[partition].append(signal)

    def _committed(self, partition: int, batch: CommitBatch) -> None:
        self._signals[partition].clear()
        self._idle[partition] = self.task(partition).watermarks.idle[: len(self.plan.inputs)]
        self._taken_before[partition] = _records_of(self.task(partition))
        for kind, name, value in batch.measurements:
            found = self.metrics.get(name)
            if kind not in KINDS:
                continue
            if kind == "observe":
                self.metrics[name] = [*found, value] if isinstance(found, list) else [value]
            elif kind == "gauge" or found is None or isinstance(found, list):
                self.metrics[name] = value
            else:
                self.metrics[name] = found + value

    def _look(self) -> None:
        """Read what the last commits have made visible."""
        found = self._outbox.take()
        self.visible += found
        self._on_visible(found)


def _records_of(task: Task) -> int:
    return task.totals.records + task.totals.refused


def drain(task: Task) -> None:
    """Fire all timers that are due."""
    while not task.drain():
        pass
