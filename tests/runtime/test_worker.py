"""A worker in this process, over a log in memory."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tailrace.core import errors
from tailrace.core.records import Output
from tailrace.runtime.progress import STARTING
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerHooks, WorkerSettings
from tailrace.state import MemoryStore
from tests.runtime.machine import KEYS, QUICK, ROUNDS, Machine, Reports, cuts, run_to_the_end, until
from tests.runtime.served import make_app
from tests.runtime.tallies import check_all, check_counts, poison, read, ticks
from tests.runtime.world import CountingStore
from tests.testing.shop import UNPAID_MS, Checkout, Done, Payment, Shop


def test_a_commit_in_doubt_is_reported_after_the_restore_that_finds_it_even_if_that_fails_at_first() -> None:
    machine, reports = Machine(), Reports()
    at_once = WorkerSettings(retry_ms=1, partition=PartitionSettings(commit_interval_ms=0))
    worker = machine.worker(0, hooks=WorkerHooks(committed=reports.committed), settings=at_once)
    worker.start()
    machine.log.append_all(ticks(KEYS, 1))
    machine.fail("committed", errors.CommitUnknownError("no answer"))
    worker.turn()
    assert reports.cuts == {}
    for at in ("take-over", "store"):
        machine.fail(at, errors.LogUnavailableError("gone for a moment"))
        worker.turn()
        time.sleep(0.005)  # the next attempt is due
    assert reports.cuts == {}
    until(worker, lambda: worker.status().running == 1)
    assert reports.cuts == {0: cuts(machine.log, 0)[:1]}
    worker.leave()
    assert reports.cuts == {0: cuts(machine.log, 0)}


@pytest.mark.parametrize(
    ("at", "error"),
    [
        ("fetch", errors.LogUnavailableError("gone for a moment")),
        ("append", errors.LogUnavailableError("the disk is full")),
        ("commit", errors.LogUnavailableError("the disk is full")),
        ("committed", errors.CommitUnknownError("no answer")),
        ("commit", errors.CommitUnknownError("no answer")),
        ("store", errors.StateUnavailableError("the disk is full")),
        ("take-over", errors.LogUnavailableError("gone for a moment")),
    ],
)
@pytest.mark.parametrize("after", [4, 14])
def test_what_mends_itself_is_waited_for_and_costs_nothing(at: str, error: Exception, after: int) -> None:
    machine = Machine()
    machine.log.append_all(ticks(KEYS, ROUNDS))
    machine.fail(at, error, times=3, after=after)
    run_to_the_end(machine.worker(bounded=True))
    check_all(machine.log, KEYS, ROUNDS)


def test_the_reason_for_which_a_task_waits_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.log.append_all(ticks(KEYS, ROUNDS))
    machine.fail("commit", errors.LogUnavailableError("the disk is full"), times=20, after=4)
    run_to_the_end(machine.worker(bounded=True))
    check_all(machine.log, KEYS, ROUNDS)
    said = [one.getMessage() for one in caplog.records if one.getMessage().startswith("a partition waits")]
    assert set(said) == {"a partition waits: the disk is full"}
    assert len(said) <= machine.plan.partitions


def test_what_cannot_be_had_at_the_start_is_said_at_once() -> None:
    machine = Machine()
    machine.fail("take-over", errors.LogUnavailableError("read-only"))
    worker = machine.worker()
    with pytest.raises(errors.LogUnavailableError, match="read-only"):
        worker.start()
    worker.leave()
    assert machine.stores[0].closed


def test_a_worker_that_is_not_to_start_releases_what_it_holds() -> None:
    machine = Machine()
    closed: list[bool] = []
    reader: Any = SimpleNamespace(close=lambda: closed.append(True))
    worker = machine.worker(reader=reader)

    def prepare() -> None:
        raise errors.LogUnavailableError("it was moved")

    with pytest.raises(errors.LogUnavailableError, match="it was moved"):
        worker.live(prepare)
    assert closed == [True]
    assert not worker.started


def test_a_failing_handler_ends_the_worker_and_the_others_keep_what_they_have_done() -> None:
    machine = Machine()
    machine.log.append_all(ticks(KEYS, 1))
    worker = machine.worker(settings=WorkerSettings(partition=PartitionSettings(commit_interval_ms=10**9)))
    worker.start()
    while worker.turn():
        pass
    machine.log.append(**poison("k0", 1_000))
    with pytest.raises(errors.HandlerError, match="negative"):
        worker.run()
    assert read(machine.log, "counts") == []
    worker.leave()
    whole = {one.who for one in read(machine.log, "counts")}
    assert "k0" not in whole
    assert len(whole) > KEYS / 2


def test_a_worker_whose_task_was_taken_over_ends() -> None:
    machine = Machine()
    machine.log.append_all(ticks(KEYS, 1))
    first = machine.worker()
    first.start()
    first.turn()
    machine.log.writer("tally-2")
    with pytest.raises(errors.FencedError):
        first.run()
    first.leave()
    machine.stores = [CountingStore(machine.operation) for _ in machine.stores]
    run_to_the_end(machine.worker(bounded=True))
    check_all(machine.log, KEYS, 1)


@pytest.mark.parametrize(
    ("at", "error"),
    [
        ("append", errors.LogUnavailableError("gone for a moment")),
        ("committed", errors.CommitUnknownError("no answer")),
        ("store", errors.StateUnavailableError("the disk is full")),
    ],
)
def test_who_wakes_with_partitions_to_restore_does_not_take_them_from_their_new_owner(
    at: str, error: Exception
) -> None:
    machine = Machine()
    owner = 1

    def check_first() -> None:
        if owner != 1:
            raise errors.FencedError("another owns them")

    at_once = WorkerSettings(retry_ms=1, partition=PartitionSettings(commit_interval_ms=0))
    first = machine.worker(hooks=WorkerHooks(check_owned=check_first), settings=at_once)
    first.start()
    machine.log.append_all(ticks(KEYS, 1))
    machine.fail(at, error, times=1_000)
    first.turn()
    assert first.status().running == 0
    time.sleep(0.005)  # the next attempt is due
    machine.strike = lambda operation: None
    machine.stores = [CountingStore(machine.operation) for _ in machine.stores]
    owner, second = 2, machine.worker(bounded=True)
    second.start()
    with pytest.raises(errors.FencedError, match="another owns them"):
        first.turn()
    first.leave()
    while not second.quiet:
        second.turn()
    second.leave()
    check_counts(machine.log, KEYS, 1)


def test_a_shared_task_that_is_lost_while_it_starts_is_tried_again() -> None:
    machine = Machine()
    machine.log.append_all(ticks(KEYS, 1))
    lost = [errors.FencedError("the group has removed this member")]

    def check() -> None:
        if lost:
            raise lost.pop()

    settings = WorkerSettings(retry_ms=1, bounded=True, tasks_move=True)
    worker = machine.worker(hooks=WorkerHooks(check_owned=check), settings=settings)
    worker.start()
    status = worker.status()
    assert status.running == status.partitions - 1
    while not worker.quiet:
        worker.turn()
    assert worker.status().running == status.partitions
    worker.leave()
    check_counts(machine.log, KEYS, 1)


def test_a_worker_is_quiet_only_with_tasks_and_after_a_turn_with_all_of_them() -> None:
    machine = Machine()
    worker = machine.worker(settings=WorkerSettings(bounded=True, tasks_move=True))
    worker.start()

    def come_to_rest() -> None:
        while not worker.quiet:
            worker.turn()

    come_to_rest()
    worker.give_back([0])
    assert not worker.quiet
    come_to_rest()
    worker.assign([0])
    assert not worker.quiet
    come_to_rest()
    everything = [slot.number for slot in worker.slots]
    worker.give_back(everything)
    for _ in range(3):
        worker.turn()
        assert not worker.quiet
    machine.log.append_all(ticks(KEYS, 1))
    worker.assign(everything)
    come_to_rest()
    worker.leave()
    check_counts(machine.log, KEYS, 1)


def test_it_can_be_stopped_in_the_middle_of_a_restore_and_the_next_goes_on() -> None:
    machine = Machine()
    machine.log.append_all(ticks(KEYS, ROUNDS))
    run_to_the_end(machine.worker(bounded=True))
    machine.stores = [CountingStore(machine.operation) for _ in machine.stores]
    asked = 0

    def between_turns() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            worker.stop()

    settings = WorkerSettings(partition=PartitionSettings(restore_batch=2))
    worker = machine.worker(settings=settings, hooks=WorkerHooks(between_turns=between_turns))
    worker.live()
    assert asked == 3
    assert machine.stores[0].closed
    assert machine.stores[0].cut is not None
    assert all(store.cut is None for store in machine.stores[1:])
    assert worker.status().running == 0
    run_to_the_end(machine.worker(bounded=True))
    check_all(machine.log, KEYS, ROUNDS)


def test_a_slow_handler_is_fed_in_small_slices() -> None:
    plan = make_app(1, slow_s=0.002).plan()
    machine = Machine(plan)
    machine.log.append_all(ticks(10, 60))
    worker = machine.worker(settings=WorkerSettings(slice_ms=20, slice_records=10_000))
    worker.start()
    taken = [worker.status().records]
    for _ in range(7):
        worker.turn()
        taken.append(worker.status().records)
    # No handler is faster than it says, so more than ten of them would take longer; on a slow machine fewer fit.
    assert taken[-1] - taken[-2] <= 10
    assert worker.status().lag > 100
    worker.leave()


def test_a_worker_with_nothing_to_do_rests() -> None:
    machine = Machine()
    settings = WorkerSettings()
    turns = 0

    def between_turns() -> None:
        nonlocal turns
        if worker.started:
            turns += 1
        if turns == 4:
            worker.stop()

    worker = machine.worker(settings=settings, hooks=WorkerHooks(between_turns=between_turns))
    worker.start()
    begun, used = time.monotonic(), time.thread_time()
    worker.run()
    assert time.monotonic() - begun > 3 * settings.rest_ms / 1_000 - 0.1
    assert time.thread_time() - used < 0.3
    worker.leave()


def test_it_wakes_for_a_record_before_its_rest_is_over() -> None:
    machine = Machine()
    begun = time.monotonic()

    def between_turns() -> None:
        if read(machine.log, "counts") or time.monotonic() - begun > 60:
            worker.stop()

    settings = WorkerSettings(rest_ms=60_000, partition=QUICK.partition)
    worker = machine.worker(settings=settings, hooks=WorkerHooks(between_turns=between_turns))
    worker.start()
    worker.turn()
    timer = threading.Timer(0.1, lambda: machine.log.append_all(ticks(1, 1)))
    timer.start()
    begun = time.monotonic()
    worker.run()
    assert time.monotonic() - begun < 30
    check_counts(machine.log, 1, 1)
    worker.leave()
    timer.join()


def test_the_status_counts_records_and_lag_and_knows_the_watermark() -> None:
    machine = Machine()
    machine.log.append_all(ticks(KEYS, ROUNDS))
    worker = machine.worker(bounded=True)
    worker.start()
    status = worker.status()
    assert (status.records, status.lag, status.watermark_ms) == (0, KEYS * ROUNDS, None)
    while not worker.quiet:
        worker.turn()
    status = worker.status()
    assert (status.records, status.lag, status.running) == (2 * KEYS * ROUNDS, 0, 4)
    assert status.watermark_ms is not None
    worker.leave()


def pass_on(workers: list[Worker]) -> None:
    """What a parent does: all go on to the next phase once each has started."""
    if all(one.started for one in workers):
        for one in workers:
            one.advance()


@pytest.mark.parametrize("first", [0, 1])
def test_no_worker_reads_before_all_have_said_that_their_idle_inputs_count_again(first: int) -> None:
    """Else the first one would follow what the others published when they were idle, past the backlog that they have to read."""
    shop, now = Shop(partitions=2), 0
    machine = Machine(shop.app.plan())
    plan, log = machine.plan, machine.log

    def started_together() -> list[Worker]:
        def begin_other() -> None:
            one, other = found
            if one.started and not other.started:
                other.start()

        found: list[Worker] = []
        found += [
            Worker(
                plan,
                log,
                [number],
                lambda _: MemoryStore(),
                settings=QUICK,
                hooks=WorkerHooks(between_turns=between_turns),
                clock=lambda: now,
            )
            for number, between_turns in ((first, begin_other), (1 - first, lambda: pass_on(found)))
        ]
        for one in found:
            one.phase = STARTING
        found[0].start()
        return found

    def worked_off(workers: list[Worker]) -> None:
        nonlocal now
        for _ in range(4):  # until all that may be idle is
            for one in workers:
                if not one.started:
                    one.start()
                while one.turn():
                    now += 20
            now += 70_000

    orders = [[f"{day}-{number}" for number in range(40)] for day in range(2)]
    for day, some in enumerate(orders):
        hour_ms = day * 10 * UNPAID_MS
        events: list[tuple[Any, Any]] = []
        for number, order in enumerate(some):
            at = hour_ms + number * UNPAID_MS // 10
            events += [
                (shop.checkouts, Checkout(f"u{number}", order, at)),
                (shop.payments, Payment(order, at + 60_000)),
            ]
        log.append_all(
            Output(topic.name, topic.encode_key(event), topic.encode(event), 0) for topic, event in events
        )
        workers = started_together()
        worked_off(workers)
        assert [slot.running.task.totals.late for one in workers for slot in one.slots if slot.running] == [
            0,
            0,
        ]
        for one in workers:
            one.leave()
    done = [msgspec.json.decode(record.value or b"", type=Done) for record in log.read("out")]
    assert sorted((one.order, one.what) for one in done) == sorted(
        (one, "paid") for day in orders for one in day
    )
