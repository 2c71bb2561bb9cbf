"""A service that is told to stop while its processes are being started, and everything at a terminal or in a unit is told."""

from __future__ import annotations

import signal

import pytest

from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tests.runtime.processes import Running, wait_until
from tests.runtime.served import make_app


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_processes_told_at_once_while_they_start_leave_in_good_order(tmp_path, number) -> None:
    """As a terminal tells them of Ctrl-C, and a service manager of its end."""
    log = EmbeddedLog(tmp_path / "log")
    prepare_log(log, make_app().plan(), create_declared=True)
    log.close()
    where = ("--log", tmp_path / "log", "--state", tmp_path / "state", "--workers", 2)
    with Running("run", "tests.runtime.served:app", *where) as service:
        wait_until(service.started_workers, "the first worker is started")
        for pid in service.members():
            service.signal(number, pid)
        assert service.ended() == 0, service.lines
        assert service.logged[-1]["message"] == "left"
        assert not service.complaint
