"""What was found to differ between a first run and its replay: told key by key, field by field, as far as anyone reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from tailrace.core.engine.describe_rows import Change

Kind: TypeAlias = Literal["commit", "handler", "output", "state", "position", "index"]

SHOWN = 20
"""Keys whose difference is told in full; the others are counted."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first thing in which one key, one commit or one partition differs.

    ``where`` says it in words; ``changes`` are what the first run has, and what the replay has, by label.
    """

    kind: Kind
    partition: int
    where: str
    source: str = "the log"
    """Where the first run's side was read from."""
    actor: str | None = None
    topic: str | None = None
    key: str | None = None
    changes: tuple[Change, ...] = ()
    detail: str = ""

    def __str__(self) -> str:
        said = [self.where]
        said += [f"{label}: {was} in {self.source}, {now} in the replay" for label, was, now in self.changes]
        return "; ".join([*said, self.detail] if self.detail else said)


@dataclass(slots=True)
class Differences:
    """All that was found: the first ones in full, and how many in all."""

    shown: list[Difference] = field(default_factory=list[Difference])
    count: int = 0

    def add(self, one: Difference) -> None:
        """Note a difference. Those that may be the reason for others come first."""
        self.count += 1
        if one.kind in ("commit", "handler"):
            self.shown.insert(0, one)
        elif len(self.shown) < SHOWN:
            self.shown.append(one)
