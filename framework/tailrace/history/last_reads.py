"""The last record that a state has read from each input, for a log that has no commit of the state.

A snapshot can begin an app in a log where the app has never committed: another log with the same topics, or one that has lost
all commits. There is then no commit whose identity could be compared (see ``commit_identity``), and positions alone do not tell
whether the log holds the records that the state has read. So a snapshot notes the offset and the digest of the last record of
each input before the position in its cut, and a start or a canonical rebuild from it compares the record that the log has there.

A record that the log has deleted, compacted or lost, or that is behind the end of the topic, is not compared. Internal topics of
the app are not either: a start brings along what was under way in them.
"""

from __future__ import annotations

from tailrace.core.engine import tape
from tailrace.core.errors import RecordsLostError, SnapshotMismatchError
from tailrace.core.records import RecordMark
from tailrace.history.beginnings import is_own
from tailrace.history.stretches import first, last
from tailrace.log.interface import Log
from tailrace.state.snapshots import Snapshot


def last_reads(log: Log, partition: int, cut: bytes) -> dict[str, RecordMark]:
    """The last record before the position of each input of a cut, without internal topics and inputs that have none."""
    found: dict[str, RecordMark] = {}
    if not cut:
        return found
    decoded, known = tape.decode_cut(cut), log.topics()
    for name, position in sorted(decoded.positions.items()):
        if name not in known or is_own(name, decoded.app):
            continue
        try:
            record = last(log, name, partition, stop=position)
        except RecordsLostError:
            continue
        if record is not None:
            found[name] = RecordMark.of(record)
    return found


def check_last_reads(log: Log, snapshot: Snapshot, partition: int) -> None:
    """Refuse a snapshot that has read other records than the log has.

    Raises:
        SnapshotMismatchError: The log has another record at the place of one that the state has read last.
    """
    noted, known = snapshot.manifest.task(partition).read, log.topics()
    for name, read in noted.items() if isinstance(noted, dict) else ():
        if name not in known or not log.start_offset(name, partition) <= read.offset < log.end_offset(
            name, partition
        ):
            continue
        try:
            record = first(log, name, partition, read.offset)
        except RecordsLostError:
            continue
        if record is None or (record.offset != read.offset and known[name].compacted):
            continue
        if RecordMark.of(record) != read:  # a later one: only compaction takes a record out of a topic
            raise SnapshotMismatchError(
                f"the snapshot {snapshot.manifest.id} has read another record at offset {read.offset} of {name!r} partition "
                f"{partition} than this log has",
                hint="The log has lost its end since, or it is another log. Take a snapshot that was made of this log, or begin "
                "without one.",
            )
