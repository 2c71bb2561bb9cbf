"""Services as processes: real signals, on the embedded log."""

from __future__ import annotations

import resource
import signal
import time
from pathlib import Path

import pytest

from tailrace.log.embedded.database import SHARED_MEMORY
from tailrace.log.embedded.holders import appenders
from tailrace.state.snapshots import Snapshots
from tests.runtime.processes import Running, is_alive, is_pending, is_stopped, wait_until
from tests.runtime.tallies import check_all, check_counts, poison, ticks
from tests.runtime.worker_house import KEYS, House


@pytest.fixture
def house(tmp_path: Path):
    house = House(tmp_path)
    yield house
    house.log.close()


@pytest.mark.parametrize(
    ("workers", "number"), [(1, signal.SIGTERM), (2, signal.SIGTERM), (1, signal.SIGINT)]
)
def test_what_was_done_before_a_signal_is_committed_on_leaving(house, workers, number) -> None:
    house.feed(ticks(KEYS, 50))
    with house.run("--commit-interval", "1h", "--workers", workers, slow_ms=1, telling=True) as service:
        service.wait_for("a partition runs", times=4)
        house.wait_until_at_work(workers)
        assert house.counted() == 0
        service.signal(number)
        assert service.ended() == 0, service.lines
        assert service.logged[-1]["message"] == "left"
        assert not any(map(is_alive, service.started_workers()))
    assert 0 < house.counted() < KEYS * 50
    house.run_to_the_end()
    check_all(house.log, KEYS, 50)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_processes_told_at_once_while_they_start_leave_in_good_order(house, number) -> None:
    """As a terminal tells them of Ctrl-C, and a service manager of its end."""
    with house.run("--workers", 2) as service:
        wait_until(service.started_workers, "the first worker is started")
        for pid in service.members():
            service.signal(number, pid)
        assert service.ended() == 0, service.lines
        assert service.logged[-1]["message"] == "left"
        assert not service.complaint


def test_state_is_in_a_folder_for_each_task_and_none_is_needed(house) -> None:
    house.feed(ticks(KEYS, 10))
    house.run_to_the_end()
    assert sorted(one.name for one in (house.folder / "state" / "tally").iterdir()) == ["0", "1", "2", "3"]
    house.feed(ticks(KEYS, 10, 10))
    house.run_to_the_end(state="nothing-yet")
    check_counts(house.log, KEYS, 20)


def test_a_worker_that_dies_is_started_again_and_it_is_said(house) -> None:
    house.feed(ticks(KEYS, 50))
    with house.run("--workers", 2, "--end-of-input", slow_ms=3) as service:
        service.wait_for("a partition runs", times=4)
        house.wait_for_more()
        victim = service.started_workers()[1]
        service.signal(signal.SIGKILL, victim)
        service.wait_for("a worker was ended by SIGKILL; it is started again in")
        service.wait_for("a worker is started", times=3)
        assert service.ended() == 0, service.lines
    check_all(house.log, KEYS, 50)


def test_workers_leave_when_their_parent_is_killed(house) -> None:
    with house.run("--workers", 2) as service:
        service.wait_for("a partition runs", times=4)
        workers = service.started_workers()
        service.signal(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, workers)), "the workers have left")
    house.feed(ticks(KEYS, 5))
    house.run_to_the_end()
    check_all(house.log, KEYS, 5)


def test_a_second_owner_is_refused_while_the_first_lives(house) -> None:
    with house.run() as first:
        first.wait_for("a partition runs", times=4)
        for state in ("state", "another"):
            with house.run(state=state) as second:
                assert second.ended() == 1
                assert "the task tally/0 is owned by another process (" in second.complaint
                assert len(second.complaint.splitlines()) == 1
        house.feed(ticks(KEYS, 5))
        wait_until(lambda: house.counted() == KEYS * 5, "the first has counted")
    house.run_to_the_end()
    check_all(house.log, KEYS, 5)


def stop(house: House, service: Running) -> None:
    """Stop a service while it does not append."""
    pid = service.process.pid

    def stopped() -> bool:
        service.signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(pid), "it is stopped")
        if not appenders(house.folder / "log" / SHARED_MEMORY):
            return True
        service.signal(signal.SIGCONT)
        return False

    wait_until(stopped, "it is stopped at the right moment")


