"""The part of a table that is read, by the options: partitions, timestamps, keys.

Only options select it. Spark applies the filters of a query: Spark 4 keeps the plan of a Python data source
for one query and uses it for the next query of the same DataFrame, which may have another filter or none.
"""

from __future__ import annotations

from dataclasses import dataclass

_LAST = (1 << 63) - 1
_FIRST = -(1 << 63)


@dataclass(frozen=True, slots=True)
class Range:
    """The whole numbers from ``start`` up to, without, ``stop``."""

    start: int = _FIRST
    stop: int = _LAST

    def __and__(self, other: Range) -> Range:
        return Range(max(self.start, other.start), min(self.stop, other.stop))

    @property
    def is_all(self) -> bool:
        """Whether it includes everything."""
        return self == ALL


ALL = Range()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the rows: partitions, timestamps in milliseconds, keys in bytes. None: no bound."""

    partitions: frozenset[int] | None = None
    times_ms: Range = ALL
    keys: frozenset[bytes] | None = None

    def partitions_of(self, count: int) -> set[int]:
        """The numbers, of ``count`` partitions, that are read."""
        every = set(range(count))
        return every if self.partitions is None else every & self.partitions
