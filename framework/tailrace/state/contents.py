"""Number and digest of the rows of a state, by which a changelog is checked that it still has all of them.

Theory. A changelog is compacted: the rows of a commit, and its cut, disappear when later commits write them again. So no commit can
be checked by its own rows. What compaction keeps is the *state*, the last value of each row. So each commit notes in a header of its cut
(``state.provenance``) the number and a digest of all rows that the state has after it. A reader that comes to the same cut with
other rows has met a hole (a lost segment: older values of its rows come back), or rows of another program.

The digest is a sum over the rows, of one number each. So it depends on no order, and a commit changes it by its own rows alone: less what
they had before, plus what they have now.

    who                                 knows the values before from
    a commit                            the numbers of rows that it has met lately, and the store for all others
    a restore, a standby                the store, which it asks anyway
    a fold from the beginning, a seed   there were none

The number of a row is one more than its crc32: that is cheap, and nobody has chosen what is lost. It is 0 if there is no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, cast
from zlib import crc32

from tailrace.core.storage import StateReader

_RECENT: Final = 20_000
"""The last rows that were met, whose numbers are remembered. They are dropped when there are twice as many."""
_ABSENT: Final = -1
"""In place of the crc32 of a row that there is not."""


class Contents(NamedTuple):
    """Of how many rows a state consists, and their digest."""

    rows: int = 0
    digest: int = 0

    def applied(
        self, changed: Mapping[bytes, bytes | None], before: Sequence[bytes | None] | None = None
    ) -> Contents:
        """After changes of rows, which had the values ``before`` (default: there were none)."""
        old = () if before is None else _sums(changed, before)
        return self.moved(old, _sums(changed, changed.values()))

    def moved(self, old: Sequence[int], new: Sequence[int]) -> Contents:
        """After changes of rows that had the sums ``old``, and have the sums ``new``."""
        rows = self.rows + len(new) - new.count(_ABSENT) - (len(old) - old.count(_ABSENT))
        return Contents(rows, (self.digest + sum(new) + len(new) - sum(old) - len(old)) % (1 << 63))


class StoreContents:
    """The contents of a store, from one commit to the next. ``now``: at the last commit."""

    def __init__(self, store: StateReader, now: Contents) -> None:
        self._store = store
        self.now = self.next = now
        """``next``: after the commit that is being made."""
        self._recent: dict[bytes, int] = {}
        self._changed: Iterable[tuple[bytes, int]] = ()

    def changed(self, changed: Mapping[bytes, bytes | None]) -> Contents:
        """What the contents are once these changes are committed."""
        new = _sums(changed, changed.values())
        self._changed = zip(changed, new, strict=True)
        old = list(map(self._recent.get, changed))
        if None in old:
            unknown = [row for row, one in zip(changed, old, strict=True) if one is None]
            old = [one for one in old if one is not None]
            old += _sums(unknown, self._store.get_many(unknown))
        self.next = self.now.moved(cast("list[int]", old), new)
        return self.next

    def committed(self) -> None:
        """The changes are in the store."""
        self.now = self.next
        self._recent.update(self._changed)
        if (count := len(self._recent)) > 2 * _RECENT:
            self._recent = dict(islice(self._recent.items(), count - _RECENT, None))


def _sums(rows: Iterable[bytes], values: Iterable[bytes | None]) -> list[int]:
    values = list(values)
    if None in values:
        pairs = zip(rows, values, strict=True)
        return [_ABSENT if value is None else crc32(value, crc32(row)) for row, value in pairs]
    return list(map(crc32, cast("list[bytes]", values), map(crc32, rows)))
