"""The files of a task that a unit writes: rows, and messages in flight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.core import rows
from tailrace.history.reading.in_flight import InFlight
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.results import StateFiles
from tailrace.state.snapshots import write_task


class _Counted:
    """Iterates over rows, and counts the rows and keys of the actors."""

    def __init__(self, state: Iterable[tuple[bytes, bytes]], *, names: bool) -> None:
        self._state, self._names = state, names
        self.rows = self.keys = 0
        self.named = list[bytes]()

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        prefix, of_state = b"\0", rows.STATE[0]
        for pair in self._state:
            row = pair[0]
            if row[0] == of_state:
                self.rows += 1
                if not row.startswith(prefix):
                    prefix = rows.key_prefix(row)
                    self.keys += 1
                    if self._names:
                        self.named.append(rows.read_state_row(row).key)
            yield pair


def write_rows(
    job: Job,
    number: int,
    attempt: str,
    state: Iterable[tuple[bytes, bytes]],
    schema: bytes,
    past: HistorySource | None = None,
    gone: Iterable[bytes] | None = None,
) -> StateFiles:
    """Write the rows of a task, ascending. With ``past``, also write the messages in flight to the task. ``gone``: the rows are
    those that have changed since the parent of an incremental snapshot, and these are deleted.
    """
    counted = _Counted(state, names=bool(job.request.keys))
    if past is None or job.request.limited or job.request.keys:
        waiting, files = None, write_task(job.folder, number, attempt, counted, deleted=gone)
    else:
        flight = InFlight(past, {one.partition: one.cut for one in job.targets}, job.ends)
        waiting = flight.waiting(number)
        messages = flight.messages(number)
        files = write_task(job.folder, number, attempt, counted, messages=messages, deleted=gone)
    return StateFiles(files, schema, counted.keys, counted.rows, tuple(counted.named), waiting)
