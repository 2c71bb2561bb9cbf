"""Folding a changelog: the rows that it leaves, and the cut that they stand at.

Theory. A task writes each row that a commit has changed to its partition of the changelog, and then the cut, as the last
record of the commit::

    key of a record      what it says
    a row                the row has this value from here on; no value: it is deleted
    ``CUT_ROW``          the commit ends here, and its cut is this
    none                 nothing that a task writes: CorruptStateError

So a commit counts only when its cut has been read. Rows behind the last cut that was read belong to a commit that was not
read in full, and are left out, and the position of a fold is the one behind that cut.

The live restore (``runtime.restore``) applies the changes batch by batch to a store that keeps what it has, and reads up to
an end at which every commit is whole. It shares ``changes`` with the fold, and has a theory of its own for the rest.
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
    """What a stretch of a changelog leaves."""

    rows: dict[bytes, bytes | None]
    """Without the index, which is not in the changelog. None: the stretch has deleted the row."""
    cut: bytes | None
    """The last one in the stretch; None: there is none in it."""
    position: int
    """Behind that cut; without one, where the stretch begins."""


def fold(
    log: Log,
    place: TopicPartition,
    start: int,
    stop: int | None = None,
    on_read: Callable[[TopicPartition, int], None] = lambda _place, _count: None,
) -> Folded:
    """Fold a stretch of a changelog; ``on_read`` is told how many records were read with each batch.

    Raises:
        CorruptStateError: There is a record without a key.
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
    """What records of a changelog change, the cut among it, as ``CUT_ROW``.

    Raises:
        CorruptStateError: A record has no key.
    """
    # All at once, as this is most of what reading a changelog takes.
    found: dict[bytes | None, bytes | None] = {row: value for _, _, row, value, _ in records}
    if None in found:
        offset = next(one.offset for one in records if one.key is None)
        raise CorruptStateError(
            f"{place.topic!r} partition {place.partition} has a record without a key at offset {offset}",
            hint="Something else writes to the changelog; stop it, and restore from a snapshot.",
        )
    return cast("dict[bytes, bytes | None]", found)


def last_cut(log: Log, place: TopicPartition, stop: int | None = None) -> InputRecord | None:
    """The record of the last cut below ``stop``, found without reading what is before it; None if there is none."""
    return last(log, *place, lambda one: one.key == rows.CUT_ROW, stop)


def _behind_last_cut(records: Sequence[InputRecord]) -> int:
    """How many of the records go up to the last cut, that included; 0 if there is none."""
    for at in range(len(records), 0, -1):
        if records[at - 1].key == rows.CUT_ROW:
            return at
    return 0
