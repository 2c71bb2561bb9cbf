"""What a rebuild reads the history of its app from: the log, an archive, or both joined; and where its tasks begin there."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.history.app_history import AppHistory
from tailrace.history.beginnings import Beginning, canonical_beginning, taped_beginning
from tailrace.history.opening import open_history
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.request import Request
from tailrace.log.interface import Ends, OneCommitLog
from tailrace.state.snapshots import Snapshot, Snapshots


class HistorySource(AppHistory):
    """The past of an app in a log whose commits are one step for all topics; ``taped`` if it has to have a tape."""

    def __init__(self, plan: Plan, log: OneCommitLog, *, taped: bool) -> None:
        super().__init__(plan, log, has_run=taped)
        self._one_commit_log = log

    def ends(self, topics: Iterable[str]) -> Ends:
        """See ``OneCommitLog.ends``."""
        return self._one_commit_log.ends(topics)

    def beginning(self, job: Job, number: int) -> Beginning:
        """Where the task of a partition begins in a rebuild. Raises what ``taped_beginning`` raises, and SnapshotError."""
        end, asked = job.targets[number].cut, asked_snapshot(job)
        if job.order == "canonical":
            inputs = (one.name for one in self.plan.inputs if one.name in job.ends)
            return canonical_beginning(self, number, end, asked, inputs)
        if end is None:
            return Beginning(number, b"")
        return taped_beginning(self, number, tape.decode_cut(end), asked)

    def uncleaned(self) -> AbstractContextManager[None]:
        """See ``OneCommitLog.uncleaned``."""
        return self._one_commit_log.uncleaned()


def asked_snapshot(job: Job) -> Snapshot | None:
    """The snapshot that a rebuild goes on from, if it was asked to. Raises SnapshotError."""
    if job.base is None or job.request.source.base is None:
        return None
    return Snapshots(job.request.source.base, job.app).open(job.base)


@contextmanager
def opened_past(request: Request, plan: Plan, *, taped: bool) -> Generator[HistorySource]:
    """The history that a request names, for the length of a unit; ``taped`` if it has to have a tape.

    Where there is an archive there need be no log.

    Raises:
        LogFolderError: There is no log, or it is damaged.
        LogUnavailableError, ArchiveError: The same of the archive.
        UnknownTopicError: The app has never run on it.
        InputsChangedError: It ran with another number of partitions.
    """
    source = request.source
    log = None if source.archive is not None and not Path(source.log).is_dir() else source.log
    with closing(open_history(log, source.archive)) as found:
        yield HistorySource(plan, found, taped=taped)
