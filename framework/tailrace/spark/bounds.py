"""What of a topic a query can need: worked out from options and from the filters that Spark hands down.

Bounds only ever take away what no row of the answer is in. Spark evaluates every filter again, so a filter that is not
understood here costs reading, never a wrong row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import datasource as ds

from tailrace.core.durations import to_ms
from tailrace.core.errors import UsageError

_LAST = (1 << 63) - 1
_FIRST = -(1 << 63)


@dataclass(frozen=True, slots=True)
class Range:
    """The whole numbers from ``start`` up to, without, ``stop``."""

    start: int = _FIRST
    stop: int = _LAST

    def __contains__(self, number: int) -> bool:
        return self.start <= number < self.stop

    def __and__(self, other: Range) -> Range:
        return Range(max(self.start, other.start), min(self.stop, other.stop))

    @property
    def is_all(self) -> bool:
        """Whether it leaves nothing out."""
        return self == ALL


ALL = Range()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where rows can be: partitions, offsets, timestamps in milliseconds, keys in bytes. None: anywhere."""

    partitions: frozenset[int] | None = None
    offsets: Range = ALL
    times_ms: Range = ALL
    keys: frozenset[bytes] | None = None

    def with_keys(self, keys: Iterable[bytes]) -> Bounds:
        """Of these keys alone."""
        found = frozenset(keys)
        return replace(self, keys=found if self.keys is None else self.keys & found)

    def with_partitions(self, numbers: Iterable[int]) -> Bounds:
        """Of these partitions alone."""
        found = frozenset(numbers)
        return replace(self, partitions=found if self.partitions is None else self.partitions & found)


@dataclass(frozen=True, slots=True)
class MetaColumns:
    """Under which names a table has the places and times that bounds are about."""

    partition: str
    offset: str
    timestamp: str
    key: str


@dataclass(slots=True)
class Pushed:
    """Takes filters in."""

    names: MetaColumns
    bounds: Bounds
    encode_key: Any
    """Gives the bytes of a key as the table shows it. Raises UsageError for what is none."""
    taken: list[ds.Filter] = field(default_factory=list[ds.Filter])

    def take(self, filters: Sequence[ds.Filter]) -> None:
        """Narrow the bounds by what is understood."""
        for one in filters:
            attribute: tuple[str, ...] = getattr(one, "attribute", ())
            if len(attribute) != 1:
                continue
            before = self.bounds
            self._take(one, attribute[0])
            if self.bounds is not before:
                self.taken.append(one)

    def _take(self, one: ds.Filter, name: str) -> None:
        names, bounds = self.names, self.bounds
        if name in (names.partition, names.key):
            values = _equals(one)
            if values is None:
                return
            if name == names.partition:
                self.bounds = bounds.with_partitions(values)
            else:
                self.bounds = bounds.with_keys(self._encoded(values))
        elif name == names.offset:
            if (found := _range(one, int)) is not None:
                self.bounds = replace(bounds, offsets=bounds.offsets & found)
        elif name == names.timestamp and (found := _range(one, _instant_ms)) is not None:
            self.bounds = replace(bounds, times_ms=bounds.times_ms & found)

    def _encoded(self, values: Sequence[Any]) -> Iterator[bytes]:
        """The bytes of those values that are keys: no row shows another."""
        for value in values:
            try:
                yield self.encode_key(value)
            except UsageError:
                continue


def _equals(one: ds.Filter) -> list[Any] | None:
    match one:
        case ds.EqualTo() if one.value is not None:
            return [one.value]
        case ds.In():
            return [value for value in one.value if value is not None]
        case _:
            return None


def _range(one: ds.Filter, number: Any) -> Range | None:
    """The whole numbers that can pass, a bound between two of them included."""
    values = _equals(one)
    if values is not None:
        numbers = [number(value) for value in values]
        return Range(min(numbers), max(numbers) + 1) if numbers else Range(0, 0)
    match one:
        case ds.GreaterThan() | ds.GreaterThanOrEqual():
            return Range(start=number(one.value))
        case ds.LessThan() | ds.LessThanOrEqual():
            return Range(stop=number(one.value) + 1)
        case _:
            return None


def _instant_ms(value: datetime) -> int:
    """Milliseconds, rounded down."""
    return to_ms(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
