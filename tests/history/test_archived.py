"""An app's history read from an archive: replayed, rebuilt, and equal to what it was."""

from __future__ import annotations

import pytest

from tailrace.core.engine.task import TaskSettings
from tailrace.core.errors import OffsetGoneError, UsageError
from tailrace.history.reading.opening import open_archive, open_history
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log.archive import ArchivedLog, archive_log
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tailrace.processes.environment import timezones_version
from tests.history.rebuilding.lived import TALLY, serve_tallies


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A service has lived; its log was archived in between, and has lost its beginning since; then it lived on."""
    path = tmp_path_factory.mktemp("archived")
    serve_tallies(path)
    archive(path)
    serve_tallies(path, first_round=3)
    archive(path)
    log = EmbeddedLog(path / "log")
    for name, settings in log.topics().items():
        for number in range(settings.partitions):
            log.delete_before(name, number, log.end_offset(name, number) // 2)
    log.close()
    serve_tallies(path, first_round=6)
    return path


def archive(path):
    log = EmbeddedLog(path / "log")
    archive_log(log, open_archive(str(path / "archive")))
    log.close()


def compared(history):
    settings = TaskSettings(timezones=timezones_version())
    return replay(find_app(TALLY).plan(), history, ReplayOptions(compare=True, settings=settings))


def test_a_replay_reads_archive_and_log_as_one_history(folder):
    history = open_history(folder / "log", str(folder / "archive"))
    assert isinstance(history, ArchivedLog)
    report = compared(history)
    history.close()
    assert not report.differences.count
    assert report.records > 100
    assert {"the changelog", "outputs"} <= set(report.compared)
    with_log_alone = open_history(folder / "log")
    with pytest.raises(OffsetGoneError, match="changelog"):
        compared(with_log_alone)
    with_log_alone.close()


def test_an_archive_alone_is_a_history_up_to_its_last_run(folder):
    alone = open_history(None, str(folder / "archive"))
    report = compared(alone)
    alone.close()
    assert not report.differences.count
    assert report.records > 60


def test_where_history_is_has_to_be_said():
    with pytest.raises(UsageError, match="Name one"):
        open_history(None)
