"""The publications that a reader has found since its last call.

Only the last publication of each publisher counts. If it is None, the publisher's last watermark comes first: a reader that
is no longer held back has that watermark, however much was published between two calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from tailrace.log.interface import Publication, PublishedAt, PublishedIn


class Heard:
    """By the stored name of each publication (see ``Publication.name``); filled by ``add`` in the order of publishing."""

    __slots__ = ("_before", "_last")

    def __init__(self) -> None:
        self._last: dict[str, int | None] = {}
        self._before: dict[str, int] = {}

    def add(self, name: str, watermark_ms: int | None) -> None:
        """Add the next publication of a publisher."""
        before = self._last.pop(name, None)  # so that publishers are in the order of their last publication
        self._last[name] = watermark_ms
        if watermark_ms is not None:
            self._before.pop(name, None)
        elif before is not None:
            self._before[name] = before

    def news(self, seen: dict[str, int | None]) -> list[Publication]:
        """The publications that differ from those returned before, which ``seen`` keeps by name."""
        found: list[Publication] = []
        for name, watermark_ms in self._last.items():
            before = self._before.get(name)
            if before is not None and before != seen.get(name):
                found.append(Publication.named(name, before))
                seen[name] = before
            if name not in seen or seen[name] != watermark_ms:
                found.append(Publication.named(name, watermark_ms))
                seen[name] = watermark_ms
        return found


def in_partition(published: Iterable[PublishedAt], partition: int) -> list[PublishedIn]:
    """The publications of a topic by the position from which on they hold in one partition."""
    found = (PublishedIn(one.ends[partition], one.name, one.watermark_ms) for one in published)
    return sorted(found, key=itemgetter(0))
