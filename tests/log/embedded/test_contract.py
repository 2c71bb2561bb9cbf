"""The embedded log is a log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tailrace.log import Log
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.options import LogOptions
from tests.log.contract import LogContract
from tests.log.tasks_contract import OpenLog, TasksContract

OPTIONS = {"as it comes": LogOptions(), "synced": LogOptions(fsync="commit")}


class TestContract(LogContract):
    @pytest.fixture(params=OPTIONS)
    def log(self, request, tmp_path) -> Iterator[Log]:
        log = EmbeddedLog(tmp_path / "log", OPTIONS[request.param])
        yield log
        log.verify()
        log.close()


class TestTasks(TasksContract):
    @pytest.fixture
    def open_log(self, tmp_path) -> Iterator[OpenLog]:
        with ExitStack() as closing:

            def opened() -> EmbeddedLog:
                log = EmbeddedLog(tmp_path / "log")
                closing.callback(log.close)
                return log

            yield opened
