"""A worker: some partitions of an app, in one thread, from their start until they are given back.

Theory. A worker runs its partitions in *turns*. In a turn each partition takes one slice. After a turn without work, the
worker *rests* until the log has new records, or until something becomes due by itself.

The length of a slice is limited in time, not in records: the number of records to fetch is computed from the duration of the
last slices. So a slow handler delays a commit, or a stop, by at most one slice, and few records are fetched ahead. Memory
holds at most a slice per input, and the outputs of a commit.

What happens to a failed partition depends on the cause:

    the log or the disk does not answer   it is restored from the log after a pause, which grows with each failure
    the app: a handler, a bad record      the worker ends, since the app stops on such failures
    another worker has taken it over      the worker ends: all of its partitions have a new owner, or will have

Taking over a task fences its current owner, even the rightful one. So before a partition is started, or resolves a commit in
doubt, the worker checks that it still owns the partition: it may have been suspended, and replaced, since its last
operation. The embedded log checks again under the lock that a take-over needs: a worker suspended after this check is killed
by the new owner before it gets the lock, and a worker suspended before it finds the new owner.

``advance`` takes a bounded run from phase to phase (see ``progress``). Its caller must know that no message is on its way
between workers, which one worker alone cannot know.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tailrace.core.declare.plan import Plan
from tailrace.core.durations import is_instant
from tailrace.core.errors import (
    FencedError,
    LogUnavailableError,
    StateInUseError,
    StateUnavailableError,
    TailraceError,
)
from tailrace.core.storage import Store
from tailrace.core.suggestions import did_you_mean
from tailrace.history.status.holding import IsOwned
from tailrace.log.interface import Log, Reader, TopicPartition
from tailrace.runtime.alerts import Alerts
from tailrace.runtime.inputs import WatchedReader, check_inputs
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition
from tailrace.runtime.progress import READING, STARTING, Status
from tailrace.runtime.restore import Clock
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.slots import FEWEST, Slot

_log = logging.getLogger("tailrace.worker")

_NAP_S = 0.02
"""Between two looks whether other workers have come as far."""
_REASON_AGAIN_S = 60.0
"""How often the reason is logged for which partitions wait."""


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
    """The longest rest: by then a signal, or an order of another thread, is seen."""
    retry_ms: int = 200
    """After which a partition that failed is tried again the first time; then twice as long, and so on."""
    retry_most_ms: int = 30_000
    partition: PartitionSettings = field(default_factory=PartitionSettings)


class Worker:
    """See the head of this file. It is for one thread, but for ``stop``.

    ``open_state`` gives the store of a partition. ``check_owned`` raises ``FencedError`` if one of the partitions has
    another owner by now; without it nobody else is expected to take one over. With ``bounded`` it commits as soon as there
    is nothing to read. With ``change_inputs`` an app may begin or cease to read a topic. ``begin`` is called with each task
    that is owned, and its store, before it is restored: it may bring both to where the task is to start. Until ``all_begun``
    says that all tasks of the app were brought there, those of other workers too, none takes a record. ``is_owned`` says whether
    a task, of any app, is owned by a live process: for what the worker warns of. With ``shared`` its tasks come and go
    (``assign``, ``give_back``): one that was fenced, or whose store another process has open, is tried again as long as it is here.
    ``reader`` is used for the inputs and for restoring; it is closed with the worker.
    """

    def __init__(
        self,
        plan: Plan,
        log: Log,
        numbers: Collection[int],
        open_state: Callable[[int], Store],
        *,
        settings: WorkerSettings | None = None,
        clock: Clock = system_clock,
        bounded: bool = False,
        change_inputs: bool = False,
        check_owned: Callable[[], None] | None = None,
        begin: Callable[[int, Store], None] | None = None,
        all_begun: Callable[[], bool] | None = None,
        is_owned: IsOwned = lambda _publisher: None,
        shared: bool = False,
        reader: Reader | None = None,
    ) -> None:
        self.plan = plan
        self.log = log
        self.settings = settings or WorkerSettings()
        self.phase = READING
        self.started = False
        """All tasks were started here, and have committed what they owe to those who follow them."""
        self.quiet = False
        """The last turn found nothing to do, nothing to read and nothing to commit. Known of bounded runs only."""
        self.stopping = False
        self._clock = clock
        self._bounded = bounded
        self._change_inputs = change_inputs
        self._shared = shared
        self._open_state = open_state
        self._check_owned = check_owned or (lambda: None)
        self._begin = begin
        self._all_begun = all_begun or (lambda: True)
        self._steer: Callable[[], None] = lambda: None
        self._alerts = Alerts(plan, log, is_owned)
        self._reader = WatchedReader(log.reader({}) if reader is None else reader)
        self._slots = [Slot(number) for number in sorted(numbers)]
        self._starting: Slot | None = None
        self._noticed: set[str] = set()
        self._told_until_s: dict[str, float] = {}
        """By the reason for which partitions wait, and by partition and reason: until when it is not logged again."""
        """Notices about the stored state that were logged: most of them are the same for every partition."""
        self._records = self._turns = self._vain = 0

    # --- the life of a worker

    def start(self, steer: Callable[[], None] | None = None) -> None:
        """Take the partitions over and restore them, one after the other, until ``stop``.

        ``steer`` is called now and then, here and in whatever is restored later. Where the phase is STARTING it waits for
        ``advance``.

        Raises:
            TailraceError: One could not be started; ``leave`` is still to be called.
        """
        self._steer = steer or self._steer
        for slot in [*self._slots]:
            if self.stopping:
                return
            if slot in self._slots:
                self._start(slot)
        self._wait_while(lambda: not self._all_begun())
        for slot in self._slots:
            # What they owe to those who follow them, each other included, before one of them takes a record.
            if slot.running is not None and slot.running.dirty and not self.stopping:
                slot.running.commit()
        self.started = True
        self._wait_while(lambda: self.phase == STARTING)

    def run(self, steer: Callable[[], None] | None = None) -> None:
        """Work until ``stop``; ``steer`` is called after every turn.

        Raises:
            FencedError: Another worker has taken a partition over.
            HandlerError, BadRecordError: The app stops on failures, and there was one.
            TailraceError: Something that does not clear up by itself.
        """
        while not self.stopping:
            worked = self.turn()
            if steer is not None:
                steer()
            if not worked and not self.stopping:
                self._rest()

    def stop(self) -> None:
        """Let ``run`` return after the present slice. May be called from anywhere, a signal handler included."""
        self.stopping = True

    def assign(self, numbers: Collection[int]) -> None:
        """Take more partitions in. They are taken over and restored in the next turns."""
        known = {slot.number for slot in self._slots}
        self._slots += [Slot(number) for number in sorted(numbers) if number not in known]

    def give_back(self, numbers: Collection[int], *, may_commit: bool = True) -> None:
        """Give some partitions back, for another worker: commit what they have done, if they may, and release them.

        Raises:
            TailraceError: One could not commit; all were given back.
        """
        leaving = [slot for slot in self._slots if slot.number in numbers]
        self._slots = [slot for slot in self._slots if slot not in leaving]
        self._release(leaving, may_commit=may_commit)

    def leave(self) -> None:
        """Commit, give every partition back, and release all resources.

        Raises:
            TailraceError: A partition could not commit; all were given back.
        """
        try:
            self._release(self._slots, may_commit=True)
        finally:
            self._reader.close()

    def _release(self, slots: Collection[Slot], *, may_commit: bool) -> None:
        first: TailraceError | None = None
        for slot in slots:
            partition, slot.partition = slot.partition, None
            if partition is None:
                continue
            try:
                partition.revoke() if may_commit else partition.close()
            except TailraceError as error:
                first = first or error
                _log.warning("a partition left without a commit: %s", error, extra=self._of(slot))
        if first is not None:
            raise first

    # --- turns

    def turn(self) -> bool:
        """One slice for each partition; whether there was anything to do. Raises what ``run`` raises."""
        worked = False
        for slot in [*self._slots]:
            if self.stopping:
                break
            if slot in self._slots and time.monotonic() >= slot.retry_at_s:
                worked = self._take(slot) or worked
        if self._bounded:
            worked = worked or self._commit_all()
            self.quiet = not worked and all(self._at_end(slot) for slot in self._slots)
        if worked:
            self._turns += 1
            self._vain = 0
        return worked

    def advance(self) -> None:
        """The next phase: read, as all workers have started; in a bounded run, what ``progress`` says."""
        self.phase += 1
        self.quiet = False
        for slot in self._slots:
            if slot.running is not None and self.phase != READING:
                enter(slot.running, self.phase)

    def status(self) -> Status:
        """How far it has come; asks the log for the ends of the inputs."""
        running = [slot for slot in self._slots if slot.running is not None]
        marks = [slot.running.task.watermark for slot in running if slot.running is not None]
        return Status(
            partitions=len(self._slots),
            running=len(running),
            records=self._records,
            lag=sum(map(self._lag, running)),
            watermark_ms=_known(min(marks)) if marks else None,
            phase=self.phase,
            quiet=self.quiet,
            turns=self._turns,
            started=self.started,
        )

    def _take(self, slot: Slot) -> bool:
        try:
            if slot.partition is None:
                self._start(slot)
                return True
            worked = self._slice(slot, slot.partition)
        except (StateInUseError, FencedError) as error:
            if not self._shared:
                raise
            self._put_off(slot, error)
            return False
        except (LogUnavailableError, StateUnavailableError) as error:
            self._put_off(slot, error)
            return False
        slot.retry_ms = 0
        return worked

    def _slice(self, slot: Slot, partition: Partition) -> bool:
        in_doubt = partition.state is State.IN_DOUBT
        before = 0 if in_doubt else _taken(partition)
        slot.committed = False
        begun = time.monotonic()
        worked = partition.poll(slot.records)
        if in_doubt and partition.state is State.RUNNING:
            _tell(partition, self.phase)
        elif partition.state is State.RUNNING:
            taken = _taken(partition) - before
            if slot.alerts is not None:
                if slot.committed:
                    slot.alerts.behind(partition.behind)
                if taken:
                    slot.alerts.look(partition.task, self._clock())
            self._records += taken
            if taken and not slot.committed:
                self._measure(slot, taken, (time.monotonic() - begun) * 1_000)
        return worked

    def _measure(self, slot: Slot, taken: int, took_ms: float) -> None:
        """How many records to ask for next. It grows step by step, since the next may take longer than the last."""
        settings = self.settings
        fitting = int(taken * settings.slice_ms / max(took_ms, 0.001))
        slot.records = max(1, min(settings.slice_records, fitting, max(FEWEST, 2 * taken)))

    def _start(self, slot: Slot) -> None:
        self._starting = slot
        self._check_owned()
        partition = Partition(
            self.plan,
            slot.number,
            self.log,
            store := self._open_state(slot.number),
            self._clock,
            lineage=os.urandom(16),
            reader=self._reader,
            settings=self.settings.partition,
            on_committed=slot.on_committed,
            may_go_on=self._may_go_on,
            check_owned=self._check_owned,
        )
        try:
            if self._begin is not None:
                self._begin(slot.number, store)
            partition.restore()
            if partition.state is not State.RUNNING:
                partition.close()  # it was stopped
                return
            if not self._change_inputs:
                check_inputs(self.plan, slot.number, store)
        except BaseException:
            partition.close()
            raise
        _tell(partition, self.phase)
        slot.partition = partition
        slot.alerts = self._alerts.of_partition(slot.number, self._clock(), partition.task.totals.late)
        task, about = partition.task, self._of(slot)
        _log.info("a partition runs", extra={**about, "watermark_ms": _known(task.watermark)})
        dropped = self.settings.partition.drop
        stored = task.stored
        if kept := [name for name in stored.orphans if name not in dropped]:
            _log.info("state that is no longer declared is kept", extra={**about, "kept": kept})
        for notice in stored.notices:
            if notice not in self._noticed:
                self._noticed.add(notice)
                _log.warning("%s", notice, extra=about)
        if unknown := sorted(dropped.difference(stored.orphans)):
            # No error: it has been dropped where this is a restart.
            meant = " ".join(filter(None, (did_you_mean(name, stored.orphans) for name in unknown)))
            _log.warning(
                "the state to drop does not exist, or was dropped before%s",
                f". {meant}" if meant else "",
                extra={**about, "drop": unknown, "undeclared": list(stored.orphans)},
            )

    def _wait_while(self, behind: Callable[[], bool]) -> None:
        """Wait for other workers, unless this one is to stop."""
        while not self.stopping and behind():
            self._steer()
            time.sleep(_NAP_S)

    def _may_go_on(self) -> bool:
        """Asked in the middle of a restore."""
        self._steer()
        return not self.stopping and self._starting in self._slots

    def _put_off(self, slot: Slot, error: TailraceError) -> None:
        """Try a partition again later: as it is if it is still running, else restored again."""
        slot.retry_ms = min(max(self.settings.retry_ms, 2 * slot.retry_ms), self.settings.retry_most_ms)
        slot.retry_at_s = time.monotonic() + slot.retry_ms / 1_000
        partition = slot.partition
        if partition is not None and partition.state not in (State.RUNNING, State.IN_DOUBT):
            slot.partition = None
            try:
                partition.close()
            except TailraceError as again:
                _log.warning("closing a partition: %s", again, extra=self._of(slot))
        reason, now_s = str(error), time.monotonic()
        new = [
            key for key in (reason, f"{slot.number} {reason}") if now_s >= self._told_until_s.get(key, 0.0)
        ]
        if new:
            self._told_until_s.update(dict.fromkeys(new, now_s + _REASON_AGAIN_S))
            told = f": {reason}" if reason in new else " for the same reason"
            _log.warning("a partition waits%s", told, extra={**self._of(slot), "retry_ms": slot.retry_ms})

    def _commit_all(self) -> bool:
        """Commit what there is, for a run that should not wait for the time of a commit; whether there was something."""
        committed = False
        for slot in self._slots:
            partition = slot.running
            if partition is None or not partition.dirty:
                continue
            committed = True
            try:
                partition.commit()
            except (LogUnavailableError, StateUnavailableError) as error:
                self._put_off(slot, error)
        return committed

    # --- rest

    def _rest(self) -> None:
        """Wait for the log, or until something is due."""
        now_s = time.monotonic()
        rest_ms: float = self.settings.rest_ms
        for slot in self._slots:
            if slot.retry_at_s > now_s:
                rest_ms = min(rest_ms, (slot.retry_at_s - now_s) * 1_000)
            elif slot.running is not None and (due := slot.running.rest_ms()) is not None:
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

    # --- where partitions stand

    def _at_end(self, slot: Slot) -> bool:
        partition = slot.running
        # One that is to be tried again does not know what there is to read by now.
        if partition is None or partition.dirty or partition.holds_back or slot.retry_ms:
            return False
        return all(
            self._reader.idle.get(TopicPartition(one.name, slot.number), False) for one in self.plan.inputs
        )

    def _lag(self, slot: Slot) -> int:
        assert slot.running is not None
        lag = 0
        for name, position in slot.running.task.positions.items():
            place = TopicPartition(name, slot.number)
            try:
                end = self.log.end_offset(*place)
            except LogUnavailableError:
                continue
            lag += max(0, end - max(position, self._reader.past_gaps.get(place, 0)))
        return lag

    def _of(self, slot: Slot) -> dict[str, object]:
        return {"app": self.plan.app, "partition": slot.number}


def _taken(partition: Partition) -> int:
    totals = partition.task.totals
    return totals.records + totals.refused + totals.for_others


def _known(watermark_ms: int) -> int | None:
    return watermark_ms if is_instant(watermark_ms) else None


def _tell(partition: Partition, phase: int) -> None:
    """Bring a partition that was just restored to a phase. What has ended before, and was committed, ends no second time."""
    for one in range(1, phase + 1):
        enter(partition, one)


def enter(partition: Partition, phase: int) -> None:
    """Have a partition do what a phase of a bounded run asks for."""
    if phase == 1:
        partition.begin_end()
        return
    level, second = divmod(phase - 2, 2)
    if second:
        partition.finish(level)
    else:
        partition.end_inputs(level)
