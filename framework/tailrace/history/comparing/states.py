"""Compares two states of an app, in any storage: the keys that differ, and how (see ``matched_rows``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine import tape
from tailrace.core.engine.as_read import defaults_apart
from tailrace.core.engine.describe_rows import shown_key
from tailrace.history.comparing import cut_differences
from tailrace.history.comparing.differences import SHOWN, Difference
from tailrace.history.comparing.matched_rows import MatchedKey, Readers, Row, matched_keys, readers_of
from tailrace.state.snapshots import Snapshot

ComparedKey: TypeAlias = tuple[MatchedKey, Readers, bool]
"""A key, what reads its rows, and whether it differs."""


@dataclass(frozen=True, slots=True)
class Side:
    """One state: its name; by partition its rows (ascending; only state rows count), cut, and schema row."""

    name: str
    rows: Callable[[int], Iterator[Row]]
    cut: Callable[[int], bytes | None]
    schema: Callable[[int], bytes | None]
    canonical: bool = False
    """It was made in canonical order: its cut is not a position on the service's tape."""

    @classmethod
    def of_snapshot(cls, name: str, found: Snapshot, *, canonical: bool = False) -> Side:
        """The state in a snapshot."""
        task = found.manifest.task
        return cls(
            name,
            found.rows,
            lambda number: task(number).cut or None,
            lambda number: task(number).schema or None,
            canonical,
        )


@dataclass(slots=True)
class Comparison:
    """The result of a comparison."""

    rows: tuple[int, int] = (0, 0)
    keys: int = 0
    """Number of keys of actors that either side has."""
    count: int = 0
    """Number of keys that differ."""
    shown: list[Difference] = field(default_factory=list[Difference])
    """The first of these keys."""
    cuts: list[str] = field(default_factory=list[str])
    """Differences of the cuts: with any, the states of different moments were compared."""
    defaults: list[str] = field(default_factory=list[str])
    """Differences in default values, which the sides read for keys without stored state."""
    as_read: bool = False
    """Different versions of the code have written the sides, so decoded values were compared, not bytes."""

    @property
    def differs(self) -> bool:
        """Whether the states differ."""
        return bool(self.count or self.defaults)


def compare_states(plan: Plan, one: Side, other: Side) -> Comparison:
    """Compare two states of an app, byte by byte. Raises SnapshotError or StateFolderError."""
    found = Comparison()
    actors = {actor.name: actor for actor in plan.actors}
    for number in range(plan.partitions):
        _compare_cuts(number, one, other, found)
        for key, readers, differs in compared_keys(number, one, other, found):
            if differs and len(found.shown) < SHOWN:
                names = one.name, other.name
                found.shown.append(_difference(number, names, actors.get(key.actor), key, readers))
    return found


def compared_keys(number: int, one: Side, other: Side, found: Comparison) -> Iterator[ComparedKey]:
    """The keys of a partition. Counts them in ``found``."""
    readers = readers_of(one.schema(number), other.schema(number))
    found.as_read |= bool(readers)
    _compare_defaults(one, other, readers, found)
    for key in matched_keys(one.rows(number), other.rows(number)):
        found.keys += 1
        found.rows = (found.rows[0] + len(key.was), found.rows[1] + len(key.now))
        differs = key.differs(readers)
        found.count += differs
        yield key, readers, differs


def _compare_defaults(one: Side, other: Side, readers: Readers, found: Comparison) -> None:
    for name, both in readers.items():
        for attr, was, now in defaults_apart(*both):
            sides = f"{was} in {one.name}, {now} in {other.name}"
            text = f"{name}.{attr} of a key of which nothing is stored: {sides}"
            if text not in found.defaults:
                found.defaults.append(text)


def _difference(
    number: int, names: tuple[str, str], actor: ActorPlan | None, found: MatchedKey, readers: Readers
) -> Difference:
    key = shown_key(actor, found.key)
    return Difference(
        kind="state",
        where=f"{found.actor}, key {key} (partition {number})",
        names=names,
        partition=number,
        actor=found.actor,
        key=key,
        key_bytes=found.key,
        changes=found.describe(actor, readers),
    )


def _compare_cuts(number: int, one: Side, other: Side, found: Comparison) -> None:
    cuts = [None if not data else tape.decode_cut(data) for data in (one.cut(number), other.cut(number))]
    if one.canonical or other.canonical or len({cut.app for cut in cuts if cut is not None}) > 1:
        # Clock, watermarks and commits are those of another order, or of another service.
        found_apart = cut_differences.position_changes(
            *({} if cut is None else cut.positions for cut in cuts)
        )
    else:
        found_apart = cut_differences.cut_changes(*cuts)
    if found_apart:
        found.cuts.append(f"partition {number} stands at {cut_differences.in_one_line(found_apart)}")
