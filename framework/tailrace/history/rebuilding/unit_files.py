"""The files of a task that a unit writes: rows and messages in flight for the snapshot, and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.core import rows
from tailrace.core.records import InputRecord
from tailrace.history.reading.in_flight import InFlight
from tailrace.history.rebuilding.job import Job, UnitResult
from tailrace.history.rebuilding.output_files import Frame, Marked, outputs_folder, write_outputs
from tailrace.history.rebuilding.output_watermarks import encode_marks
from tailrace.history.rebuilding.past import HistorySource
from tailrace.state.snapshots import write_task


def write_rows(
    job: Job,
    result: UnitResult,
    state: Iterable[tuple[bytes, bytes]],
    messages: Iterable[InputRecord] = (),
) -> None:
    """Write the rows of a task, ascending, and the messages in flight to it. The result names the files and counts the rows."""

    def counted() -> Iterator[tuple[bytes, bytes]]:
        prefix, keys, count, of_state = b"\0", 0, 0, rows.STATE[0]
        found, named = list[bytes](), bool(job.request.keys)
        for pair in state:
            row = pair[0]
            if row[0] == of_state:
                count += 1
                if not row.startswith(prefix):
                    prefix = rows.key_prefix(row)
                    keys += 1
                    if named:
                        found.append(rows.read_state_row(row).key)
            yield pair
        result.rows, result.keys, result.found = count, keys, found

    result.files = write_task(job.folder, result.partition, result.attempt, counted(), messages=messages)


def write_frames(job: Job, result: UnitResult, made: Iterable[Frame]) -> None:
    """Write the outputs of a task. The result names the file and has the marks."""
    marked = Marked(made)
    result.outputs = (write_outputs(outputs_folder(job), result.partition, result.attempt, marked),)
    result.marks = encode_marks(marked.marks)


def messages_of(job: Job, past: HistorySource, number: int, result: UnitResult) -> Iterator[InputRecord]:
    """The messages on their way to a task where the rebuild ends; see ``in_flight``. The result counts what waits in internal topics."""
    if job.request.limited or job.request.keys:
        return
    flight = InFlight(past, {one.partition: one.cut for one in job.targets}, job.ends)
    result.waiting = flight.waiting(number)
    yield from flight.messages(number)
