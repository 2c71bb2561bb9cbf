"""A driver that is killed at any moment is gone on with by the same command, and little is done twice."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import signal
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.engine import tape
from tailrace.core.errors import StateInUseError
from tailrace.history.rebuilding.driver import identity, rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.job import Job, Unit
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.units import run_unit
from tailrace.history.rebuilding.work_folder import UnitProgress, WorkFolder
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tailrace.processes.signals import held_back
from tailrace.state.snapshots import Snapshots
from tailrace.state.snapshots.arrow import parquet
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import TALLY, changed, live, rebuilt, request
from tests.history.rebuilding.struck_engines import During, Stopping
from tests.runtime.processes import Running, wait_until

KEYS, ROUNDS = 200, 30
EVENTS = 2 * KEYS * ROUNDS


@pytest.fixture(scope="module")
def tally(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tally")
    for first in range(0, ROUNDS, 2):
        lived.serve_tallies(folder, KEYS, 2, first_round=first)
    return folder


def progress(work: Path) -> int:
    """Records that all tasks have gone through, as far as is told."""
    found = 0
    for place in work.glob("*/*/progress/*"):
        try:
            found += msgspec.msgpack.decode(place.read_bytes(), type=UnitProgress).records
        except (FileNotFoundError, msgspec.DecodeError):
            continue
    return found


def kept(work: Path) -> int:
    """The number of records of the tasks that are done: a resumed rebuild does not replay them."""
    (folder,) = (one for one in work.glob("*/*") if one.is_dir())
    done = [
        WorkFolder(folder).result(f"task-{number}") for number in range(find_app(TALLY).plan().partitions)
    ]
    return sum(task.totals.records for one in done if one is not None for task in one.tasks)


@contextmanager
def at_work(folder: Path, to: Path, share: float = 0) -> Generator[Running]:
    """A rebuild in two processes, of which a share is done."""
    with Running(
        *("rebuild", TALLY, "--log", folder / "log", "--to", to, "--workers", 2),
        environment={"TALLY_SLOW_MS": "1"},
    ) as running:
        wait_until(lambda: progress(to / "tally" / "_work") > share * EVENTS, f"{share:.0%} is done")
        yield running


def killed(folder: Path, to: Path, share: float) -> None:
    """Start a rebuild, and kill -9 its driver at a share of the work."""
    with at_work(folder, to, share) as running:
        os.kill(running.process.pid, signal.SIGKILL)
        wait_until(lambda: not running.members(), "its processes have ended by themselves")


def check_published(folder: Path, to: Path, report: RebuildReport) -> None:
    """The snapshot is whole, and has the state of the service."""
    snapshot = Snapshots(str(to), "tally").open(report.snapshot)
    assert snapshot.verify() == []
    assert rebuilt(snapshot) == live(folder, find_app(TALLY).plan())


def again(folder: Path, to: Path, **options: Any) -> RebuildReport:
    importlib.import_module(
        "services"
    )  # beside the app, and loaded in this process only: it is no other code
    asked = changed(request(folder, **options), uri=str(to))
    return rebuild(asked, LocalEngine(1))


def test_a_rebuild_that_was_killed_goes_on_with_the_tasks_that_were_not_done(
    tally: Path, tmp_path: Path
) -> None:
    killed(tally, tmp_path, 0.8)
    left = EVENTS - kept(tmp_path / "tally" / "_work")
    report = again(tally, tmp_path)
    assert report.resumed
    assert report.replayed == left < EVENTS
    check_published(tally, tmp_path, report)
    assert not (tmp_path / "tally" / "_work").exists()


def test_what_was_swept_away_meanwhile_is_made_once_more(tally: Path, tmp_path: Path) -> None:
    """Nobody went on for days, and the service's snapshots are beside it."""
    asked = changed(request(tally), uri=str(tmp_path))
    with pytest.raises(InterruptedError):
        rebuild(asked, Stopping(3))
    assert Snapshots(str(tmp_path), "tally").sweep(older_than_s=-60) != []
    report = rebuild(asked, LocalEngine(1))
    assert report.resumed
    check_published(tally, tmp_path, report)


def test_a_process_left_over_from_an_earlier_job_adds_nothing_to_the_next(
    tally: Path, tmp_path: Path
) -> None:
    """A cluster may still run a unit of a job that was given up: it may have other code."""
    asked = changed(request(tally), uri=str(tmp_path))
    left: list[Unit] = []

    def give_up(units: Sequence[Unit]) -> None:
        left.extend(units)
        raise InterruptedError

    def run_late(units: Sequence[Unit]) -> None:
        WorkFolder(Path(left[0].job.work)).make()
        for one in left:
            run_unit(one)
        assert [WorkFolder(Path(one.job.work)).result(one.name) for one in units] == [None] * len(units)

    with pytest.raises(InterruptedError):
        rebuild(asked, During(give_up))
    report = rebuild(asked, During(run_late), restart=True)
    assert report.replayed == EVENTS
    check_published(tally, tmp_path, report)
    assert not (tmp_path / "tally" / "_work").exists()


