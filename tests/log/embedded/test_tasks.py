"""Who owns a task, as the processes of one machine see it. Processes that stop and wake: ``test_worker_process``."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.core.errors import FencedError, TaskOwnedError
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.tasks import _STAMP, claim, owner_of
from tailrace.log.tasks import Owner
from tests.log.embedded.owning import owning
from tests.runtime.processes import ROOT, is_stopped, wait_until

_OWNER = """
import sys, time
from pathlib import Path
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.tasks import AppTasks
log = EmbeddedLog(Path(sys.argv[1]))
owned = log.join(AppTasks("a", "a.tape", 1))
print("owned", flush=True)
time.sleep(1_000)
"""


@pytest.fixture
def owner(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(folder)],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT / "framework")},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"owned\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def stop(owner: subprocess.Popen[bytes]) -> None:
    owner.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(owner.pid), "the owner is stopped")


@pytest.fixture
def folder(tmp_path: Path):
    log = EmbeddedLog(tmp_path / "log")
    yield tmp_path / "log"
    log.close()


def test_who_is_refused_one_task_keeps_none(folder) -> None:
    first = owning(folder, "a", [1])
    with pytest.raises(TaskOwnedError):
        owning(folder, "a", [0, 1])
    owning(folder, "a", [0]).close()
    first.close()


def renewed_ns(file: Path) -> int:
    """When a claim was last renewed."""
    stamp: int = _STAMP.unpack(file.read_bytes())[0]
    return stamp


def test_an_owner_that_works_keeps_its_task_past_the_lease(folder) -> None:
    first = owning(folder, "a", [0], lease_s=0.2)
    (file,) = (folder / "owners").glob("*.lock")
    begun_ns = renewed_ns(file)
    wait_until(
        lambda: renewed_ns(file) > begun_ns + 5 * 200_000_000, "it has been renewed for several leases"
    )
    with pytest.raises(TaskOwnedError):
        owning(folder, "a", [0], lease_s=60)
    first.check()
    first.close()


@pytest.mark.parametrize("there", ["another log", "nothing"])
def test_an_owner_learns_that_the_folder_of_the_log_was_replaced(tmp_path, there: str) -> None:
    folder = tmp_path / "log"
    EmbeddedLog(folder).close()
    first = owning(folder, "a", [0])
    try:
        first.check()
        folder.rename(tmp_path / "away")
        if there == "another log":
            EmbeddedLog(folder).close()
        with pytest.raises(FencedError, match=r"log', was replaced or removed while the task a/0 ran on it"):
            first.check()
    finally:
        first.close()


def test_who_was_replaced_learns_of_it_when_it_asks_and_not_when_it_next_renews(folder) -> None:
    first = owning(folder, "a", [0, 1], lease_s=1_000)
    first.check()
    taken = claim(folder, "a-1", lease_s=0.0)
    assert taken is not None
    with pytest.raises(FencedError, match="a/1 was taken over"):
        first.check()
    first.close()
    taken.release()


def test_an_owner_that_was_suspended_is_named_as_that(folder, owner) -> None:
    log = EmbeddedLog(folder)
    assert log.owner("a", 0) == Owner(owner.pid, stopped=False)
    stop(owner)
    assert log.owner("a", 0) == Owner(owner.pid, stopped=True)
    with pytest.raises(TaskOwnedError, match=rf"\({owner.pid}\), which is stopped"):
        owning(folder, "a", [0], lease_s=1_000)
    owner.kill()
    owner.wait()
    assert log.owner("a", 0) is None
    log.close()


@pytest.mark.parametrize("field", ["boot", "started", "namespace"])
def test_a_process_that_is_not_surely_the_owner_does_not_count_as_stopped(folder, owner, field) -> None:
    stop(owner)
    (file,) = (folder / "owners").glob("*.lock")
    renewed, boot, pid, started, namespace = _STAMP.unpack(file.read_bytes())
    other = {"boot": boot, "started": started, "namespace": namespace}
    other[field] = bytes(36) if field == "boot" else other[field] + 1
    file.write_bytes(_STAMP.pack(renewed, other["boot"], pid, other["started"], other["namespace"]))
    assert owner_of(folder, "a-0") == Owner(pid, stopped=False)


def test_a_claim_that_says_nothing_of_its_owner_has_an_unknown_one(folder, owner) -> None:
    stop(owner)
    (file,) = (folder / "owners").glob("*.lock")
    file.write_bytes(file.read_bytes()[:8])
    assert owner_of(folder, "a-0") == Owner(0, stopped=False)


def test_tasks_that_are_reserved_have_no_other_owner_meanwhile(folder) -> None:
    log = EmbeddedLog(folder)
    with log.reserve("a", [0, 1]):
        with pytest.raises(TaskOwnedError, match="a/1 is owned by another process"):
            owning(folder, "a", [1])
        log.writer("a-0").close()
    log.writer("a-0").close()
    owning(folder, "a", [1]).close()
    log.close()
