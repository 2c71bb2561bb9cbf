"""A join behind a change of keys gives what the times say: whatever the workers, the commits and the crashes."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tailrace.log import Log
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import WorkerSettings
from tailrace.testing import Harness
from tests.runtime.bounded_run import BoundedRun, check_history, read_all
from tests.runtime.orders import (
    Outcome,
    Placed,
    events,
    expected,
    make_app,
    mixed_orders,
    paid_orders,
    records,
    sorted_outcomes,
)
from tests.runtime.processes import Running, wait_until
from tests.runtime.world import Kill

FORMS = pytest.mark.parametrize("repartition", [False, True], ids=["function", "repartition"])


def check(run: BoundedRun, orders: Sequence[Placed]) -> None:
    """Exactly what the times say."""
    assert outcomes(run.log) == expected(orders)
    run.check()


def outcomes(log: Log) -> list[Outcome]:
    return sorted_outcomes(read_all(log, "outcomes", Outcome))


@FORMS
def test_every_order_that_was_paid_in_time_is_paid(repartition: bool, tmp_path: Path) -> None:
    orders = paid_orders(40_000)
    run = BoundedRun(make_app(repartition=repartition), tmp_path / "log")
    run.log.append_all(records(orders))
    run.run()
    check(run, orders)
    assert {one.what for one in outcomes(run.log)} == {"paid"}


@FORMS
@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("commit_interval_ms", [20, 100, 1_000, 10_000])
def test_neither_commits_nor_the_number_of_workers_change_it(
    commit_interval_ms: int, processes: int, repartition: bool, tmp_path: Path
) -> None:
    orders = mixed_orders(4_000)
    settings = WorkerSettings(partition=PartitionSettings(commit_interval_ms=commit_interval_ms))
    run = BoundedRun(make_app(repartition=repartition), tmp_path / "log", settings=settings)
    run.log.append_all(records(orders))
    run.run(processes)
    check(run, orders)


@FORMS
@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("at", ["fetch", "append", "commit", "committed", "store", "stored"])
def test_no_death_of_a_worker_changes_it(at: str, processes: int, repartition: bool) -> None:
    orders = mixed_orders(1_000)
    dice = random.Random(f"{at} {processes} {repartition}")
    settings = WorkerSettings(slice_records=200, partition=PartitionSettings(commit_interval_ms=5))
    left = 0

    def strike(operation: str) -> None:
        nonlocal left
        if operation == at and run.deaths < 6:
            left -= 1
            if left < 0:
                left = dice.randrange(1, 12)
                raise Kill

    run = BoundedRun(make_app(repartition=repartition), settings=settings)
    run.log.append_all(records(orders))
    run.strike, left = strike, dice.randrange(1, 12)
    run.run(processes)
    assert run.deaths >= 3
    check(run, orders)


def test_a_service_whose_processes_are_killed_goes_on_to_the_same_end(tmp_path: Path) -> None:
    orders = mixed_orders(4_000)
    plan = make_app().plan()
    log = EmbeddedLog(tmp_path / "log")
    prepare_log(log, plan, create_declared=True)
    log.append_all(records(orders))
    app = "tests.runtime.orders:app"
    where = ["--log", tmp_path / "log", "--commit-interval", "20ms", "--workers", 2]

    def committed() -> int:
        return sum(log.end_offset(plan.tape_topic, number) for number in range(plan.partitions))

    def wait_for_commits(count: int) -> None:
        enough = committed() + count
        wait_until(lambda: committed() >= enough, f"{count} records of the tape are committed")

    for state in ("old", "new"):
        with Running("run", app, *where, "--state", tmp_path / state) as service:
            wait_for_commits(8)
            service.signal(signal.SIGKILL)
    with Running("run", app, *where, "--state", tmp_path / "new", "--end-of-input") as service:
        assert service.ended() == 0, service.lines
    assert outcomes(log) == expected(orders)
    check_history(log, plan)


@FORMS
def test_no_schedule_changes_it(repartition: bool) -> None:
    app = make_app(repartition=repartition)
    checkouts, payments = events(mixed_orders(7))
    with Harness(app) as h:
        h.send(app.topics["checkouts"], *checkouts)
        h.send(app.topics["payments"], *payments)
        report = h.explore(schedules=200)
    assert report.equal
    assert report.schedules == 200
