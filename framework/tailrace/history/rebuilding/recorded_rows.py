"""Checks whether rebuilt rows are the service's own: compares each with the row stored in the changelog.

Theory. The counts and the outputs of every commit are compared with the tape, but values of state are not on it. Code that was
changed may count and emit the same and store other values. Its results are not those that are recorded, so this is an error.
If declarations were changed since the first commit, what is stored has another form, and is not compared.

What the changelog tells about a row as of a position, although it is compacted and grows::

    its last record below the position    that value, or that the service has deleted the row
    none below, one from there on         nothing: compaction removed the record below. A process that fills a
                                          store and then follows the changelog from there overwrites the row
    none                                  that there is no such row

So rows that pass, with the changelog from the position on, give the same state as the changelog alone.
Compaction is blocked during the reading. The rows of a task are compared in passes, by a hash of their names,
so that only a part is in memory.
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
from tailrace.core.errors import ReplayDivergedError
from tailrace.core.records import InputRecord
from tailrace.history.reading.changelog import changes
from tailrace.history.reading.stretches import batches
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.results import RowComparison, StateFiles
from tailrace.log.interface import TopicPartition

Rows: TypeAlias = Iterable[tuple[bytes, bytes]]

_AT_ONCE = 2_000_000
"""Most rows compared in one pass: some 200 bytes each."""
_SHOWN = 3
_DELETED = hash(None)
_OTHER_FORM = (
    "the declarations are not those of the first commit, so rows have another form than the service's and are not compared. A "
    "service begins with this snapshot with --replace-state, or beside under another name (--as)"
)


def compare_rows(
    past: HistorySource,
    number: int,
    position: int,
    state: StateFiles,
    found: Callable[[], Rows],
    wanted: Callable[[bytes], bool] = lambda _: True,
) -> RowComparison:
    """Compare the rows of a task that has the service's cut with the rows in the changelog below a position.

    ``found`` returns the rows of its keys, from the start at each call; ``wanted``: which rows of the changelog are those of its
    keys. Raises ReplayDivergedError: a row differs.
    """
    check = _Check(past, number, position, 1 + state.rows // _AT_ONCE, wanted)
    schema = [(rows.SCHEMA_ROW, state.schema)] if state.schema else []
    with past.compaction_paused():
        for share in range(check.shares):
            check.compare(share, chain(schema, found()))
    if rows.SCHEMA_ROW in check.shown:
        return RowComparison(note=f"partition {number}: {_OTHER_FORM}")
    if check.other:
        raise check.error()
    return RowComparison(check.same)


@dataclass
class _Check:
    """Compares the rows of both sides, one share after the other."""

    past: HistorySource
    number: int
    position: int
    shares: int
    wanted: Callable[[bytes], bool]
    same: int = 0
    other: int = 0
    shown: list[bytes] = field(default_factory=list[bytes])

    def compare(self, share: int, found: Rows) -> None:
        """Compare one share of the rebuilt rows with the changelog."""
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
        """Hashes of the changelog's rows below the position, and the names of its rows from there on."""
        place = TopicPartition(self.past.plan.changelog_topic, self.number)
        stored: dict[bytes, int] = {}
        for records in batches(self.past.log, *place, stop=self.position):
            found = changes(place, self._of(share, records))
            stored.update(zip(found, map(hash, found.values()), strict=True))
        stored.pop(rows.CUT_ROW, None)
        stored = {row: digest for row, digest in stored.items() if self.wanted(row)}
        later: set[bytes] = set()
        for records in batches(self.past.log, *place, self.position):
            later.update(changes(place, self._of(share, records)))
        return stored, later

    def _of(self, share: int, records: list[InputRecord]) -> list[InputRecord]:
        if self.shares == 1:
            return records
        return [one for one in records if crc32(one.key or b"") % self.shares == share]

    def error(self) -> ReplayDivergedError:
        """The error that names the first rows that differ."""
        plan = self.past.plan
        named = [*dict.fromkeys(_named(plan, row) for row in self.shown)]
        more = ["…"] if self.other > len(self.shown) else []
        return ReplayDivergedError(
            f"at the last commit of app {plan.app!r} partition {self.number}, {counted(self.other, 'row')} "
            f"{'is' if self.other == 1 else 'are'} not what the service has stored ({', '.join(named + more)})",
            hint="The code was changed, or it depends on something that is not on the tape.",
        )

    def _note(self, row: bytes, *, same: bool) -> None:
        if same:
            self.same += 1
            return
        self.other += 1
        if len(self.shown) < _SHOWN or row == rows.SCHEMA_ROW:
            self.shown.append(row)


def _named(plan: Plan, row: bytes) -> str:
    """The owner of a row, for a person: an actor and its key, or the schema."""
    if row[:1] != rows.STATE:
        return "the schema"
    parts = rows.read_state_row(row)
    actor = next((one for one in plan.actors if one.name == parts.actor), None)
    return f"{parts.actor} {shown_key(actor, parts.key)}"
