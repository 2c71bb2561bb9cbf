"""An app's history read from an archive: replayed, rebuilt, and equal to what it was."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tailrace.core.engine.task import TaskSettings
from tailrace.core.errors import LogUnavailableError, OffsetGoneError, UsageError
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions, ReplayReport
from tailrace.log.archive import Archive, ArchivedLog, archive_log
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import OneCommitLog
from tailrace.log.opening import Past, open_past
from tailrace.processes.app_loading import find_app
from tailrace.processes.environment import timezones_version
from tests.history.rebuilding.lived import TALLY, TaskState, done, live, rebuilt, serve_tallies

PLAN = find_app(TALLY).plan()


class Archived(NamedTuple):
    """The folder of a service, and its state when the log was archived last, and now."""

    folder: Path
    then: list[TaskState]
    now: list[TaskState]


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Archived:
    """A service has lived; its log was archived in between, and has lost its beginning since."""
    folder = tmp_path_factory.mktemp("archived")
    for first_round in (0, 3):
        serve_tallies(folder, first_round=first_round)
        with closing(EmbeddedLog(folder / "log")) as log:
            archive_log(log, Archive.at(str(folder / "archive")))
    then = live(folder, PLAN)
    serve_tallies(folder, first_round=6)
    now = live(folder, PLAN)
    with closing(EmbeddedLog(folder / "log")) as log:
        for name, settings in log.topics().items():
            for number in range(settings.partitions):
                log.delete_before(name, number, log.end_offset(name, number) // 2)
    return Archived(folder, then, now)


def compared(history: OneCommitLog) -> ReplayReport:
    settings = TaskSettings(timezones=timezones_version())
    return replay(PLAN, history, ReplayOptions(compare=True, settings=settings))


def test_archive_and_log_are_read_as_one_history(archived: Archived) -> None:
    folder, _, now = archived
    with closing(open_past(Past(log=str(folder / "log"), archive=str(folder / "archive")))) as history:
        assert isinstance(history, ArchivedLog)
        report = compared(history)
    assert not report.differences.count
    assert report.records > 100
    assert {"the changelog", "outputs"} <= set(report.compared)
    _, snapshot = done(folder, order="tape", archive=str(folder / "archive"))
    assert rebuilt(snapshot) == now
    with (
        closing(open_past(Past(log=str(folder / "log")))) as log_alone,
        pytest.raises(OffsetGoneError, match="changelog"),
    ):
        compared(log_alone)
    with pytest.raises(OffsetGoneError, match="has deleted"):
        done(folder, order="tape")


def test_an_archive_alone_is_a_history_up_to_its_last_run(archived: Archived) -> None:
    folder, then, _ = archived
    with closing(open_past(Past(archive=str(folder / "archive")))) as alone:
        report = compared(alone)
    assert not report.differences.count
    assert report.records > 60
    _, snapshot = done(folder, log=str(folder / "nowhere"), archive=str(folder / "archive"))
    assert [one.rows for one in rebuilt(snapshot)] == [one.rows for one in then]
    with pytest.raises(LogUnavailableError, match="no archive"):
        done(folder, archive=str(folder / "nowhere"))


def test_where_history_is_has_to_be_said() -> None:
    with pytest.raises(UsageError, match="Name one"):
        open_past(Past())
