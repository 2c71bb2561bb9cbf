"""A difference between two runs, for all comparisons: in a key's state, an output, a commit or a position.

Every comparison of the framework reports its findings as a ``Difference``::

    replay --compare    the first run, from the log or a state folder, and its replay
    explore             two schedules

``changes`` name what differs (a field, an entry, a timer, a header) with its value on either side; they come
from ``describe_changes`` for rows and from ``outputs`` for outputs. Only the first ``SHOWN`` differences are
described; the others are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from tailrace.core.engine.describe_rows import Change

Kind: TypeAlias = Literal["commit", "handler", "output", "state", "position", "index", "dead letter"]
T = TypeVar("T")

SHOWN = 20
"""Number of differences that are described; the others are counted."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference of one key, output, commit or partition."""

    kind: Kind
    where: str
    """The differing item, as text."""
    names: tuple[str, str] = ("the log", "the replay")
    """The names of the two sides."""
    partition: int | None = None
    """None: a topic or an actor as a whole was compared."""
    actor: str | None = None
    topic: str | None = None
    key: str | None = None
    """The key as Python writes it."""
    key_bytes: bytes | None = None
    changes: tuple[Change, ...] = ()
    only_order: bool = False
    """Both sides have the same outputs, in another order."""
    detail: str = ""

    def lines(self) -> list[str]:
        """The changes, with the names of the two sides."""
        return [change.between(*self.names) for change in self.changes]

    def __str__(self) -> str:
        return "; ".join([self.where, *self.lines(), *filter(None, (self.detail,))])


@dataclass(slots=True)
class Differences:
    """All differences that were found: the first ones described, and the number of all."""

    shown: list[Difference] = field(default_factory=list[Difference])
    count: int = 0

    def add(self, one: Difference) -> None:
        """Add a difference. A difference that may be the cause of others comes first."""
        self.count += 1
        if one.kind in ("commit", "handler"):
            self.shown.insert(0, one)
        elif len(self.shown) < SHOWN:
            self.shown.append(one)


def first_apart(
    one: Iterable[T], other: Iterable[T], by: Callable[[T], Any] = lambda item: item
) -> tuple[T | None, T | None] | None:
    """The first pair that differs ``by`` a part of it, None past the end of one side; None if all are equal."""
    for pair in zip_longest(one, other):
        if pair[0] is None or pair[1] is None or by(pair[0]) != by(pair[1]):
            return pair
    return None
