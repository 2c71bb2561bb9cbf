"""Folding a changelog: the resulting rows, and the cut at which they are valid.

Theory. A task writes each row that a commit has changed to its partition of the changelog, and then the cut, as the last
record of the commit::

    key of a record      meaning
    a row                the row has this value from here on; no value: it is deleted
    ``CUT_ROW``          the commit ends here, and this is its cut
    none                 a task never writes this: CorruptStateError

So a commit counts only when its cut has been read. Rows after the last cut belong to a commit that was not read in full: a
fold leaves them out, and its position is the one after that cut.

The live restore (``runtime.restore``) applies the changes batch by batch to a store that keeps its rows, and reads up to
an end at which every commit is whole. It shares ``changes`` with the fold, and documents the rest itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from tailrace.core import rows
from tailrace.core.errors import CorruptStateError
from tailrace.core.records import InputRecord
from tailrace.history.stretches import batches, last
from tailrace.log.interface import Log, TopicPartition


class Folded(NamedTuple):
    """The result of folding a stretch of a changelog."""

    rows: dict[bytes, bytes | None]
    """Without the index, which is not in the changelog. None: the stretch deletes the row."""
    cut: bytes | None
    """The last cut in the stretch; None: there is no cut in it."""
    position: int
    """The offset after that cut; without a cut, the start of the stretch."""


def fold(
    log: Log,
    place: TopicPartition,
    start: int,
    stop: int | None = None,
    on_read: Callable[[TopicPartition, int], None] = lambda _place, _count: None,
) -> Folded:
    """Fold a stretch of a changelog. ``on_read`` receives the number of records of each batch.

    Raises:
        CorruptStateError: A record has no key.
    """
    kept: dict[bytes, bytes | None] = {}
    pending: dict[bytes, bytes | None] = {}
    cut, position = None, start
    for records in batches(log, *place, start, stop):
        end = _behind_last_cut(records)
        if end:
            kept.update(pending)
            kept.update(changes(place, records[:end]))
            cut, position = kept.pop(rows.CUT_ROW), records[end - 1].offset + 1
            pending = changes(place, records[end:])
        else:
            pending.update(changes(place, records))
        on_read(place, len(records))
    return Folded(kept, cut, position)


def changes(place: TopicPartition, records: Sequence[InputRecord]) -> dict[bytes, bytes | None]:
    """The changes in records of a changelog, including the cut, under ``CUT_ROW``.

    Raises:
        CorruptStateError: A record has no key.
    """
    # One comprehension for all records: this takes most of the time of reading a changelog.
    found: dict[bytes | None, bytes | None] = {row: value for _, _, row, value, _ in records}
    if None in found:
        offset = next(one.offset for one in records if one.key is None)
        raise CorruptStateError(
            f"{place.topic!r} partition {place.partition} has a record without a key at offset {offset}",
            hint="Something else writes to the changelog; stop it, and restore from a snapshot.",
        )
    return cast("dict[bytes, bytes | None]", found)


def last_cut(log: Log, place: TopicPartition, stop: int | None = None) -> InputRecord | None:
    """The record of the last cut below ``stop``, without reading the records before it; None if there is no cut."""
    return last(log, *place, lambda one: one.key == rows.CUT_ROW, stop)


def _behind_last_cut(records: Sequence[InputRecord]) -> int:
    """The number of records up to and including the last cut; 0 if there is no cut."""
    for at in range(len(records), 0, -1):
        if records[at - 1].key == rows.CUT_ROW:
            return at
    return 0
