"""What the system refuses a service for a moment (a process, a write) costs that moment, and not the service."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from pathlib import Path

import apsw
import pytest

from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.supervisor import Supervisor
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.runtime.processes import wait_until
from tests.runtime.served import make_app
from tests.runtime.tallies import check_counts, ticks


def refuse_to_open() -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def refuse_to_read(_: object) -> int:
    raise apsw.CantOpenError("unable to open database file")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    log = EmbeddedLog(tmp_path / "log")
    prepare_log(log, make_app().plan(), create_declared=True)
    yield tmp_path / "log"
    log.close()


def test_a_worker_that_cannot_be_started_is_started_later(folder, monkeypatch, caplog) -> None:
    refused = 0

    def refuse(_: SpawnProcess) -> None:
        nonlocal refused
        refused += 1
        if refused == 3:
            monkeypatch.undo()
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(SpawnProcess, "start", refuse)
    options = ServiceOptions(
        "tests.runtime.served:app",
        folder,
        folder.parent / "state",
        workers=2,
        end_of_input=True,
        after_end=True,
    )
    Supervisor(options, make_app().plan()).run()
    assert refused == 3
    pauses = [one.getMessage()[-5:] for one in caplog.records if "cannot be started" in one.getMessage()]
    assert pauses == ["0.2 s", "0.2 s", "0.4 s"], "the pause grows while the failure lasts"


def test_a_bounded_run_is_not_over_while_an_input_cannot_be_read(folder, monkeypatch) -> None:
    log = EmbeddedLog(folder)
    worker = Worker(
        make_app().plan(), log, range(4), lambda _: MemoryStore(), settings=WorkerSettings(bounded=True)
    )
    worker.start()

    def is_quiet() -> bool:
        worker.turn()
        return worker.quiet

    wait_until(is_quiet, "there is nothing to read")
    log.append_all(ticks(8, 1))
    with monkeypatch.context() as patch:
        patch.setattr(log._view, "_refresh", refuse_to_read)
        assert not is_quiet()
        assert not is_quiet(), "nor before it is tried again"
    wait_until(is_quiet, "all is read")
    worker.leave()
    check_counts(log, 8, 1)
    log.close()
