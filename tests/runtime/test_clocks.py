"""Durations are measured by a monotonic clock. A wall clock that cannot be right is refused."""

from __future__ import annotations

import pytest

from tailrace.core.durations import A_DAY_MS, A_MINUTE_MS
from tailrace.core.engine import tape
from tailrace.core.errors import ClockError
from tailrace.history.status.inspection import inspect_app
from tailrace.runtime.clocks import READ_EVERY_MS, WallClock
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings
from tests.runtime.world import World, run_dry

AN_HOUR_MS = 3_600_000
A_YEAR_MS = 365 * A_DAY_MS
REAL = PartitionSettings(real_clock=True)


class Monotonic:
    """Elapsed time that only the test moves."""

    def __init__(self) -> None:
        self.now_ms = 50

    def __call__(self) -> int:
        return self.now_ms


class TestDurations:
    @pytest.fixture
    def running(self) -> tuple[World, Monotonic, Partition]:
        world, elapsed = World(commit_interval_ms=500), Monotonic()
        partition = world.running(elapsed=elapsed)
        world.sell(("a", 0, 1), ("b", 10_000, 1))
        run_dry(partition)
        return world, elapsed, partition

    @pytest.mark.parametrize("by_ms", [AN_HOUR_MS, -AN_HOUR_MS])
    def test_a_wall_clock_that_is_set_makes_no_input_idle_and_no_commit_due(
        self, running, by_ms: int
    ) -> None:
        world, _, partition = running
        rest_ms = partition.rest_ms()
        world.now_ms += by_ms
        run_dry(partition)
        assert (partition.commit_is_due, partition.rest_ms()) == (False, rest_ms)
        assert not any(partition.task.watermarks.idle)

    def test_elapsed_time_alone_makes_an_input_idle_and_a_commit_due(self, running) -> None:
        _, elapsed, partition = running
        elapsed.now_ms += 499
        assert not partition.commit_is_due
        elapsed.now_ms += 1
        partition.take(1)
        assert partition.commit_is_due
        elapsed.now_ms += 4_499
        run_dry(partition)
        assert not any(partition.task.watermarks.idle)
        elapsed.now_ms += 1
        run_dry(partition)
        assert any(partition.task.watermarks.idle)


class Times:
    def __init__(self) -> None:
        self.wall_ms, self.boot_ms = 1_700_000_000_000, 70_000

    def clock(self) -> WallClock:
        return WallClock(lambda: self.wall_ms, lambda: self.boot_ms)


class TestWhileRunning:
    @pytest.mark.parametrize("by_ms", [A_DAY_MS + 1, A_YEAR_MS, -A_DAY_MS - 1])
    def test_a_jump_of_more_than_a_day_is_an_error_at_every_reading(self, by_ms: int) -> None:
        times = Times()
        clock = times.clock()
        assert clock() == times.wall_ms
        times.wall_ms += by_ms
        for _ in range(2):
            with pytest.raises(ClockError, match=r"was set .*(ahead|back) while the service was running"):
                clock()

    def test_corrections_a_suspended_machine_and_slow_drift_are_none(self) -> None:
        times = Times()
        clock = times.clock()
        for by_ms in (A_DAY_MS, -A_DAY_MS, AN_HOUR_MS, -5):
            times.wall_ms += by_ms
            assert clock() == times.wall_ms
        times.wall_ms, times.boot_ms = times.wall_ms + 30 * A_DAY_MS, times.boot_ms + 30 * A_DAY_MS
        assert clock() == times.wall_ms
        for _ in range(100):
            times.wall_ms, times.boot_ms = times.wall_ms + A_DAY_MS, times.boot_ms + AN_HOUR_MS
            assert clock() == times.wall_ms

    def test_a_task_does_nothing_by_such_a_reading(self) -> None:
        world, times = World(), Times()
        clock = times.clock()
        partition = Partition(world.plan, 0, world.log, world.store, clock, lineage=b"", settings=REAL)
        partition.restore()
        world.sell(("a", 0, 1), topic="returns")
        run_dry(partition)
        partition.commit()
        before = world.rows()
        times.wall_ms += A_YEAR_MS
        with pytest.raises(ClockError):
            partition.poll()
        assert world.rows() == before
        partition.close()


def stopped(world: World, topic: str = "returns") -> None:
    """A service that has a processing-time timer pending, if something was returned, and is stopped."""
    partition = world.running(settings=REAL)
    world.sell(("a", 0, 1), topic=topic)
    run_dry(partition)
    partition.revoke()
    world.new_store()


