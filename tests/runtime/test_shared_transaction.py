"""The tasks of a process commit in one transaction: the failure of one costs the others their uncommitted work, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tailrace.core import errors
from tailrace.core.records import Output
from tailrace.log import Part, TopicPartition
from tailrace.runtime.commits import commit_together
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerHooks, WorkerSettings
from tests.runtime.machine import KEYS, ROUNDS, Machine, run_to_the_end
from tests.runtime.processes_on_memory import MemoryProcess, Notes
from tests.runtime.tallies import check_all, check_counts, poison, read, ticks
from tests.runtime.world import CountingStore, Kill

NEVER_MS = 1 << 40
NONE = WorkerHooks()
SELDOM = WorkerSettings(
    retry_ms=1,
    retry_most_ms=5,
    partition=PartitionSettings(commit_interval_ms=NEVER_MS, commit_records=1 << 40),
)
OFTEN = WorkerSettings(retry_ms=1, retry_most_ms=5, partition=PartitionSettings(commit_interval_ms=0))


class Cluster(Machine):
    """What outlives processes: the log, the notes of the tasks, and the state of each task in each process."""

    def __init__(self) -> None:
        self.operations: list[str] = []
        self.notes = Notes()
        super().__init__()

    def operation(self, name: str) -> None:
        self.operations.append(name)
        super().operation(name)

    def process(self) -> MemoryProcess:
        return MemoryProcess(self.log, self.notes)

    def shared(
        self, *numbers: int, settings: WorkerSettings = SELDOM, hooks: WorkerHooks = NONE, **more: Any
    ) -> tuple[Worker, MemoryProcess]:
        """A worker whose tasks share a transaction. Each process has state folders of its own."""
        log: Any = self.process()
        stores = {number: CountingStore(self.operation) for number in range(self.plan.partitions)}
        worker = Worker(
            self.plan,
            log,
            numbers or range(self.plan.partitions),
            lambda number: stores[number],
            settings=replace(settings, tasks_move=True, **more),
            hooks=hooks,
        )
        return worker, log


def partitions(worker: Worker) -> list[Partition]:
    return [slot.partition for slot in worker.slots if slot.partition is not None]


def taken(worker: Worker) -> list[int]:
    return [one.task.totals.records for one in partitions(worker)]


def turned(worker: Worker, *, until: Callable[[], bool] = lambda: False) -> None:
    """Turn until nothing moves."""
    for _ in range(10_000):
        if until() or (not worker.turn() and all(slot.running for slot in worker.slots)):
            return
    raise AssertionError("it never comes to rest")


def finish(cluster: Cluster, *, rounds: int = ROUNDS) -> None:
    """Without faults, a process takes all tasks over and brings everything to its end."""
    cluster.strike = lambda operation: None
    worker, _ = cluster.shared(bounded=True)
    run_to_the_end(worker)
    check_all(cluster.log, KEYS, rounds)


def share_with_another(cluster: Cluster, worker: Worker, *taken_over: int) -> None:
    """Another process takes tasks over; both handle new records and leave, and all comes out right."""
    other, _ = cluster.shared(*taken_over)
    turned(other)
    cluster.log.append_all(ticks(KEYS, ROUNDS, ROUNDS))
    turned(worker)
    turned(other)
    worker.leave()
    other.leave()
    finish(cluster, rounds=2 * ROUNDS)


def test_all_tasks_commit_at_once() -> None:
    cluster = Cluster()
    cluster.log.append_all(ticks(KEYS, ROUNDS))
    worker, _ = cluster.shared()
    turned(worker)
    assert all(count > 0 for count in taken(worker))
    cluster.operations.clear()
    worker.leave()
    assert cluster.operations.count("committed") == 1
    assert cluster.operations.count("stored") == 4
    finish(cluster)


def test_one_task_whose_commit_is_due_brings_the_others_along() -> None:
    cluster = Cluster()
    cluster.log.append_all(ticks(KEYS, ROUNDS))
    worker, _ = cluster.shared(settings=OFTEN)
    turned(worker)
    assert not any(one.dirty for one in partitions(worker))
    worker.leave()
    check_counts(cluster.log, KEYS, ROUNDS)
    finish(cluster)


@pytest.mark.parametrize("error", [errors.LogUnavailableError("away"), RuntimeError("a defect")])
def test_a_task_that_fails_takes_the_uncommitted_work_of_the_others_along_and_nothing_else(
    error: Exception,
) -> None:
    cluster = Cluster()
    cluster.log.append_all(ticks(KEYS, 1))
    worker, process = cluster.shared()
    turned(worker)
    commit_together(partitions(worker))
    committed = read(cluster.log, "counts")
    assert committed
    cluster.log.append_all(ticks(KEYS, 1, 1))
    before, take_overs = taken(worker), process.take_overs
    turned(worker)
    assert all(now > then for now, then in zip(taken(worker), before, strict=True))
    cluster.log.append_all(ticks(KEYS, 1, 2))
    cluster.fail("append", error)
    if isinstance(error, RuntimeError):
        with pytest.raises(RuntimeError, match="a defect"):
            worker.turn()
        assert partitions(worker)[0].state is State.FAILED
        assert all(
            one.lifecycle.state is State.RUNNING and one.notice_loss() for one in partitions(worker)[1:]
        )
        assert read(cluster.log, "counts") == committed
        worker.leave()
        assert read(cluster.log, "counts") == committed
    else:
        turned(worker)
        assert process.take_overs == take_overs + 1  # the others did not restore from the log
        assert read(cluster.log, "counts") == committed
        worker.leave()
        check_counts(cluster.log, KEYS, 3)
    finish(cluster, rounds=3)


def test_a_handler_that_fails_ends_the_worker_and_what_was_committed_stays() -> None:
    cluster = Cluster()
    cluster.log.append_all(ticks(KEYS, 1))
    worker, _ = cluster.shared()
    turned(worker)
    cluster.log.append(**poison("k0", 1_000))
    with pytest.raises(errors.HandlerError, match="negative"):
        turned(worker)
    worker.leave()
    assert read(cluster.log, "counts") == []  # the work of all was in the transaction that was aborted


def test_what_a_task_did_without_appending_is_not_lost_with_the_others() -> None:
    cluster = Cluster()
    worker, _ = cluster.shared()
    turned(worker)
    commit_together(partitions(worker))
    cluster.log.append_all(ticks(KEYS, 1))
    cluster.fail("append", errors.LogUnavailableError("away"))
    worker.turn()
    states = [one.state for one in partitions(worker)]
    assert State.ROLLED_BACK not in states  # the first one failed before another had appended anything
    turned(worker)
    worker.leave()
    finish(cluster, rounds=1)


def test_a_commit_that_fails_rolls_all_back_and_they_do_it_again() -> None:
    cluster = Cluster()
    cluster.log.append_all(ticks(KEYS, ROUNDS))
    worker, process = cluster.shared()
    turned(worker)
    take_overs = process.take_overs
    cluster.fail("commit", errors.LogUnavailableError("away"))
    with pytest.raises(errors.LogUnavailableError):
        commit_together(partitions(worker))
    assert {one.state for one in partitions(worker)} == {State.ROLLED_BACK}
    turned(worker)
    assert process.take_overs == take_overs
    worker.leave()
    check_counts(cluster.log, KEYS, ROUNDS)
    finish(cluster)


@pytest.mark.parametrize("at", ["commit", "committed"])
def test_an_unknown_outcome_is_in_doubt_for_all_and_each_looks(at: str) -> None:
    cluster = Cluster()
    cluster.log.append_all(ticks(KEYS, ROUNDS))
    worker, process = cluster.shared()
    turned(worker)
    take_overs = process.take_overs
    cluster.fail(at, errors.CommitUnknownError("no answer"))
    commit_together(partitions(worker))
    assert {one.state for one in partitions(worker)} == {State.IN_DOUBT}
    turned(worker)
    assert process.take_overs == take_overs + 4
    worker.leave()
    check_counts(cluster.log, KEYS, ROUNDS)
    finish(cluster)


def test_a_store_that_cannot_be_written_is_the_failure_of_its_task_alone() -> None:
    cluster = Cluster()
    cluster.log.append_all(ticks(KEYS, ROUNDS))
    worker, _ = cluster.shared()
    turned(worker)
    cluster.fail("store", errors.StateUnavailableError("the disk is full"), after=1)
    with pytest.raises(errors.StateUnavailableError):
        worker._commit(worker.slots[0])
    assert [one.state for one in partitions(worker)] == [State.RUNNING, State.RUNNING, State.RUNNING] or (
        [slot.running is None for slot in worker.slots].count(True) == 1
    )
    check_counts(cluster.log, KEYS, ROUNDS)
    turned(worker)
    worker.leave()
    finish(cluster)


def test_tasks_that_leave_take_the_open_work_of_those_that_stay_along_into_their_commit() -> None:
    cluster = Cluster()
    cluster.log.append_all(ticks(KEYS, ROUNDS))
    worker, _ = cluster.shared()
    turned(worker)
    worker.give_back([0, 2])
    check_counts(cluster.log, KEYS, ROUNDS)
    assert [slot.number for slot in worker.slots] == [1, 3]
    assert not any(one.dirty for one in partitions(worker))
    share_with_another(cluster, worker, 0, 2)


@pytest.mark.parametrize("after", [0, 1], ids=["of the task", "of a task that stays"])
def test_a_task_is_given_back_without_the_disk(after: int, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.log.append_all(ticks(KEYS, ROUNDS))
    worker, _ = cluster.shared()
    turned(worker)
    cluster.fail("store", errors.StateUnavailableError("the disk is full"), after=after)
    worker.give_back([0])
    assert "the disk is full" in caplog.text
    check_counts(cluster.log, KEYS, ROUNDS)  # the log has the commit
    share_with_another(cluster, worker, 0)


def test_tasks_that_were_lost_are_dropped_and_the_others_go_on_from_their_last_commit() -> None:
    cluster = Cluster()
    cluster.log.append_all(ticks(KEYS, ROUNDS))
    worker, _ = cluster.shared()
    turned(worker)
    worker.give_back([0, 2], may_commit=False)
    assert read(cluster.log, "counts") == []
    assert all(one.notice_loss() for one in partitions(worker))
    other, _ = cluster.shared(0, 2)
    turned(other)  # it fences the other process, whose producer has had the tasks
    turned(worker)
    worker.leave()
    other.leave()
    check_counts(cluster.log, KEYS, ROUNDS)
    finish(cluster)


def test_a_task_that_was_given_back_is_in_no_later_commit() -> None:
    cluster = Cluster()
    process = cluster.process()
    kept, given = process.writer("tally-0"), process.writer("tally-1")
    given.append([Output("counts", b"k", b"lost", 0)])
    given.close()
    kept.append([Output("counts", b"k", b"kept", 0)])
    nothing = {TopicPartition("ticks", 1): 0}
    assert process.transaction
    with pytest.raises(errors.LogUnavailableError, match="aborted"):
        process.transaction.commit([Part(kept, {}, {}), Part(given, nothing, {})], "tally")
    assert cluster.log.read("counts") == []


def test_records_of_a_task_without_its_offsets_are_never_committed() -> None:
    cluster = Cluster()
    process = cluster.process()
    one, two = process.writer("tally-0"), process.writer("tally-1")
    for writer in (one, two):
        writer.append([Output("counts", b"k", b"v", 0)])
    with pytest.raises(errors.LifecycleError, match="tally-1"):
        one.commit({}, "tally", {})
    assert cluster.log.read("counts") == []
    assert process.transaction
    process.transaction.commit([Part(one, {}, {}), Part(two, {}, {})], "tally")
    assert len(cluster.log.read("counts")) == 2


def test_who_is_replaced_with_an_open_transaction_is_fenced_and_restores_the_tasks_that_it_still_has() -> (
    None
):
    cluster = Cluster()
    cluster.log.append_all(ticks(KEYS, ROUNDS))
    zombie, process = cluster.shared()
    turned(zombie)
    before = process.transaction
    other, _ = cluster.shared(2)
    turned(other)
    assert before
    assert before.ended
    zombie.give_back([2], may_commit=False)
    turned(zombie)
    assert process.transaction is not before
    zombie.leave()
    other.leave()
    check_counts(cluster.log, KEYS, ROUNDS)
    finish(cluster)


def test_a_long_restore_stops_nobody() -> None:
    cluster = Cluster()
    cluster.log.append_all(ticks(4_000, 1))
    first, _ = cluster.shared(0, 1, settings=OFTEN)
    turned(first)
    first.leave()
    settings = WorkerSettings(
        slice_records=10, partition=PartitionSettings(commit_interval_ms=0, restore_batch=50)
    )
    worker, _ = cluster.shared(2, 3, settings=settings)
    worker.start()
    while not all(slot.running for slot in worker.slots):
        worker.turn()
    worker.assign([0])
    restoring = worker.slots[-1]
    steps = 0
    while restoring.running is None:
        before = worker.status().records
        worker.turn()
        steps += 1
        assert worker.status().records > before
    assert steps > 10
    worker.leave()
    finish_counts(cluster)


def finish_counts(cluster: Cluster) -> None:
    worker, _ = cluster.shared(bounded=True)
    run_to_the_end(worker)
    check_counts(cluster.log, 4_000, 1)


FAULTS: dict[str, tuple[Callable[[], BaseException], tuple[str, ...]]] = {
    "kill": (
        Kill,
        ("take-over", "append", "commit", "committed", "fetch", "query", "store", "stored", "abort"),
    ),
    "unknown": (lambda: errors.CommitUnknownError("no answer"), ("commit", "committed")),
    "log away": (
        lambda: errors.LogUnavailableError("away"),
        ("append", "commit", "abort", "fetch", "query", "take-over"),
    ),
    "disk full": (lambda: errors.StateUnavailableError("full"), ("store",)),
}


class Chaos:
    """Two processes share the tasks; tasks move, with and without a commit, processes are killed, sleep, and wake as zombies."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.cluster = Cluster()
        self.owned: list[set[int]] = [{0, 1}, {2, 3}]
        self.workers: list[Worker | None] = [None, None]
        self.zombies: list[Worker] = []
        self.struck = 0

    def run(self) -> None:
        for round_ in range(12):
            self.cluster.log.append_all(ticks(KEYS, 1, round_))
            for _ in range(4):
                self.step()
        self.cluster.strike = lambda operation: None
        finish(self.cluster, rounds=12)

    def step(self) -> None:
        dice = self.dice
        number = dice.randrange(2)
        if dice.random() < 0.4:
            self.arm()
        try:
            chance = dice.random()
            if chance < 0.15:
                self.move(number, may_commit=dice.random() < 0.6)
            elif chance < 0.25:
                self.sleep(number)
            elif chance < 0.35 and self.zombies:
                zombie = self.zombies.pop()
                zombie.turn()
                zombie.leave()
            else:
                self.work(number)
        except Kill:
            self.workers[number] = None
        except (errors.LogUnavailableError, errors.StateUnavailableError, errors.FencedError):
            pass
        self.cluster.strike = lambda operation: None

    def work(self, number: int) -> None:
        worker = self.workers[number]
        if worker is None:
            dice = self.dice
            settings = WorkerSettings(
                slice_records=dice.choice((1, 5, 1_000)),
                retry_ms=0,
                retry_most_ms=0,
                partition=PartitionSettings(
                    commit_interval_ms=dice.choice((0, NEVER_MS)),
                    commit_records=dice.choice((1, 20, 1 << 40)),
                    restore_batch=dice.choice((1, 7, 1_000)),
                ),
            )
            worker, _ = self.cluster.shared(*self.owned[number], settings=settings)
            self.workers[number] = worker
            worker.started = True
            worker.slots = [slot for slot in worker.slots if slot.number in self.owned[number]]
        for _ in range(self.dice.randrange(1, 12)):
            worker.turn()

    def move(self, number: int, *, may_commit: bool) -> None:
        """A task moves to the other process. One that dies in this has lost its tasks all the same."""
        source, other = self.workers[number], self.workers[1 - number]
        if not self.owned[number]:
            return
        task = self.dice.choice(sorted(self.owned[number]))
        self.owned[number].discard(task)
        self.owned[1 - number].add(task)
        try:
            if source is not None:
                source.give_back([task], may_commit=may_commit)
        finally:
            if other is not None:
                other.assign([task])

    def sleep(self, number: int) -> None:
        """The process sleeps; another one gets its tasks, with state folders of its own."""
        worker, self.workers[number] = self.workers[number], None
        if worker is not None:
            self.zombies.append(worker)

    def arm(self) -> None:
        error, at = FAULTS[self.dice.choice([*FAULTS])]
        name, left = self.dice.choice(at), self.dice.randrange(1, 8)

        def strike(operation: str) -> None:
            nonlocal left
            if operation == name:
                left -= 1
                if left == 0:
                    self.struck += 1
                    raise error()

        self.cluster.strike = strike


@pytest.mark.one_seed_in(20)
def test_no_schedule_of_faults_over_processes_changes_what_comes_out(seeds: range) -> None:
    struck = 0
    for seed in seeds:
        chaos = Chaos(seed)
        try:
            chaos.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        struck += chaos.struck
    assert struck >= len(seeds)
