"""The last record that a state has read from each input, for a log that has no commit of the state.

A snapshot can begin an app in a log where the app has never committed: another log with the same topics, or one that
has lost all commits. No identity of a commit can then be compared (see ``commit_identity``), and positions do not tell
whether the log holds the records that the state has read. So a snapshot notes the offset and the digest of the last
record of each input, and a start or a canonical rebuild from it compares the record that the log has there.

A record that the log has deleted or compacted, or that is behind the end of the topic, is not compared, nor are those of
internal topics: a start brings along what was under way in them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tailrace.core.engine import tape
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.records import RecordMark
from tailrace.history.reading.beginnings import is_own
from tailrace.history.reading.stretches import first, last
from tailrace.log.interface import Log
from tailrace.state.snapshots import Snapshot, TaskEntry


def last_reads(log: Log, partition: int, cut: bytes, left: Mapping[str, int]) -> dict[str, RecordMark]:
    """The last record before the position of each input of a cut, and of those that were ``left``, if there is one.
    Internal topics have none.
    """
    found: dict[str, RecordMark] = {}
    if not cut:
        return found
    decoded, known = tape.decode_cut(cut), log.topics()
    for name, position in sorted({**left, **decoded.positions}.items()):
        if name not in known or is_own(name, decoded.app):
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
    read, known = entry.read.get(name), log.topics()
    if read is None or name not in known:
        return False
    if not log.start_offset(name, entry.partition) <= read.offset < log.end_offset(name, entry.partition):
        return False
    record = first(log, name, entry.partition, read.offset)
    if record is None or (record.offset != read.offset and known[name].compacted):
        return False
    return RecordMark.of(record) != read  # a later one: only compaction takes a record out of a topic
