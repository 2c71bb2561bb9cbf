"""The last record that a task has read from each input: its *mark*, and what a log has in its place.

Theory. A position says how much of an input was read, not what. An input that lost its end (an unclean leader election, a
restored backup, a topic created again) and grew past the position since would be read on in the middle of other records, in
silence. So the offset and the digest of the last record read are noted, and compared with the record that is there now.

    noted in                         compared by                          another record is
    each cut, in the header          each start of the task               an error at this and every later start, until a start
    ``read`` (a commit takes one     (``runtime.restore``)                with ``--after-deleted``. That one continues at the
    digest per input that it read)                                        position, or at the end of the input if it is shorter
    a snapshot (``TaskEntry.read``)  a start, or a canonical rebuild,     refused: in a log without a commit of the state only
                                     from it                              records can be compared (see ``commit_identity``)

    the log has                          the mark
    the same record                      is right
    another record there, or none        is of a lost end
    its end before it                    is of a lost end; a snapshot is refused by its position instead
    deleted or compacted the record      is not compared

If events wait in ordered actors, the mark is still that of the last record *read*, which is behind those that wait.

A mark is absent, so that nothing is compared, for an input of which nothing was read yet, or nothing since a start with
``--after-deleted``. A start from a snapshot brings the marks of the snapshot along, which has none of internal topics of the app.
A move to another log brings all along. Rebuilds and replays make cuts for comparison, which need none; a rebuilt snapshot has marks.

A Kafka consumer that runs compares leader epochs by itself, and then reports that its position is gone. The next start finds the
mark's record replaced, even if the input has grown again by then. The epoch is not noted, as the record itself tells more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tailrace.core.engine import tape
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.records import Headers, RecordMark
from tailrace.history.reading.beginnings import is_own
from tailrace.history.reading.cut_notes import READ, header_in
from tailrace.history.reading.stretches import first, last
from tailrace.log.interface import Log
from tailrace.state.snapshots import Snapshot, TaskEntry


def noted_reads(headers: Headers) -> dict[str, RecordMark]:
    """The marks in the headers of a cut, by input. Raises CorruptStateError."""
    return header_in(headers, READ, dict[str, RecordMark]) or {}


def is_replaced(log: Log, name: str, partition: int, read: RecordMark) -> bool:
    """Whether the end of an input that had this record is lost: another record is in its place, or none."""
    record = first(log, name, partition, read.offset)
    if record is not None and RecordMark.of(record) == read:
        return False
    if read.offset < log.start_offset(name, partition):
        return False
    is_there = record is not None and record.offset == read.offset
    return is_there or read.offset >= log.end_offset(name, partition) or not log.topics()[name].compacted


def last_reads(
    log: Log, partition: int, cut: bytes, left: Mapping[str, int], headers: Headers = ()
) -> dict[str, RecordMark]:
    """The last record before the position of each input of a cut, and of those that were ``left``, if there is one.
    Internal topics have none. What the cut's ``headers`` note counts: the log may hold other records by now.
    """
    found: dict[str, RecordMark] = {}
    if not cut:
        return found
    decoded, known, noted = tape.decode_cut(cut), log.topics(), noted_reads(headers)
    for name, position in sorted({**left, **decoded.positions}.items()):
        if name not in known or is_own(name, decoded.app):
            continue
        if name in noted:
            found[name] = noted[name]
            continue
        record = last(log, name, partition, stop=position)
        if record is not None:
            found[name] = RecordMark.of(record)
    return found


def check_last_reads(log: Log, snapshot: Snapshot, partition: int, inputs: Collection[str] = ()) -> None:
    """Raise SnapshotMismatchError if a snapshot has read another record than the log has.
    An input that was left is compared if it is among the ``inputs``, which the app declares.
    """
    entry = snapshot.manifest.task(partition)
    for name, read in entry.read.items():
        if (name in inputs or name not in entry.abandoned) and has_read_other(entry, log, name):
            raise SnapshotMismatchError(
                f"the snapshot {snapshot.manifest.id} has read another record at offset {read.offset} of {name!r} partition "
                f"{partition} than this log has",
                hint="The log has lost its end since, or it is another log. Take a snapshot that was made of this log, or begin "
                "without one.",
            )


def has_read_other(entry: TaskEntry, log: Log, name: str) -> bool:
    """Whether the log has another record at the place of the one that a task has read last from an input."""
    read = entry.read.get(name)
    if read is None or name not in log.topics() or read.offset >= log.end_offset(name, entry.partition):
        return False
    return is_replaced(log, name, entry.partition, read)
