"""Who owns a task, as the processes of one machine see it. Processes that stop and wake: ``test_worker_process``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.core.errors import FencedError, TaskOwnedError
from tailrace.log.embedded import EmbeddedLog, claim
from tailrace.log.embedded.claims import _STAMP
from tailrace.processes.task_ownership import TaskOwnership
from tests.runtime.processes import wait_until


@pytest.fixture
def folder(tmp_path: Path):
    log = EmbeddedLog(tmp_path / "log")
    yield tmp_path / "log"
    log.close()


def test_a_task_has_one_owner_until_it_is_released(folder) -> None:
    first = TaskOwnership(folder, "a", [0, 1])
    with pytest.raises(TaskOwnedError, match="a/1 is owned by another process"):
        TaskOwnership(folder, "a", [1, 2])
    TaskOwnership(folder, "b", [0, 1]).release()
    first.release()
    first.release()
    TaskOwnership(folder, "a", [1, 2]).release()


def test_who_is_refused_one_task_keeps_none(folder) -> None:
    first = TaskOwnership(folder, "a", [1])
    with pytest.raises(TaskOwnedError):
        TaskOwnership(folder, "a", [0, 1])
    TaskOwnership(folder, "a", [0]).release()
    first.release()


def renewed_ns(file: Path) -> int:
    """When a claim was last renewed."""
    stamp: int = _STAMP.unpack(file.read_bytes())[0]
    return stamp


def test_an_owner_that_works_keeps_its_task_past_the_lease(folder) -> None:
    first = TaskOwnership(folder, "a", [0], lease_s=0.2)
    (file,) = (folder / "owners").glob("*.lock")
    begun_ns = renewed_ns(file)
    wait_until(
        lambda: renewed_ns(file) > begun_ns + 5 * 200_000_000, "it has been renewed for several leases"
    )
    with pytest.raises(TaskOwnedError):
        TaskOwnership(folder, "a", [0], lease_s=60)
    first.check()
    first.release()


@pytest.mark.parametrize("there", ["another log", "nothing"])
def test_an_owner_learns_that_the_folder_of_the_log_was_replaced(tmp_path, there: str) -> None:
    folder = tmp_path / "log"
    EmbeddedLog(folder).close()
    first = TaskOwnership(folder, "a", [0])
    try:
        first.check()
        folder.rename(tmp_path / "away")
        if there == "another log":
            EmbeddedLog(folder).close()
        with pytest.raises(FencedError, match=r"log', was replaced or removed while the task a/0 ran on it"):
            first.check()
    finally:
        first.release()


def test_an_owner_learns_that_its_task_was_taken(folder) -> None:
    first = TaskOwnership(folder, "a", [0], lease_s=0.2)
    taken = claim(folder, "a-0", lease_s=0.0)
    assert taken is not None

    def learned() -> bool:
        try:
            first.check()
        except FencedError as error:
            return "the task a/0 was taken over by another process" in str(error)
        return False

    wait_until(learned, "the first owner has learned of it")
    first.release()
    taken.release()


def test_who_was_replaced_learns_of_it_when_it_asks_and_not_when_it_next_renews(folder) -> None:
    first = TaskOwnership(folder, "a", [0, 1], lease_s=1_000)
    first.check()
    taken = claim(folder, "a-1", lease_s=0.0)
    assert taken is not None
    with pytest.raises(FencedError, match="a/1 was taken over"):
        first.check()
    first.release()
    taken.release()
