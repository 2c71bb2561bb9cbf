"""The history that a rebuild reads, and where each task begins in it."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, closing, contextmanager

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.history.provenance.judging import check_base, check_reads
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.beginnings import Beginning, stages_beginning, taped_beginning
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.request import Request
from tailrace.log.interface import Ends, OneCommitLog
from tailrace.log.opening import open_past
from tailrace.state.snapshots import Snapshot, Snapshots


class HistorySource(AppHistory):
    """An app's past in a log whose commits are one step for all topics. ``taped``: a tape is required."""

    def __init__(self, plan: Plan, log: OneCommitLog, *, taped: bool) -> None:
        super().__init__(plan, log, has_run=taped)
        self.one_commit_log = log

    def ends(self, topics: Iterable[str]) -> Ends:
        """See ``OneCommitLog.ends``."""
        return self.one_commit_log.ends(topics)

    def beginning(self, job: Job, number: int) -> Beginning:
        """Where a partition's task begins. Raises the errors of ``taped_beginning`` and ``check_base``, and SnapshotError."""
        end, asked = job.targets[number].cut, asked_snapshot(job)
        if asked is not None:
            check_base(self.plan, self.log, asked, number, end, taped=job.order == "tape")
        if job.order == "stages":
            inputs = [one.name for one in self.plan.inputs if one.name in job.ends]
            starts = {name: job.starts[name][number] for name in inputs}
            begun = stages_beginning(self, number, end, asked, starts)
            if begun.snapshot is not None:
                check_reads(self.plan, self.log, begun.snapshot, number, inputs)
            return begun
        if end is None:
            return Beginning(number, b"")
        return taped_beginning(self, number, tape.decode_cut(end), asked)

    def compaction_paused(self, topics: Iterable[str] = ()) -> AbstractContextManager[None]:
        """See ``OneCommitLog.compaction_paused``."""
        return self.one_commit_log.compaction_paused(topics)


def asked_snapshot(job: Job) -> Snapshot | None:
    """The snapshot that a rebuild continues from; None if none was requested. Raises SnapshotError."""
    if job.base is None or job.request.source.base is None:
        return None
    return Snapshots(job.request.source.base, job.app).open(job.base)


@contextmanager
def opened_past(request: Request, plan: Plan, *, taped: bool) -> Generator[HistorySource]:
    """Open the history that a request names, for the duration of a unit. ``taped``: the app must have a tape.

    Raises:
        The errors of ``open_past``: It is not there, or damaged.
        UnknownTopicError: The app has never run on this log.
        InputsChangedError: The app ran with another number of partitions.
    """
    with closing(open_past(request.source)) as found:
        yield HistorySource(plan, found, taped=taped)