class TestAtAStart:
    @pytest.fixture
    def world(self) -> World:
        world = World()
        world.now_ms = 40 * A_YEAR_MS
        stopped(world)
        return world

    @pytest.mark.parametrize("by_ms", [A_DAY_MS + 1, A_YEAR_MS])
    def test_a_clock_that_is_a_day_ahead_is_refused_and_nothing_is_changed(
        self, world: World, by_ms: int
    ) -> None:
        visible, changelog = world.said(), world.log.read("shop.changelog")
        world.now_ms += by_ms
        for _ in range(2):
            with pytest.raises(ClockError, match=r"after the last reading .*--accept-clock"):
                world.running(settings=REAL)
        assert (world.said(), world.log.read("shop.changelog")) == (visible, changelog)

    def test_it_is_accepted_on_request_and_processing_time_goes_on_from_there(self, world: World) -> None:
        world.now_ms += A_YEAR_MS
        partition = world.running(settings=PartitionSettings(real_clock=True, accept_clock=True))
        run_dry(partition)
        partition.revoke()
        assert world.said() == ["returned -1", "later -1"]
        assert tape.decode_cut(world.log.read("shop.changelog")[-1].value or b"").now == world.now_ms

    @pytest.mark.parametrize(
        ("apart_ms", "confirms"), [(0, True), (A_DAY_MS, True), (A_DAY_MS + 1, False), (A_YEAR_MS, False)]
    )
    def test_a_record_of_about_that_time_confirms_it(
        self, world: World, apart_ms: int, *, confirms: bool
    ) -> None:
        world.now_ms += A_YEAR_MS
        world.sell(("b", world.now_ms - apart_ms, 1))
        if not confirms:
            with pytest.raises(ClockError):
                world.running(settings=REAL)
            return
        partition = world.running(settings=REAL)
        run_dry(partition)
        assert partition.task.now == world.now_ms

    def test_a_clock_that_is_a_day_back_is_refused_though_there_are_records_of_that_time(
        self, world: World
    ) -> None:
        world.now_ms -= A_DAY_MS
        world.running(settings=REAL).close()
        world.now_ms -= 1
        world.sell(("b", world.now_ms, 1))
        with pytest.raises(ClockError, match="processing time would stand still"):
            world.running(settings=REAL)

    def test_a_simulated_clock_may_be_anything(self, world: World) -> None:
        world.now_ms += A_YEAR_MS
        world.running().close()

    @pytest.mark.parametrize(
        ("by_ms", "told"),
        [
            *((0, ""), (A_MINUTE_MS, ""), (A_MINUTE_MS + 1, "1m")),
            *((5 * AN_HOUR_MS, "5h"), (A_DAY_MS, "1d"), (3 * A_DAY_MS + 1, "3d")),
        ],
    )
    def test_status_and_log_name_a_task_whose_clock_is_ahead(
        self, world: World, caplog: pytest.LogCaptureFixture, by_ms: int, told: str
    ) -> None:
        report = inspect_app(world.plan, world.log, world.now_ms - by_ms, lambda _: None)
        assert len(report.problems) == bool(told)
        for problem in report.problems:
            assert "processing time of task 0 stands still" in problem
            assert f"{told} ahead of the clock" in problem
        if by_ms <= A_DAY_MS:
            world.now_ms -= by_ms
            world.running(settings=REAL).close()
            warnings = (one.message for one in caplog.records if one.levelname == "WARNING")
            assert tuple(warnings) == report.problems

    def test_a_clock_that_is_set_while_a_service_runs_is_logged_from_a_minute_on(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        times = Times()
        clock = times.clock()
        for by_ms, told in ((A_MINUTE_MS, []), (AN_HOUR_MS, ["1h ahead"]), (-AN_HOUR_MS, ["1h back"])):
            caplog.clear()
            times.wall_ms += by_ms
            clock()
            assert [
                " ".join(one.message.split()[4:6]) for one in caplog.records if one.name == "tailrace.service"
            ] == told


def test_a_running_task_reads_the_clock_every_six_hours_so_that_a_restart_finds_it_right() -> None:
    world = World()
    world.now_ms = 40 * A_YEAR_MS
    partition = world.running(settings=REAL)
    world.sell(("a", 0, 1))
    run_dry(partition)
    partition.commit()
    for _ in range(40):
        world.now_ms += READ_EVERY_MS // 4
        run_dry(partition)
        partition.commit()
        assert world.now_ms - partition.task.now < READ_EVERY_MS
    partition.close()
    world.now_ms += A_DAY_MS // 2
    world.running(settings=REAL).close()


def test_a_bounded_run_checks_the_clock_only_if_it_takes_it() -> None:
    world = World()
    world.now_ms = 40 * A_YEAR_MS
    stopped(world, topic="sales")
    bounded = PartitionSettings(real_clock=True, bounded=True)
    world.now_ms += 7 * A_DAY_MS
    partition = world.running(settings=bounded)
    assert not partition.poll()
    partition.revoke()
    before = world.log.read("shop.changelog")
    world.sell(("b", 0, 1))
    partition = world.running(settings=bounded)
    with pytest.raises(ClockError):
        partition.poll()
    assert world.log.read("shop.changelog") == before


def test_a_new_task_has_no_reading_to_compare_and_reads_no_clock_by_itself() -> None:
    world = World()
    world.now_ms = 40 * A_YEAR_MS
    partition = world.running(settings=REAL)
    world.now_ms += A_YEAR_MS
    assert not partition.poll()
    assert not partition.dirty
