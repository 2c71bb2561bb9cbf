"""What the log has deleted is read from its archive, and the rebuild comes to the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.core.errors import LogUnavailableError, OffsetGoneError
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.log.archive import Archive, archive_log
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Place
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import TALLY, done, live, rebuilt, request


def test_an_archive_joined_with_a_log_is_one_history(tmp_path: Path) -> None:
    lived.serve_tallies(tmp_path, 20, 3)
    kept = str(tmp_path / "archive")
    log = EmbeddedLog(tmp_path / "log", create=False)
    archive_log(log, Archive(Place.at(kept)))
    for topic in ("ticks", "tally.inbox", "tally.tape"):
        for number in range(4):
            log.delete_before(topic, number, log.end_offset(topic, number))
    log.close()
    lived.serve_tallies(tmp_path, 20, 2, first_round=3)
    with pytest.raises(OffsetGoneError, match="has deleted"):
        rebuild(request(tmp_path, order="tape"), LocalEngine(1))
    wanted = live(tmp_path, find_app(TALLY).plan())
    report, snapshot = done(tmp_path, archive=kept)
    assert rebuilt(snapshot) == wanted
    assert (report.order, report.events) == ("tape", 200)


def test_an_archive_alone_is_a_history(tmp_path: Path) -> None:
    lived.serve_tallies(tmp_path, 20, 3)
    kept = str(tmp_path / "archive")
    log = EmbeddedLog(tmp_path / "log", create=False)
    archive_log(log, Archive(Place.at(kept)))
    log.close()
    wanted = live(tmp_path, find_app(TALLY).plan())
    asked = request(tmp_path, archive=kept)
    (tmp_path / "log").rename(tmp_path / "elsewhere")
    report = rebuild(asked, LocalEngine(1))
    assert [one.rows for one in rebuilt(lived.opened(asked, report))] == [one.rows for one in wanted]
    with pytest.raises(LogUnavailableError, match="no archive"):
        rebuild(request(tmp_path, archive=str(tmp_path / "nowhere")), LocalEngine(1))
