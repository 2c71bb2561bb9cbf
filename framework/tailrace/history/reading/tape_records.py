"""Records of a tape. One that no task has written is named by its offset, and never skipped.

Theory. The partition of a tape holds the commits of one task, in their order, and nothing else. A reader of a whole
tape finds another record by its content, its number, or the identity of the commit before (``core.engine.replay``).
A service looks at the last record when it restores a task: it is of the last commit in the changelog.

    the last record of the tape     the last commit in the changelog     means
    of commit n, with its identity  commit n                             in order
    cannot be read                  any                                  another program writes to the tape
    of another commit               commit n, or none                    the same, or one topic has lost its end
    none                            commit n                             the log has deleted the tape: no replay
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.tape import shown_identity
from tailrace.core.errors import KEPT_ELSEWHERE, CorruptStateError, FormatError
from tailrace.core.records import InputRecord
from tailrace.history.reading.stretches import last
from tailrace.log.interface import Log, TopicPartition

_HINT = (
    "Another program writes to the tape: find it and stop it. The service's own state is not affected, but this history cannot be "
    "replayed along its tape any more. Rebuild it in canonical order (`tailrace rebuild --order canonical`), or from a snapshot or "
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


def check_tape_end(plan: Plan, log: Log, partition: int, cut: bytes | None) -> None:
    """Compare the last record of a task's tape with the last cut in its changelog, while nobody else commits.
    Raises CorruptStateError: they are not of the same commit.
    """
    place = TopicPartition(plan.tape_topic, partition)
    record = last(log, *place)
    if record is None:
        return
    found = tape_record(place, record)
    commit = None if cut is None else tape.decode_cut(cut)
    if commit is not None and (found.number, found.identity) == (commit.commit, commit.identity):
        return
    its = (
        "has no commit"
        if commit is None
        else f"ends with commit {commit.commit} with the identity {shown_identity(commit.identity)}"
    )
    raise CorruptStateError(
        f"{place.topic!r} partition {partition} ends at offset {record.offset} with commit {found.number} with the identity "
        f"{shown_identity(found.identity)}, and the changelog {plan.changelog_topic!r} {its}",
        hint="Both are always written together: one of them has lost its end, or another program writes to it. Put the topic back from "
        "a copy; or rebuild the state from the inputs (`tailrace rebuild --order canonical`), and start from the result under another "
        "name (--from-snapshot, --as).",
    )


def _foreign(place: TopicPartition, record: InputRecord, why: str) -> CorruptStateError:
    return CorruptStateError(
        f"{place.topic!r} partition {place.partition} has a record at offset {record.offset} which no task has written: {why}",
        hint=_HINT,
    )
