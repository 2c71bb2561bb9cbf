"""Offsets behind the position of a task that hold no record.

Theory. The position of a task is the one after its last record. Offsets without a record (on Kafka: markers of transactions, records of
aborted ones) may be between it and the end of the input, and the log deletes them as it deletes records. The next start would
then find that something was deleted unread. So each commit notes, for a log that wants notes (``Log.note``), up to which offset each
input had no record behind the position.

Such offsets may also come when there is nothing else to commit. So after a while a commit is made for them alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

NONE_PASSED: Final[Mapping[str, int]] = MappingProxyType({})
_ALONE_MS: Final = 60_000
"""After this time since the last commit, passed offsets are committed alone."""


class PassedOffsets:
    """The passed offsets of a running task. ``known``: what the last commit has noted. ``is_noted``: whether commits note them."""

    __slots__ = ("_at", "_grew", "_is_noted", "_now", "noted")

    def __init__(self, known: Mapping[str, int], *, is_noted: bool) -> None:
        self._is_noted = is_noted
        self.noted = known
        """By input: the positions that the last commit has noted."""
        self._now = dict(known)
        self._at: dict[str, int] = {}
        """By input: up to where the last commit says that there is no further record."""
        self._grew = False

    def begin(self, name: str, position: int) -> int:
        """Where to read on in an input. Called before the first ``note``."""
        self._at[name] = max(position, self.noted.get(name, 0))
        return self._at[name]

    def note(self, name: str, offset: int) -> None:
        """All records of an input that were read are taken, and it has no other before this offset."""
        self._now[name] = offset
        self._grew = self._grew or offset > self._at.get(name, offset)

    def are_due(self, since_ms: int) -> bool:
        """Whether to commit, this long after the last commit, although there may be nothing else to commit."""
        return self._is_noted and self._grew and since_ms >= _ALONE_MS

    def commit(self, positions: Mapping[str, int], *, is_noted: bool) -> Mapping[str, int]:
        """The positions to note with a cut that has these positions."""
        now = self._now
        self.noted = {name: max(position, now.get(name, 0)) for name, position in positions.items()}
        self._at = dict(self.noted)
        self._grew, self._is_noted = False, is_noted
        return self.noted
