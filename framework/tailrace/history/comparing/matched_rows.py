"""The rows of two states of an app, matched key by key. Every comparison of states uses this.

Both sides return their rows in ascending order, so one pass finds every key that differs, and holds the rows
of at most one key. Rows are equal if their bytes are; only rows that differ are decoded, as plain fields may be
declared in another order. If different versions of the code have written the two sides, bytes do not decide: a row
may lack a field that was added later. Then the values that each version reads are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.declare.schema import decode_schemas
from tailrace.core.engine.as_read import ReadAs, defaults_apart, read_the_same
from tailrace.core.engine.describe_rows import Change, describe_changes
from tailrace.core.engine.value_rows import KeyRows

Row: TypeAlias = tuple[bytes, bytes]
Readers: TypeAlias = dict[str, tuple[ReadAs, ReadAs]]
"""By actor, the readers for the rows of the two sides: one for both, if its schema is the same.

Actors that are not in it are compared by bytes.
"""


class MatchedKey(NamedTuple):
    """A key of an actor with its rows on both sides; a side that does not have the key has no rows."""

    prefix: bytes
    """The common prefix of the names of these rows."""
    was: Sequence[Row]
    now: Sequence[Row]

    @property
    def actor(self) -> str:
        """The actor's name."""
        return rows.read_state_row(self.prefix).actor

    @property
    def key(self) -> bytes:
        """The bytes of the key."""
        return rows.read_state_row(self.prefix).key

    def differs(self, readers: Readers) -> bool:
        """Whether the two sides differ: in the values that readers decode, or in bytes without readers."""
        both = readers.get(self.actor) if readers else None
        if both is None or both[0] is both[1]:
            if self.was == self.now:
                return False
            if both is None or not (self.was and self.now):
                return True
        was, now = self._by_rest()
        return not read_the_same(both[0], was, both[1], now)

    def describe(self, actor: ActorPlan | None, readers: Readers) -> tuple[Change, ...]:
        """The changes: in the values that the code reads if ``readers`` has the actor, else as stored."""
        was, now = self._by_rest()
        if (both := readers.get(self.actor)) is not None and both[0] is not both[1]:
            was, now = both[0].read(was, both[1].fields), both[1].read(now, both[0].fields)
        return describe_changes(actor, was, now)

    def _by_rest(self) -> tuple[KeyRows, KeyRows]:
        """The rows of both sides, by the rest of their names after the key."""
        start = len(self.prefix)
        return {row[start:]: value for row, value in self.was}, {
            row[start:]: value for row, value in self.now
        }


def matched_keys(one: Iterable[Row], other: Iterable[Row]) -> Iterator[MatchedKey]:
    """Match the rows of two states, which ascend; rows that are not state are left out."""
    # Written out for speed: a comparison goes through every row of a service.
    first, second = ((row for row in side if row[0][:1] == rows.STATE) for side in (one, other))
    was, now = next(first, None), next(second, None)
    while True:
        least = was if now is None or (was is not None and was[0] < now[0]) else now
        if least is None:
            return
        prefix = rows.key_prefix(least[0])
        before: list[Row] = []
        while was is not None and was[0].startswith(prefix):
            before.append(was)
            was = next(first, None)
        after: list[Row] = []
        while now is not None and now[0].startswith(prefix):
            after.append(now)
            now = next(second, None)
        yield MatchedKey(prefix, before, after)


def readers_of(one: bytes | None, other: bytes | None, plan: Plan | None = None) -> Readers:
    """The readers for the two sides, from their schema rows; empty if a side has none.

    With ``plan``, for its actors, and only the fields that it declares: a replay cannot produce values that
    are no longer declared.
    """
    if not one or not other:
        return {}
    before, after = decode_schemas(one), decode_schemas(other)
    declared = dict[str, set[str] | None].fromkeys(before)
    if plan is not None:
        declared = {actor.name: {field.name for field in actor.schema.fields} for actor in plan.actors}
    found: Readers = {}
    for name in before.keys() & after.keys() & declared.keys():
        was = ReadAs(before[name], declared[name])
        found[name] = was, was if before[name] == after[name] else ReadAs(after[name], declared[name])
    return found


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