def test_a_stopped_owner_keeps_its_tasks_and_is_named_until_it_is_continued_or_ended(house) -> None:
    house.feed(ticks(KEYS, 50))
    with house.run(slow_ms=1) as first:
        first.wait_for("a partition runs", times=4)
        house.wait_for_more()
        pid = first.process.pid
        stop(house, first)
        with house.run(state="another") as second:
            assert second.ended() == 1
            assert f"is owned by another process ({pid}), which is stopped" in second.complaint
            assert f"kill -KILL {pid}" in second.complaint
        assert is_stopped(pid)
        first.signal(signal.SIGCONT)
        house.wait_for_more()
        stop(house, first)
        first.signal(signal.SIGKILL)
        first.ended()
        house.run_to_the_end(state="another")
    check_all(house.log, KEYS, 50)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_twice_leaves_at_once(house, workers) -> None:
    house.feed(ticks(KEYS, 1))
    with house.run("--workers", workers, slow_ms=3_600_000, telling=True) as service:
        service.wait_for("a partition runs", times=4)
        house.wait_until_at_work(workers)
        service.signal(signal.SIGINT)
        wait_until(lambda: not is_pending(service.process.pid, signal.SIGINT), "the first is heard")
        said = "Counter.ticked of the key 'k"
        wait_until(lambda: said in "".join(service.lines), "the handler is named that it waits for")
        time.sleep(0.2)
        assert service.process.poll() is None
        service.signal(signal.SIGINT)
        assert service.ended() == 130, service.lines
        wait_until(lambda: not any(map(is_alive, service.started_workers())), "the workers are gone")
    house.run_to_the_end()
    check_all(house.log, KEYS, 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_handler_ends_the_service_with_what_failed(house, workers) -> None:
    house.feed(ticks(KEYS, 5))
    house.log.append(**poison("k3", 1_000))
    with house.run("--workers", workers) as service:
        assert service.ended() == 1
        assert "a negative amount" in service.complaint, service.lines
        assert "topic 'ticks'" in service.complaint
        assert "key 'k3'" in service.complaint
        assert not any("started again" in one["message"] for one in service.logged)
        (said,) = [one for one in service.logged if one["message"] == "a handler failed"]
        assert 'raise ValueError("a negative amount")' in said["traceback"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_is_full_for_a_while_is_waited_for_and_costs_nothing(house, workers) -> None:
    # A limit on the size of files stands for it: what is written past it is refused, under log and state alike.
    house.feed(ticks(KEYS, 30))
    with house.run("--workers", workers, slow_ms=1) as service:
        service.wait_for("a partition runs", times=4)
        house.wait_for_more()
        at_work = service.started_workers() or [service.process.pid]
        _, most = resource.prlimit(at_work[0], resource.RLIMIT_FSIZE)
        for pid in at_work:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1_000, most))
        house.feed(ticks(KEYS, 1, 30))  # so that there is something to commit
        service.wait_for("a partition waits")
        for pid in at_work:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
        wait_until(lambda: house.counted() == KEYS * 31, "all is counted")
        service.signal(signal.SIGTERM)
        assert service.ended() == 0, service.lines
        assert service.started_workers() in ([], at_work)
    house.run_to_the_end()
    check_all(house.log, KEYS, 31)


@pytest.mark.parametrize("where", ["state", "log"])
def test_a_folder_that_cannot_be_written_is_told_at_the_start(house, where) -> None:
    # Forbidding it by permissions would not stop whoever runs the tests as root.
    in_the_way = house.folder / where / {"state": "tally", "log": "owners"}[where]
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.write_text("a file stands in the way")
    with house.run() as service:
        assert service.ended() == 1
        (line,) = service.complaint.splitlines()
        assert str(house.folder / where) in line


def test_memory_stays_flat_while_a_slow_handler_is_fed_a_burst(house) -> None:
    def resident_bytes() -> int:
        pages = Path(f"/proc/{service.process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    house.feed(ticks(KEYS, 5))
    with house.run(slow_ms=1) as service:
        wait_until(lambda: house.counted() == KEYS * 5, "the service has warmed up")
        before = resident_bytes()
        burst = ticks(KEYS, 10_000, 5)
        house.feed(burst)
        size = sum(len(one.value or b"") for one in burst)
        most = 0
        for _ in range(10):
            time.sleep(0.2)
            most = max(most, resident_bytes())
        # As objects of Python its records alone would take several times that.
        assert most - before < size
        service.signal(signal.SIGTERM)
        assert service.ended() == 0


def test_a_service_takes_snapshots_of_itself_and_another_starts_from_the_latest(house: House) -> None:
    place = house.folder / "snapshots"
    snapshots = Snapshots(str(place), "tally")
    own = ("--snapshots", place, "--snapshot-every", "1s", "--snapshot-keep", 2)
    with house.run(*own, "--workers", 2) as service:
        for number in range(3):
            house.feed(ticks(KEYS, 1, number))
            service.wait_for("a snapshot was taken", number + 1)
        wait_until(lambda: house.counted() == 3 * KEYS, "all is counted")
        service.signal(signal.SIGKILL)
        service.ended()
    known = snapshots.list()
    newest = sum(one.automatic for one in known)
    assert newest <= 2 + 10  # and what they build upon
    assert snapshots.open().verify() == []
    assert snapshots.open().manifest.kind == "incremental"
    house.feed(ticks(KEYS, 2, 3))
    house.run_to_the_end("--from-snapshot", place, state="anew")
    check_all(house.log, KEYS, 5)


def test_snapshots_that_fail_do_not_stop_the_service(house: House) -> None:
    (house.folder / "snapshots").mkdir()
    (house.folder / "snapshots" / "tally").write_text("a file")
    house.feed(ticks(KEYS, 1))
    with house.run("--snapshots", house.folder / "snapshots", "--snapshot-every", "1s") as service:
        service.wait_for("no snapshot was taken", 2)
        house.feed(ticks(KEYS, 1, 1))
        wait_until(lambda: house.counted() == 2 * KEYS, "all is counted")
