"""A worker: some partitions of an app, in one thread, from their start until they are given back.

Theory. A worker runs its partitions in *turns*. In a turn each partition takes one slice; and one of those that are being restored
takes a step, so that a long restore stops nobody. After a turn without work, the worker *rests* until there are new records, or something is due.

Partitions that share a transaction commit together, as soon as a commit of one of them is due (``commits``).

The length of a slice is limited in time: the number of records to fetch is computed from the duration of the last slices. So a slow
handler delays a commit, or a stop, by at most one slice. Memory holds at most a slice per input, and the outputs of a commit.

What happens to a failed partition depends on the cause. The others of its transaction continue from their last commit:

    the log or the disk does not answer   it is restored from the log after a pause, which grows with each failure
    a row of state is too large           the same: then each event is measured, and the one that makes the row too large fails
    the app: a handler, a bad record      the worker ends, since the app stops on such failures
    another worker has taken it over      the worker ends: all of its partitions have a new owner, or will have

Taking over a task fences its current owner, even the rightful one. So before a partition is started, or resolves a commit in doubt, the
worker checks that it still owns the partition: where tasks move, it may have been suspended, and replaced, since its last operation.

``advance`` takes a bounded run from phase to phase (see ``progress``). Its caller must know that no message is on its way.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

from tailrace.core.declare.plan import Plan
from tailrace.core.durations import is_instant
from tailrace.core.engine.at_work import AtWork
from tailrace.core.engine.task import CommitBatch
from tailrace.core.errors import (
    FencedError,
    HandlerError,
    LifecycleError,
    LogUnavailableError,
    StateInUseError,
    StateUnavailableError,
    TailraceError,
    UnmeasuredStateError,
)
from tailrace.core.storage import Store
from tailrace.log.interface import Log, Reader
from tailrace.runtime.alerts import Alerts, PartitionAlerts
from tailrace.runtime.clocks import Clock
from tailrace.runtime.commits import commit_together
from tailrace.runtime.inputs import WatchedReader, check_inputs, follows_itself
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition
from tailrace.runtime.progress import READING, STARTING, Status
from tailrace.runtime.restore import await_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.slots import Slot, records_taken

_log = logging.getLogger("tailrace.worker")

_NAP_S = 0.02
"""Between two looks whether other workers have come as far."""
_RESTORE_REST_MS = 20
"""The longest rest while a partition waits for its changelog."""


def system_clock() -> int:
    """The present instant in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker goes about its work."""

    slice_records: int = 10_000
    """The most in one slice, and so in one fetch."""
    slice_ms: int = 50
    """How long a slice should take."""
    rest_ms: int = 200
    """The longest rest: by then a signal is seen."""
    retry_ms: int = 200
    """The first pause before a partition that failed is tried again. It doubles each time."""
    retry_most_ms: int = 30_000
    bounded: bool = False
    """Commit as soon as there is nothing to read."""
    change_inputs: bool = False
    """Allow the app to begin or cease to read a topic."""
    tasks_move: bool = False
    """Tasks come and go: one that was fenced, or whose store another process has open, is tried again as long as it is here."""
    partition: PartitionSettings = field(default_factory=PartitionSettings)


@dataclass(frozen=True, slots=True)
class WorkerHooks:
    """What the host of a worker does at certain points of its work (default: nothing)."""

    check_owned: Callable[[], None] = lambda: None
    """Raises ``FencedError`` if a partition has another owner by now."""
    begin: Callable[[int], None] = lambda _number: None
    """Called with each task before it is restored: it may commit the state with which the task is to start."""
    between_turns: Callable[[], None] = lambda: None
    """Called after every turn, and while the worker waits."""
    committed: Callable[[int, CommitBatch], None] | None = None
    """Called once for each durable commit of a task."""


class Worker:
    """See the head of this file. It is for one thread, but for ``stop``.

    ``elapsed`` measures durations (default: by the steps forward of ``clock``). ``open_state`` gives the store of a partition. ``reader`` is used for the inputs and for restoring; it is closed with the worker.
    """

    def __init__(
        self,
        plan: Plan,
        log: Log,
        numbers: Collection[int],
        open_state: Callable[[int], Store],
        *,
        settings: WorkerSettings | None = None,
        hooks: WorkerHooks | None = None,
        clock: Clock = system_clock,
        elapsed: Clock | None = None,
        reader: Reader | None = None,
    ) -> None:
        self.plan = plan
        self.log = log
        self.settings = settings or WorkerSettings()
        self.phase = READING
        self.started = False
        """All tasks were started here, and have committed what they owe to those who follow them."""
        self.quiet = False
        """The last turn of a bounded run had nothing to do, read or commit, in tasks that are all still here."""
        self.stopping = False
        self._hooks = hooks = hooks or WorkerHooks()
        self._clock = clock
        self._elapsed = elapsed
        self._bounded = self.settings.bounded
        self._tasks_move = self.settings.tasks_move
        self._open_state = open_state
        self._alerts = Alerts(plan, log, self.settings.partition.drop)
        self._reader = WatchedReader(log.reader({}) if reader is None else reader)
        self.slots: list[Slot] = []
        """Its tasks, each with its partition while it runs."""
        self.assign(numbers)
        self._records = self._turns = self._vain = 0

    # --- the life of a worker

    def live(self, begin: Callable[[], None] = lambda: None) -> None:
        """Begin, start, run and leave. Always leaves, and raises the first error."""
        try:
            begin()
            self.start()
            self.run()
        except Exception as failure:
            if isinstance(failure, HandlerError):
                # The message says where; only the trace says why, and it does not reach who reads the message.
                _log.error("a handler failed", exc_info=failure.__cause__, extra={"app": self.plan.app})
            try:
                self.leave()
            except TailraceError as error:
                _log.debug("while leaving: %s", error)
            raise
        self.leave()

    def start(self) -> None:
        """Take the partitions over and restore them; in the phase STARTING, wait for ``advance``.

        A worker whose tasks come and go restores them in its turns, so that those that are ready do not wait for the others; but not
        if they follow each other.
        Raises TailraceError: one could not be started; ``leave`` is still to be called.
        """
        if not self._tasks_move or self._bounded or follows_itself(self.plan):
            for slot in [*self.slots]:
                self._restore_at_once(slot)
            # What they owe to those who follow them, each other included, before one of them takes a record.
            for slot in self.slots:
                if slot.running is not None and slot.running.dirty and not self.stopping:
                    self._attempt(slot, self._commit) if self._tasks_move else self._commit(slot)
        self.started = True
        while self.phase == STARTING and not self.stopping:  # the other workers have not started yet
            self._hooks.between_turns()
            time.sleep(_NAP_S)

    def _restore_at_once(self, slot: Slot) -> None:
        while not self.stopping and slot in self.slots and slot.running is None and slot.retry_ms == 0:
            # One that is lost meanwhile ends a worker only if its tasks are its own for good.
            if not (self._attempt(slot, self._restore) if self._tasks_move else self._restore(slot)):
                await_log(self._reader)
            self._hooks.between_turns()

    def run(self) -> None:
        """Work until ``stop``.

        Raises:
            FencedError: Another worker has taken a partition over.
            HandlerError, BadRecordError: The app stops on failures, and there was one.
            TailraceError: Something that does not clear up by itself.
        """
        while not self.stopping:
            worked = self.turn()
            self._hooks.between_turns()
            if not worked and not self.stopping:
                self._rest()
        if self.quiet and self.phase == READING:
            self._alerts.left_pending([slot.running.task for slot in self.slots if slot.running is not None])

    def stop(self) -> None:
        """Let ``run`` return after the present slice. May be called from anywhere, a signal handler included."""
        self.stopping = True

    def at_work(self) -> AtWork | None:
        """See ``TaskState.at_work``. May be called from a signal handler, and from another thread."""
        with suppress(LifecycleError):  # the partition has just ended
            for slot in [*self.slots]:
                if (partition := slot.running) is not None and (found := partition.task.at_work) is not None:
                    return found
        return None

    def assign(self, numbers: Collection[int]) -> None:
        """Take more partitions in, to be restored in the next turns."""
        self.quiet = False
        more = sorted({*numbers}.difference(slot.number for slot in self.slots))
        self.slots += [Slot(number, self._hooks.committed) for number in more]

    def give_back(self, numbers: Collection[int], *, may_commit: bool = True) -> None:
        """Give some partitions back: commit what they have done, if they may, and release them. Those that share a transaction with
        them commit, too, or lose their uncommitted work and continue from their last commit.
        Raises TailraceError: one could not commit; all were given back.
        """
        self.quiet = False
        leaving = [slot for slot in self.slots if slot.number in numbers]
        try:
            self._release(leaving, may_commit=may_commit)
        finally:
            self.slots = [slot for slot in self.slots if slot not in leaving]
            for slot in self.slots:  # those that have failed in that commit
                if slot.partition and isinstance(slot.partition.error, TailraceError):
                    self._defer(slot, slot.partition.error)

    def leave(self) -> None:
        """Commit, give every partition back, and release all resources. Raises what ``give_back`` raises."""
        try:
            self._release(self.slots, may_commit=True)
            self._alerts.finish()
        finally:
            self._reader.close()

    def _release(self, slots: Collection[Slot], *, may_commit: bool) -> None:
        first: TailraceError | None = None
        for slot in slots:
            partition, running = slot.partition, slot.running
            if partition is None:
                continue
            try:
                try:
                    if may_commit and running is not None:
                        commit_together(self._committed_with(running))
                finally:
                    slot.partition = None
                    partition.close()
            except TailraceError as error:
                is_committed = isinstance(error, StateUnavailableError)
                without = "writing its state folder" if is_committed else "a commit"
                _log.warning("a partition left without %s: %s", without, error, extra=self._of(slot))
                # Where tasks move, the new owner does the work, and restores from the log what the state folder does not have.
                if not (self._tasks_move and isinstance(error, (FencedError, StateUnavailableError))):
                    first = first or error
        if first is not None:
            raise first

    # --- turns

    def turn(self) -> bool:
        """One slice for each partition, and one step of restoring; whether there was anything to do. Raises what ``run`` raises."""
        worked = restored = False
        for slot in [*self.slots]:
            if self.stopping:
                break
            if slot not in self.slots or time.monotonic() < slot.retry_at_s:
                continue
            if slot.running is not None and not slot.running.notice_loss():
                worked = self._attempt(slot, self._slice) or worked
            elif not restored:
                restored = self._attempt(slot, self._restore_in_turn)
        worked = worked or restored
        if self._bounded:
            worked = worked or self._commit_all()
            ends = (slot.is_at_end(self._reader) for slot in self.slots)
            self.quiet = not worked and bool(self.slots) and all(ends)
        if worked:
            self._turns += 1
            self._vain = 0
        return worked

    def advance(self) -> None:
        """The next phase: read, as all workers have started; in a bounded run, what ``progress`` says."""
        self.phase += 1
        self.quiet = False
        for slot in self.slots:
            if slot.running is not None and self.phase != READING:
                slot.running.end_input(self.phase)

    def status(self) -> Status:
        """How far it has come; asks the log for the ends of the inputs."""
        running = [slot for slot in self.slots if slot.running is not None]
        marks = [slot.running.task.watermark for slot in running if slot.running is not None]
        lags = [slot.lag(self.log, self._reader) for slot in running]
        return Status(
            partitions=len(self.slots),
            running=len(running),
            records=self._records,
            lag=sum(lags),
            watermark_ms=_known(min(marks)) if marks else None,
            phase=self.phase,
            quiet=self.quiet,
            turns=self._turns,
            started=self.started,
        )

    def lag(self, slot: Slot) -> int | None:
        """Number of records that a running task has not read yet; None if the log does not give all ends."""
        try:
            return slot.lag(self.log, self._reader, whole=True)
        except LogUnavailableError:
            return None

    def _attempt(self, slot: Slot, do: Callable[[Slot], bool]) -> bool:
        """Do something with a partition. If it fails for a cause that passes, it is tried again later. Returns whether it did anything."""
        try:
            worked = do(slot)
        except (StateInUseError, FencedError) as error:
            if not self._tasks_move:
                raise
            self._defer(slot, error)
            return False
        except (LogUnavailableError, StateUnavailableError, UnmeasuredStateError) as error:
            self._defer(slot, error)
            return False
        if slot.running is not None:
            slot.retry_ms = 0
        return worked

    def _slice(self, slot: Slot) -> bool:
        partition = slot.running
        assert partition is not None
        before, begun = records_taken(partition), time.monotonic()
        worked = partition.take(slot.records)
        taken = records_taken(partition) - before
        self._records += taken
        if taken:
            took_ms = (time.monotonic() - begun) * 1_000
            slot.measure(taken, took_ms, self.settings.slice_ms, self.settings.slice_records)
            if slot.alerts is not None:
                slot.alerts.look(partition.task, partition.elapsed_ms)
        trouble = partition.trouble
        if partition.commit_is_due:
            self._commit(slot)
            worked = True
        if trouble is not None:
            raise trouble
        return worked

    def _committed_with(self, partition: Partition) -> list[Partition]:
        shared = partition.shared
        running = [slot.running for slot in self.slots]
        return [one for one in running if one and (one is partition or (shared and one.shared is shared))]

    def _commit(self, slot: Slot) -> bool:
        """Commit a partition, and all that share its transaction. If that fails, those that are not at work any more wait."""
        assert slot.running is not None
        together = self._committed_with(slot.running)
        slots = [one for one in self.slots if one.partition in together]
        try:
            commit_together(together)
        except TailraceError as error:
            for one in slots:
                if one is not slot and one.running is None:
                    self._defer(one, error)
            raise
        for one in slots:
            if one.running is not None and one.alerts is not None:
                one.alerts.behind(one.running.promises)
        return True

    def _restore(self, slot: Slot) -> bool:
        """Take one step of restoring. Returns whether it made progress."""
        if slot.partition is None:
            slot.partition = self._opened(slot)
        partition = slot.partition
        if not partition.step():
            return False
        if partition.state is State.RUNNING:
            self._runs(slot, partition)
        return True

    def _restore_in_turn(self, slot: Slot) -> bool:
        """The same beside tasks at work. What it owes to those who follow it is committed before it takes a record."""
        restored = self._restore(slot)
        if slot.running is not None and slot.running.dirty:
            self._commit(slot)
        return restored

    def _opened(self, slot: Slot) -> Partition:
        self._hooks.check_owned()
        slot.store = self._open_state(slot.number)
        partition = Partition(
            self.plan,
            slot.number,
            self.log,
            slot.store,
            self._clock,
            elapsed=self._elapsed,
            lineage=os.urandom(16),
            reader=self._reader,
            settings=slot.settings(self.settings.partition),
            on_committed=slot.on_committed,
            check_owned=self._hooks.check_owned,
        )
        partition.in_doubt, slot.in_doubt = slot.in_doubt, None
        try:
            self._hooks.begin(slot.number)
        except BaseException:
            partition.close()
            raise
        return partition

    def _runs(self, slot: Slot, partition: Partition) -> None:
        store, slot.store = slot.store, None
        if store is not None and not self.settings.change_inputs:
            try:
                check_inputs(self.plan, slot.number, store)
            except BaseException:
                slot.partition = None
                partition.close()
                raise
        if self.phase > READING:
            partition.end_input(self.phase)
        task, about = partition.task, self._of(slot)
        if store is None:
            _log.info("a partition continues from its last commit", extra=about)
            return
        slot.alerts = PartitionAlerts(self._alerts, slot.number, task)
        _log.info("a partition runs", extra={**about, "watermark_ms": _known(task.watermark)})
        self._alerts.restored(task)

    def _defer(self, slot: Slot, error: TailraceError) -> None:
        """Try a partition again later: as it is if it is still running, else restored again."""
        slot.retry_ms = min(max(self.settings.retry_ms, 2 * slot.retry_ms), self.settings.retry_most_ms)
        slot.retry_at_s = time.monotonic() + slot.retry_ms / 1_000
        partition = slot.partition
        if partition is not None and partition.lifecycle.ended:
            slot.drop(partition)
            try:
                partition.close()
            except TailraceError as again:
                _log.warning("closing a partition: %s", again, extra=self._of(slot))
        self._alerts.waits(slot.number, error, slot.retry_ms)

    def _commit_all(self) -> bool:
        committed = False
        for slot in self.slots:
            if slot.running is not None and slot.running.dirty:
                committed = True
                self._attempt(slot, self._commit)
        return committed

    def _rest(self) -> None:
        now_s = time.monotonic()
        rest_ms: float = self.settings.rest_ms
        for slot in self.slots:
            if slot.retry_at_s > now_s:
                rest_ms = min(rest_ms, (slot.retry_at_s - now_s) * 1_000)
            elif slot.running is None:
                rest_ms = min(rest_ms, _RESTORE_REST_MS)
            elif (due := slot.running.rest_ms()) is not None:
                rest_ms = min(rest_ms, due)
        if rest_ms <= 0 or self.quiet:
            # A quiet worker of a bounded run is about to get a question or an order.
            rest_ms = 1
        self._vain += 1
        try:
            found = self._reader.wait(rest_ms / 1_000)
        except LogUnavailableError:
            found = True
        if found and self._vain > 1:
            # What woke it cannot be taken yet: look again soon, not at once.
            time.sleep(0.005)

    def _of(self, slot: Slot) -> dict[str, object]:
        return {"app": self.plan.app, "partition": slot.number}


def _known(watermark_ms: int) -> int | None:
    return watermark_ms if is_instant(watermark_ms) else None
