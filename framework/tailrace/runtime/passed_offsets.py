"""Offsets behind the position of a task that hold no record, and how far they go.

Theory. On Kafka, the markers of transactions and the records of aborted ones take offsets, which readers of committed records do not
see. The position of a task is the one after its last record, so such offsets may be between it and the end of the input. Brokers delete
them by retention, as they delete records. The next start would then find that the log begins behind the position, and that something
was deleted unread. So each commit notes, in a header of its cut, up to which offset each input had no record behind the position.

    the log begins                                 the next start
    at the position, or before                     continues there
    after it, and not after the offset noted       continues at the offset noted: no record was deleted
    after the offset noted                         misses what is between the two: see ``restore``

A header that is missing says nothing: an older version wrote the cut, or there were no such offsets.

Such offsets may also come when there is nothing else to commit. So after a while a commit is made for them alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tailrace.core.records import Headers
from tailrace.history.passed_offsets import passed_header

_ALONE_MS: Final = 60_000
"""After this time since the last commit, passed offsets are committed alone."""


class PassedOffsets:
    """Of a task at work, from a commit on: ``known`` is what that commit has noted, by input. ``is_noted``: there was a
    commit, and commits note them.
    """

    __slots__ = ("_at", "_grew", "_is_noted", "_now", "noted")

    def __init__(self, known: Mapping[str, int], *, is_noted: bool) -> None:
        self._is_noted = is_noted
        self.noted = known
        """By input: what the last call of ``headers`` has noted."""
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

    def headers(self, positions: Mapping[str, int]) -> Headers:
        """The headers for a cut with these positions."""
        now = self._now
        self.noted = {name: now[name] for name, position in positions.items() if now.get(name, 0) > position}
        self._at = {name: max(position, now.get(name, 0)) for name, position in positions.items()}
        self._grew, self._is_noted = False, True
        return passed_header(self.noted)