def test_it_ends_where_it_was_to_end_though_the_log_has_gone_on(tally: Path, tmp_path: Path) -> None:
    own = shutil.copytree(tally, tmp_path / "own")
    killed(own, tmp_path, 0.5)
    (place,) = (tmp_path / "tally" / "_work").glob("*/job")
    job = msgspec.msgpack.decode(place.read_bytes(), type=Job)
    lived.serve_tallies(own, KEYS, 2, first_round=ROUNDS)
    report = again(own, tmp_path)
    assert report.snapshot == job.snapshot
    snapshot = Snapshots(str(tmp_path), "tally").open(report.snapshot)
    assert [one.cut for one in rebuilt(snapshot)] == [one.cut for one in job.targets]
    assert report.events == EVENTS
    assert [tape.decode_cut(one.cut or b"").tape for one in live(own, find_app(TALLY).plan())] > [
        tape.decode_cut(one.cut or b"").tape for one in job.targets
    ]


def test_a_process_that_is_killed_ends_the_rebuild_with_what_to_do_and_it_goes_on(
    tally: Path, tmp_path: Path
) -> None:
    with at_work(tally, tmp_path) as running:
        victim = next(pid for pid in running.members() if pid != running.process.pid and is_worker(pid))
        running.signal(signal.SIGKILL, victim)
        assert running.ended() == 1
        assert "a process of the rebuild was ended by SIGKILL" in running.complaint
        assert "resumes where it was" in running.complaint
    assert Snapshots(str(tmp_path), "tally").list() == []
    report = again(tally, tmp_path)
    assert report.resumed
    check_published(tally, tmp_path, report)


def test_ctrl_c_ends_it_without_a_word_and_it_goes_on(tally: Path, tmp_path: Path) -> None:
    with at_work(tally, tmp_path) as running:
        for pid in running.members():
            with suppress(ProcessLookupError):  # the driver ends the others
                running.signal(signal.SIGINT, pid)
        assert running.ended() == 130
        assert running.complaint.strip() == ""
        wait_until(lambda: not running.members(), "its processes have ended")
    assert again(tally, tmp_path).resumed


def is_worker(pid: int) -> bool:
    """Whether a process was spawned to run units; there is one besides that looks after shared resources."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_two_drivers_of_the_same_rebuild_do_not_meet(tally: Path, tmp_path: Path) -> None:
    asked = changed(request(tally), uri=str(tmp_path), work=str(tmp_path / "work"))
    with closing(EmbeddedLog(tally / "log", create=False)) as log:
        name = identity(asked, find_app(TALLY).plan(), log)
    other = WorkFolder(tmp_path / "work" / "tally" / name)
    with other.held(), pytest.raises(StateInUseError, match="under way in another process"):
        rebuild(asked, LocalEngine(1))
    assert rebuild(asked, LocalEngine(1)).events > 0


def test_another_log_at_the_same_place_does_not_go_on_with_what_was_begun(
    tally: Path, tmp_path: Path
) -> None:
    lived.serve_tallies(tmp_path)
    asked = changed(request(tmp_path), work=str(tmp_path / "work"))
    with pytest.raises(InterruptedError):
        rebuild(asked, Stopping(3))
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tally / "log", tmp_path / "log")
    report = rebuild(asked, LocalEngine(1))
    assert not report.resumed
    assert report.replayed == report.events


def test_ctrl_c_while_processes_are_being_started_is_heard_afterwards() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached


def test_two_rebuilds_at_once_that_are_asked_for_otherwise_publish_each_a_whole(
    tally: Path, tmp_path: Path
) -> None:
    """They have the app, the log, and the places of snapshots and of work in common."""
    to, outputs = tmp_path / "to", tmp_path / "outputs"
    one, other = (
        changed(request(tally, store=store, outputs=f"parquet:{outputs}"), uri=str(to))
        for store in ("rocks", "memory")
    )
    done: list[RebuildReport] = []
    done.append(rebuild(one, During(lambda _: done.append(rebuild(other, LocalEngine(1))))))
    assert {each.id for each in Snapshots(str(to), "tally").list()} == {each.snapshot for each in done}
    for report in done:
        check_published(tally, to, report)
        files = (outputs / "tally" / report.snapshot).glob("*.parquet")
        assert sum(parquet.read_table(each).num_rows for each in files) == report.outputs


def test_a_driver_that_begins_while_another_ends_has_a_folder_and_a_lock_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that ends removes the folder after the other has opened its lock, and before it has that."""
    path = tmp_path / "work" / "it"
    ending = ExitStack()
    ending.enter_context(WorkFolder(path).held())
    flock = fcntl.flock

    def late(lock: int, how: int) -> None:
        monkeypatch.undo()
        WorkFolder(path).clear()
        ending.close()
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with WorkFolder(path).held():
        assert (path / "lock").exists()
        with pytest.raises(StateInUseError), WorkFolder(path).held():
            pass
