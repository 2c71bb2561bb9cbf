"""Where a rebuild reads the history of its app from: the log, an archive, or both joined. Only read."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from tailrace.core.declare.plan import Plan
from tailrace.history.app_history import AppHistory
from tailrace.history.opening import open_history
from tailrace.history.rebuilding.request import Request
from tailrace.log.interface import Ends, OneCommitLog


class HistorySource(AppHistory):
    """The past of an app in a log whose commits are one step for all topics; ``taped`` if it has to have a tape."""

    def __init__(self, plan: Plan, log: OneCommitLog, *, taped: bool) -> None:
        super().__init__(plan, log, has_run=taped)
        self._one_commit_log = log

    def ends(self, topics: Iterable[str]) -> Ends:
        """See ``OneCommitLog.ends``."""
        return self._one_commit_log.ends(topics)

    def uncleaned(self) -> AbstractContextManager[None]:
        """See ``OneCommitLog.uncleaned``."""
        return self._one_commit_log.uncleaned()


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
