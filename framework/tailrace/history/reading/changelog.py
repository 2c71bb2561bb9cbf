"""Folding a changelog: the resulting rows, and the cut at which they are valid.

Theory. A task writes each row that a commit has changed to its partition of the changelog, and then the cut::

    key of a record      meaning
    a row                the row has this value from here on; no value: it is deleted
    ``CUT_ROW``          the commit ends here, and this is its cut
    ``MOVED``            the state is in another changelog from here on: StateMovedError
    anything else        a task never writes this: CorruptStateError

So a commit counts when its cut has been read. Rows after the last cut are of a commit that was not read in full: a
fold leaves them out, and its position is the one after that cut.

The live restore (``runtime.restore``) applies the changes batch by batch to a store that keeps its rows, and reads up to
an end at which every commit is whole. It shares ``changes`` with the fold, and documents the rest itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from tailrace.core import rows
from tailrace.core.counting import counted
from tailrace.core.errors import CorruptStateError, OffsetGoneError, OtherHistoryError, StateMovedError
from tailrace.core.records import Headers, InputRecord
from tailrace.history.reading.stretches import batches, last
from tailrace.log.interface import Log, TopicPartition
from tailrace.state.contents import Contents
from tailrace.state.provenance import provenance_in

WITHOUT_CHANGELOG = (
    "The state cannot be restored from this changelog. If a copy of the state folder of this task is left that has read further, "
    "put it back. Otherwise rebuild the state from the inputs (`tailrace rebuild`), and start from the result, or from a snapshot, "
    "under another name (--from-snapshot, --as)."
)
"""The hint for a changelog that has lost rows."""
MOVED = b"moved"
"""The key of the last record of a changelog that an upgrade has replaced. Its value is the name of the new one."""
_KINDS = frozenset({rows.STATE, rows.KEEP})
"""The first bytes of rows in a changelog."""


class Folded(NamedTuple):
    """The result of folding a stretch of a changelog."""

    rows: dict[bytes, bytes | None]
    """Without the index, which is not in the changelog. None: the stretch deletes the row."""
    cut: bytes | None
    """The last cut in the stretch; None: there is no cut in it."""
    position: int
    """The offset after that cut; without a cut, the start of the stretch."""
    headers: Headers = ()
    """Those of that cut."""


def fold(
    log: Log, place: TopicPartition, start: int, stop: int | None = None, at_once: int | None = None
) -> Folded:
    """Fold a stretch of a changelog.
    Raises CorruptStateError: a record has no key. OtherHistoryError: the rows from the beginning are not those that the last cut notes.
    """
    kept: dict[bytes, bytes | None] = {}
    pending: dict[bytes, bytes | None] = {}
    cut, position = None, start
    headers: Headers = ()
    for records in batches(log, *place, start, stop, at_once=at_once):
        end = behind_last_cut(records)
        if end:
            kept.update(pending)
            kept.update(changes(place, records[:end]))
            cut, of_cut = kept.pop(rows.CUT_ROW), records[end - 1]
            position, headers = of_cut.offset + 1, of_cut.headers
            pending = changes(place, records[end:])
        else:
            pending.update(changes(place, records))
    if start <= log.start_offset(*place):
        check_contents(place, headers, Contents().applied(kept))
    return Folded(kept, cut, position, headers)


def beginning(log: Log, place: TopicPartition) -> int:
    """The offset from which a changelog has to be read to have all rows. Raises OffsetGoneError."""
    start = log.start_offset(*place)
    if start:
        topic, partition = place
        raise OffsetGoneError(
            f"the log has deleted the first {start} offsets of the changelog, and with them rows of the state",
            topic=topic,
            partition=partition,
            offset=0,
            hint=f"{WITHOUT_CHANGELOG} A changelog must be compacted only (cleanup.policy=compact).",
        )
    return start


def changes(place: TopicPartition, records: Sequence[InputRecord]) -> dict[bytes, bytes | None]:
    """The changes in records of a changelog, including the cut, under ``CUT_ROW``.
    Raises CorruptStateError: a record has no key, or one that is no row.
    """
    # One comprehension for all records: this takes most of the time of reading a changelog.
    found: dict[bytes | None, bytes | None] = {row: value for _, _, row, value, _ in records}
    if None in found or not {row[:1] for row in cast("dict[bytes, bytes | None]", found)} <= _KINDS:
        raise _foreign(place, next(one for one in records if one.key is None or one.key[:1] not in _KINDS))
    return cast("dict[bytes, bytes | None]", found)


def check_whole(place: TopicPartition, records: Sequence[InputRecord], last: InputRecord | None) -> None:
    """Check that no record is behind the last cut of a changelog whose commits have all ended.
    Raises CorruptStateError: there is one.
    """
    if last is None or records[-1].offset > last.offset:
        raise _foreign(place, next(one for one in records if last is None or one.offset > last.offset))


def check_contents(place: TopicPartition, headers: Headers, found: Contents) -> None:
    """Compare the rows that a changelog gives up to a cut with those that the cut notes in its headers.
    Raises OtherHistoryError: they are others.
    """
    noted = provenance_in(headers).rows
    if noted is None or noted == found:
        return
    what = "as many, with other values" if noted.rows == found.rows else f"{noted.rows:,}"
    raise OtherHistoryError(
        f"{place.topic!r} partition {place.partition} gives {counted(found.rows, 'row')} of state, and its last commit notes {what}: "
        "the changelog has lost records in between, or has some that no task has written",
        why="rows",
        hint="Move the state folder of this task away, if it has one: it may be what has missed something, and the task is then "
        f"restored from the whole changelog. If the error stays: {WITHOUT_CHANGELOG[0].lower()}{WITHOUT_CHANGELOG[1:]}",
    )


def _foreign(place: TopicPartition, record: InputRecord) -> CorruptStateError | StateMovedError:
    if record.key == MOVED:
        return StateMovedError(
            f"the state is not in {place.topic!r} any more, but in {(record.value or b'').decode()!r}: the app was upgraded",
            hint="Open it again.",
        )
    key = "without a key" if record.key is None else f"with the key {record.key[:40]!r}"
    return CorruptStateError(
        f"{place.topic!r} partition {place.partition} has a record {key} at offset {record.offset}, which no task has written",
        hint="Another program writes to the changelog: find it and stop it. A copy of the state folder of this task that has read "
        "further can be put back; or rebuild the state (`tailrace rebuild`), and start from the result under another name "
        "(--from-snapshot, --as).",
    )


def last_cut(
    log: Log, place: TopicPartition, stop: int | None = None, *, of_replaced: bool = False
) -> InputRecord | None:
    """The record of the last cut below ``stop``, found from the end; None if there is no cut.
    Raises StateMovedError, unless the cut is to be that of a state that an upgrade has replaced.
    """

    def is_cut(one: InputRecord) -> bool:
        if one.key == MOVED and not of_replaced:
            raise _foreign(place, one)
        return one.key == rows.CUT_ROW

    return last(log, *place, is_cut, stop)


def behind_last_cut(records: Sequence[InputRecord]) -> int:
    """The number of records up to and including the last cut; 0 if there is no cut."""
    for at in range(len(records), 0, -1):
        if records[at - 1].key == rows.CUT_ROW:
            return at
    return 0
