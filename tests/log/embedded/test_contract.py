"""The embedded log is a log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.log import Log
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.options import LogOptions
from tests.log.contract import LogContract

OPTIONS = {
    "as it comes": LogOptions(),
    "synced": LogOptions(fsync="commit"),
}


class TestContract(LogContract):
    @pytest.fixture(params=OPTIONS)
    def log(self, request, tmp_path) -> Iterator[Log]:
        log = EmbeddedLog(tmp_path / "log", OPTIONS[request.param])
        yield log
        log.verify()
        log.close()
