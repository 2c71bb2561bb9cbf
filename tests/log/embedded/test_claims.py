"""Who owns a task, and whether that process is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.log.embedded import EmbeddedLog, Owner, claim, owner_of
from tailrace.log.embedded.claims import _STAMP
from tests.runtime.processes import ROOT, is_stopped, wait_until

_OWNER = """
import sys, time
from pathlib import Path
from tailrace.log.embedded import claim
owned = claim(Path(sys.argv[1]), "a task")
print("owned", flush=True)
time.sleep(1_000)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    EmbeddedLog(tmp_path).close()
    return tmp_path


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


@pytest.mark.parametrize("field", ["boot", "started", "namespace"])
def test_a_process_that_is_not_surely_the_owner_does_not_count_as_stopped(folder, owner, field) -> None:
    stop(owner)
    (file,) = (folder / "owners").glob("*.lock")
    renewed_ns, boot, pid, started, namespace = _STAMP.unpack(file.read_bytes())
    other = {"boot": boot, "started": started, "namespace": namespace}
    other[field] = bytes(36) if field == "boot" else other[field] + 1
    file.write_bytes(_STAMP.pack(renewed_ns, other["boot"], pid, other["started"], other["namespace"]))
    assert owner_of(folder, "a task") == Owner(pid, is_stopped=False)


def test_a_claim_that_says_nothing_of_its_owner_has_an_unknown_one(folder, owner) -> None:
    stop(owner)
    (file,) = (folder / "owners").glob("*.lock")
    file.write_bytes(file.read_bytes()[:8])
    assert owner_of(folder, "a task") == Owner(0, is_stopped=False)


def test_who_owns_a_task_can_be_seen_without_touching_it(folder) -> None:
    assert owner_of(folder, "a-0") is None
    mine = claim(folder, "a-0")
    assert mine is not None
    assert owner_of(folder, "a-0") == Owner(os.getpid(), is_stopped=False)
    assert owner_of(folder, "a-1") is None
    assert mine.holds()
    assert claim(folder, "a-0", lease_s=1_000) is None
    mine.release()
    assert owner_of(folder, "a-0") is None


def test_an_owner_that_was_stopped_is_seen_as_that(folder, owner) -> None:
    assert owner_of(folder, "a task") == Owner(owner.pid, is_stopped=False)
    stop(owner)
    assert owner_of(folder, "a task") == Owner(owner.pid, is_stopped=True)
    owner.kill()
    owner.wait()
    assert owner_of(folder, "a task") is None
