"""Who owns a task, as the processes of one machine see it. Services that stop and continue: ``test_worker_process``."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.core.errors import FencedError, TaskOwnedError
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.tasks import OWNERS
from tailrace.log.tasks import Owner
from tests.log.embedded.owning import owning
from tests.log.embedded.processes import Process, running
from tests.runtime.processes import wait_until

OWNER = """
from tailrace.log.tasks import AppTasks
log = EmbeddedLog(folder)
owned = log.join(AppTasks("a", "a.tape", 1))
say("owned")
sys.stdin.readline()
if child := os.fork():
    say(child)
time.sleep(1_000)
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(tmp_path / "log")
    yield log
    log.close()


@pytest.fixture
def owner(log: EmbeddedLog) -> Iterator[Process]:
    with running(OWNER, log.path) as process:
        assert process.line() == "owned"
        yield process


def test_who_is_refused_one_task_keeps_none(log) -> None:
    first = owning(log.path, "a", [1])
    with pytest.raises(TaskOwnedError, match="a/1 is owned by another process"):
        owning(log.path, "a", [0, 1])
    owning(log.path, "a", [0]).close()
    first.close()


def test_an_owner_that_is_stopped_keeps_its_task_and_is_named_and_its_death_frees_it_at_once(
    log, owner
) -> None:
    pid = owner.process.pid
    assert log.owner("a", 0) == Owner(pid, stopped=False)
    owner.signal(signal.SIGSTOP)
    wait_until(owner.is_stopped, "it is stopped")
    assert log.owner("a", 0) == Owner(pid, stopped=True)
    with pytest.raises(
        TaskOwnedError, match=rf"\({pid}\), which is stopped.*kill -CONT {pid}.*kill -KILL {pid}"
    ):
        owning(log.path, "a", [0])
    owner.signal(signal.SIGKILL)
    owner.ended()
    assert log.owner("a", 0) is None
    owning(log.path, "a", [0]).close()


def test_a_forked_child_of_an_owner_owns_nothing_and_does_not_keep_its_task(log, owner) -> None:
    owner.report("fork")
    child = int(owner.line())
    try:
        owner.signal(signal.SIGKILL)
        owner.ended()
        owning(log.path, "a", [0]).close()  # waits until the child has let go of it
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_owner_learns_that_the_folder_of_the_log_was_replaced(log) -> None:
    owned = owning(log.path, "a", [0])
    owned.check()
    (log.path / OWNERS).rename(log.path / "elsewhere")
    with pytest.raises(FencedError, match="was replaced or removed"):
        owned.check()
    owned.close()
