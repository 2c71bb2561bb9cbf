"""Taking a task over fences whoever has it: never the rightful owner, at whatever line the one before was stopped."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tailrace.core.errors import FencedError, LogUnavailableError
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.tasks import Claim, claim
from tailrace.log.embedded.writer import EmbeddedWriter
from tailrace.log.options import LogOptions
from tailrace.log.tasks import AppTasks
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.preparing import prepare_log
from tests.log.embedded.processes import running, until
from tests.runtime.served import make_app


class Successor:
    """Takes a task over when it is asked to, and then works."""

    def __init__(self, log: Path) -> None:
        self._log = EmbeddedLog(log)
        self._claim: Claim | None = None
        self._writer: EmbeddedWriter | None = None

    def take_over(self) -> None:
        self._claim = claim(self._log.path, "tally-0", lease_s=0.0)
        assert self._claim is not None
        self._writer = self._log.writer("tally-0")

    def work(self) -> None:
        assert self._writer is not None
        self._writer.commit({}, "", {})

    def close(self) -> None:
        assert self._claim is not None
        self._claim.release()
        self._log.close()


def test_a_worker_that_is_replaced_between_its_last_look_and_the_take_over_fences_nobody(
    tmp_path, monkeypatch
) -> None:
    plan = make_app(partitions=1).plan()
    with closing(EmbeddedLog(tmp_path / "log")) as log:
        prepare_log(log, plan, create_declared=True)
    options = ServiceOptions("tests.runtime.served:app", tmp_path / "log", tmp_path / "state", lease_s=1_000)
    taken, take_over = 0, EmbeddedLog.writer

    def sleep_first(log: EmbeddedLog, transactional_id: str) -> Any:
        nonlocal taken
        monkeypatch.setattr(EmbeddedLog, "writer", take_over)
        successor.take_over()
        taken += 1
        return take_over(log, transactional_id)

    host = Host(options, plan)
    with closing(Successor(tmp_path / "log")) as successor, host.joined():
        host.tasks.look()
        monkeypatch.setattr(EmbeddedLog, "writer", sleep_first)
        with pytest.raises(FencedError, match="tally/0 was taken over by another process"):
            host.worker.start()
        assert taken == 1
        host.worker.leave()
        successor.work()


_STOPPED_UNDER_THE_LOCK = """
from tailrace.log.options import LogOptions
from tailrace.log.tasks import AppTasks
log = EmbeddedLog(folder)
tasks = log.join(AppTasks("tally", "tally.tape", 1))
is_owned = tasks.check

def check():
    is_owned()
    say("stops")
    os.kill(os.getpid(), signal.SIGSTOP)

tasks.check = check
log.writer("tally-0")
say("has taken it over")
time.sleep(1_000)
"""


def test_one_that_is_stopped_after_its_look_under_the_lock_is_named_and_cannot_fence_its_successor(
    tmp_path,
) -> None:
    folder = tmp_path / "log"
    EmbeddedLog(folder).close()
    with running(_STOPPED_UNDER_THE_LOCK, folder) as stopped:
        assert stopped.line() == "stops"
        until(stopped.is_stopped)
        log = EmbeddedLog(folder, LogOptions(lease_s=0.2))
        owner = log.join(AppTasks("tally", "tally.tape", 1, lease_s=0.2))
        with pytest.raises(LogUnavailableError, match=f"process {stopped.process.pid} holds the append lock"):
            log.writer("tally-0")
        stopped.signal(signal.SIGCONT)
        assert stopped.line() == "has taken it over"
        writer = log.writer("tally-0")
        assert writer.epoch == 2, "the one that was stopped is fenced"
        owner.close()
        log.close()
