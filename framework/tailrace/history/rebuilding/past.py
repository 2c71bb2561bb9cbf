"""Where the history of an app is read from: its log, or an archive joined with it. Only read."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.replay import Source
from tailrace.core.engine.tape import TapeRecord
from tailrace.core.records import InputRecord
from tailrace.history.app_history import AppHistory, Committed
from tailrace.history.rebuilding.request import Request
from tailrace.log.archive import Archive, ArchivedLog
from tailrace.log.archive.reading import JoinedLog
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import Ends, Log, TopicPartition
from tailrace.state.snapshots import Place


class HistorySource(Protocol):
    """What a rebuild asks of history."""

    @property
    def plan(self) -> Plan:
        """The app's."""
        ...

    @property
    def log(self) -> Log:
        """Tells which topics there are, where they start and end; what was archived, included."""
        ...

    def ends(self, topics: Iterable[str]) -> Ends:
        """The ends of topics as of one commit of the log."""
        ...

    def uncleaned(self) -> AbstractContextManager[None]:
        """While it is held, no compaction takes records away."""
        ...

    def committed(self, partition: int, *, with_rows: bool = False, end: int | None = None) -> Committed:
        """The last cut of a partition that stands below ``end`` in the changelog, and the position behind it."""
        ...

    def tapes(self, partition: int, stop: int) -> Iterator[TapeRecord]:
        """The tape of a partition up to, without, the record number ``stop``."""
        ...

    def batches(self, place: TopicPartition, start: int, end: int) -> Iterator[list[InputRecord]]:
        """The records of any topic from ``start`` up to ``end``, some at a time."""
        ...

    def source(self, partition: int) -> Source:
        """Gives the records of one partition of any input, by offsets; best read forwards."""
        ...


class LogHistorySource(AppHistory):
    """The history that is in a log of this machine, or in an archive, or in both."""

    def __init__(self, plan: Plan, log: JoinedLog, *, taped: bool) -> None:
        if taped:
            super().__init__(plan, log)
        else:  # the app need never have run
            self.plan, self.log = plan, log
        self._joined = log

    def ends(self, topics: Iterable[str]) -> Ends:
        """See ``Past.ends``."""
        return self._joined.ends(topics)

    def uncleaned(self) -> AbstractContextManager[None]:
        """See ``Past.uncleaned``."""
        return self._joined.uncleaned()


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
    path = Path(request.source.log)
    log: JoinedLog | None = None
    if request.source.archive is None or path.is_dir():
        log = EmbeddedLog(path, create=False)
    try:
        if request.source.archive is not None:
            log = ArchivedLog(Archive(Place.at(request.source.archive)), log)
        assert log is not None
        yield LogHistorySource(plan, log, taped=taped)
    finally:
        if log is not None:
            log.close()
