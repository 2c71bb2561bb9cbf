"""Records of a tape. One that no task has written is named by its offset, and never skipped.

Theory. The partition of a tape holds the commits of one task, in their order, and nothing else. A reader of a whole
tape finds another record by its content, its number, or the identity of the commit before (``core.engine.replay``).
A service looks at the last record when it restores a task (``history.provenance``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.core.engine import tape
from tailrace.core.errors import KEPT_ELSEWHERE, CorruptStateError, FormatError
from tailrace.core.records import InputRecord
from tailrace.history.reading.stretches import last
from tailrace.log.interface import Log, TopicPartition

_HINT = (
    "Another program writes to the tape: find it and stop it. The service's own state is not affected, but this history cannot be "
    "replayed along its tape any more. Rebuild it in stages (`tailrace rebuild --order stages`), or from a snapshot or "
    f"{KEPT_ELSEWHERE} that was made before; and start from the result under another name (--from-snapshot, --as), which begins a new tape."
)


def tape_record(place: TopicPartition, record: InputRecord) -> tape.TapeRecord:
    """The content of a record of a tape. Raises CorruptStateError or FormatError."""
    try:
        return tape.decode_tape(record.value or b"")
    except FormatError:
        raise
    except CorruptStateError as error:
        raise _foreign(place, record, error.what) from error


def tape_records(place: TopicPartition, records: Iterable[InputRecord]) -> Iterator[tape.TapeRecord]:
    """The contents of records of a tape that follow one another. Raises CorruptStateError."""
    before: int | None = None
    for record in records:
        found = tape_record(place, record)
        if before is not None and found.number <= before:
            raise _foreign(place, record, f"it is of commit {found.number}, and commit {before} is before it")
        before = found.number
        yield found


def last_version(log: Log, place: TopicPartition) -> str:
    """The version of the app that has written the last record of a tape; "" if the tape has none."""
    found = last(log, *place, lambda record: tape_record(place, record).version is not None)
    return "" if found is None else tape_record(place, found).version or ""


def _foreign(place: TopicPartition, record: InputRecord, why: str) -> CorruptStateError:
    return CorruptStateError(
        f"{place.topic!r} partition {place.partition} has a record at offset {record.offset} which no task has written: {why}",
        hint=_HINT,
    )
