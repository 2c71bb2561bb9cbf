"""Whether rebuilt rows are the service's own: each is held against the changelog, which says what the service has stored.

Theory. The cut and what was counted at every commit are held against the tape; values are not on it. Code that was
corrected and calls itself the same version counts the same and stores something else. Its snapshot is a state of its own,
and must not pass for a part of the service's history: a folder filled with it would hold other rows than the changelog.

What the changelog says of a row as of a position, though it is compacted and goes on::

    its last record below the position       that value, or that the service has deleted the row
    none below, one from there on            nothing: compaction took what stood below. Whoever fills a store and then
                                             follows the changelog, from that position, overwrites the row
    none                                     that there is no such row

So rows that pass, and the changelog from the position on, give what the changelog alone gives. Compaction is held off while
it is read. The rows of a task are compared in passes, by a hash of their names, so that a part of them is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias
from zlib import crc32

from tailrace.core import rows
from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.describe_rows import shown_key
from tailrace.core.records import InputRecord
from tailrace.history.changelog import changes
from tailrace.history.rebuilding.job import UnitResult
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.stretches import batches
from tailrace.log.interface import TopicPartition

Rows: TypeAlias = Iterable[tuple[bytes, bytes]]

_AT_ONCE = 2_000_000
"""Rows compared in one pass: some 200 bytes each."""
_SHOWN = 3
_DELETED = hash(None)


OTHER_CODE = "the code is not the one that ran, though its version is the same, or it is not deterministic (--twice tells)"
RETRIED = "what had failed when it ran first was run again"


def check_own(
    result: UnitResult, past: HistorySource, found: Callable[[], Rows], why: str = OTHER_CODE
) -> None:
    """See whether a task that came to the service's cut came to the service's rows: else it is no part of its history.

    ``found`` gives the rows of its keys, each time anew; ``why`` is what is said of rows that differ.
    """
    position, number = result.changelog_position, result.partition
    if position is None:
        return
    check = _Check(past, number, position, 1 + result.rows // _AT_ONCE)
    schema = [(rows.SCHEMA_ROW, result.schema)] if result.schema else []
    with past.uncleaned():
        for share in range(check.shares):
            check.compare(share, chain(schema, found()))
    result.same_rows, result.other_rows = check.same, check.other
    if check.other:
        result.changelog_position = None
        named = [*dict.fromkeys(_named(past.plan, row) for row in check.shown)]
        more = ["…"] if check.other > len(check.shown) else []
        note = (
            f"partition {number}: {counted(check.other, 'row')} {'is' if check.other == 1 else 'are'} not what the service has stored ({', '.join(named + more)}): "
            f"{why}. A service begins with this snapshot with --replace-state, or beside under another name (--as)"
        )
        result.notes += (note,)


@dataclass
class _Check:
    """Rows on both sides, one share of them after the other."""

    past: HistorySource
    number: int
    position: int
    shares: int
    same: int = 0
    other: int = 0
    shown: list[bytes] = field(default_factory=list[bytes])

    def compare(self, share: int, found: Rows) -> None:
        """Compare what is of one share: what was found, and what the changelog has."""
        stored, later = self._stored(share)
        for row, value in found:
            if self.shares > 1 and crc32(row) % self.shares != share:
                continue
            if row in stored:
                self._note(row, same=stored.pop(row) == hash(value))
            else:
                self._note(row, same=row in later)
        for name, digest in stored.items():
            if digest != _DELETED:
                self._note(name, same=False)

    def _stored(self, share: int) -> tuple[dict[bytes, int], set[bytes]]:
        """Hashes of what the changelog says below the position, and which rows it names from there on."""
        place = TopicPartition(self.past.plan.changelog_topic, self.number)
        stored: dict[bytes, int] = {}
        for records in batches(self.past.log, *place, stop=self.position):
            found = changes(place, self._of(share, records))
            stored.update(zip(found, map(hash, found.values()), strict=True))
        stored.pop(rows.CUT_ROW, None)
        later: set[bytes] = set()
        for records in batches(self.past.log, *place, self.position):
            later.update(changes(place, self._of(share, records)))
        return stored, later

    def _of(self, share: int, records: list[InputRecord]) -> list[InputRecord]:
        if self.shares == 1:
            return records
        return [one for one in records if crc32(one.key or b"") % self.shares == share]

    def _note(self, row: bytes, *, same: bool) -> None:
        if same:
            self.same += 1
            return
        self.other += 1
        if len(self.shown) < _SHOWN:
            self.shown.append(row)


def _named(plan: Plan, row: bytes) -> str:
    """What a row belongs to, for a person."""
    if row[:1] != rows.STATE:
        return "the schema"
    parts = rows.read_state_row(row)
    actor = next((one for one in plan.actors if one.name == parts.actor), None)
    return f"{parts.actor} {shown_key(actor, parts.key)}"
