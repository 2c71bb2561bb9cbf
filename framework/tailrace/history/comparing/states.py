"""Compares two states of an app, in any storage: the keys that differ (see ``matched_rows``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tailrace.core.engine.as_read import defaults_apart
from tailrace.history.comparing.matched_rows import MatchedKey, Readers, Row, matched_keys, readers_of

ComparedKey: TypeAlias = tuple[MatchedKey, Readers, bool]
"""A key, what reads its rows, and whether it differs."""


@dataclass(frozen=True, slots=True)
class Side:
    """One state: its name; by partition its rows (ascending; only state rows count) and schema row."""

    name: str
    rows: Callable[[int], Iterator[Row]]
    schema: Callable[[int], bytes | None]


@dataclass(slots=True)
class Comparison:
    """The result of a comparison."""

    keys: int = 0
    """Number of keys of actors that either side has."""
    count: int = 0
    """Number of keys that differ."""
    defaults: list[str] = field(default_factory=list[str])
    """Differences in default values, which the sides read for keys without stored state."""


def compared_keys(number: int, one: Side, other: Side, found: Comparison) -> Iterator[ComparedKey]:
    """The keys of a partition. Counts them in ``found``."""
    readers = readers_of(one.schema(number), other.schema(number))
    _compare_defaults(one, other, readers, found)
    for key in matched_keys(one.rows(number), other.rows(number)):
        differs = key.differs(readers)
        found.keys += 1
        found.count += differs
        yield key, readers, differs


def _compare_defaults(one: Side, other: Side, readers: Readers, found: Comparison) -> None:
    for name, both in readers.items():
        for attr, was, now in defaults_apart(*both):
            sides = f"{was} in {one.name}, {now} in {other.name}"
            text = f"{name}.{attr} of a key of which nothing is stored: {sides}"
            if text not in found.defaults:
                found.defaults.append(text)
