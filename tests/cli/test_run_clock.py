"""``tailrace run`` with a clock that is far from its last reading."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.cli.commands import Ended, done, run
from tests.runtime.served import app
from tests.runtime.tallies import check_counts, ticks

APP = "tests.runtime.served:app"
A_DAY_MS = 86_400_000

pytestmark = pytest.mark.usefixtures("quiet_logs")


@pytest.fixture
def last_run_by(tmp_path: Path):
    """Runs the app by a clock that is so many days from now, then by the clock of this machine."""

    def run_by(days: int, *more: str) -> Ended:
        plan, log = app.plan(), EmbeddedLog(tmp_path / "log")
        prepare_log(log, plan, create_declared=True)
        log.append_all(ticks(4, 2))
        stores = [MemoryStore() for _ in range(plan.partitions)]
        now_ms = time.time_ns() // 1_000_000 + days * A_DAY_MS
        settings = WorkerSettings(bounded=True)
        worker = Worker(plan, log, range(4), stores.__getitem__, settings=settings, clock=lambda: now_ms)
        worker.start()
        while worker.turn():
            pass
        worker.leave()
        log.append_all(ticks(4, 1, 2))
        log.close()
        return run("run", APP, "--log", tmp_path / "log", "--state", tmp_path / "state", "--until-end", *more)

    return run_by


def test_a_clock_that_cannot_be_right_is_refused_with_what_to_do(last_run_by, tmp_path: Path) -> None:
    ended = last_run_by(-10)
    assert ended.code == 1
    assert "10d after the last reading of task" in ended.err
    assert "and no input has a record within a day of it" in ended.err
    assert "start with --accept-clock" in ended.err
    done(
        "run", APP, "--log", tmp_path / "log", "--state", tmp_path / "state", "--until-end", "--accept-clock"
    )
    log = EmbeddedLog(tmp_path / "log")
    check_counts(log, 4, 3)
    log.close()


def test_a_last_reading_in_the_future_is_refused_and_status_names_it(last_run_by, tmp_path: Path) -> None:
    ended = last_run_by(400)
    assert ended.code == 1
    assert "processing time would stand still until then" in ended.err
    said = done("status", APP, "--log", tmp_path / "log").out
    assert "problem: processing time of task" in said


def test_a_clock_that_is_a_little_ahead_or_behind_is_not(last_run_by) -> None:
    assert last_run_by(0).code == 0
