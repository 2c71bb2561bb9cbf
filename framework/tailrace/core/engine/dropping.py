"""State that is no longer declared: pending timers without a handler, and state to be dropped.

The first commit of a task deletes the dropped state. Until then the task reads its store through a
``Dropping``, which hides that state. All dropped rows are held in memory at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, product
from typing import Any, Final

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.declare.schema import timer_family
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.timers import FOREVER
from tailrace.core.engine.value_rows import KeyRows, stored_timer, without
from tailrace.core.storage import StateReader

_SAME: Final[Any] = object()


# --- timers without a handler


@dataclass(slots=True)
class PendingTimers:
    """The pending timers of a family without a handler; ``key``, ``time_ms``: of the first that is due."""

    actor: str
    family: str
    """As ``timer_family`` returns it."""
    cls: str
    key: Any
    time_ms: int

    @property
    def name(self) -> str:
        """The name for ``--drop-state``."""
        return f"{self.actor}.{self.family}"

    @property
    def what(self) -> str:
        """Their family, and the first of them."""
        timer_name = self.family.partition(":")[2]
        which = f"of the family {timer_name!r}" if timer_name else "without a name"
        kind = "processing-time timers" if self.family.startswith("processing-") else "timers"
        return (
            f"{self.actor} has pending {kind} {which} and no handler for "
            f"them (the first is due at {instant(self.time_ms)}, key {self.key!r})"
        )

    @property
    def hint(self) -> str:
        """What the user can do."""
        kind, _, timer_name = self.family.partition(":")
        decorator = "on_processing_timer" if kind.startswith("processing-") else "on_timer"
        decorated = f'@tr.{decorator}("{timer_name}")' if timer_name else f"@tr.{decorator}"
        return f"Give {self.cls} a method with {decorated} again, or delete them: --drop-state {self.name}."

    def __str__(self) -> str:
        return f"{self.what}. Such timers go to the dead letters when they are due. {self.hint}"


def pending_timers(
    plan: Plan, state: StateReader, families: Mapping[str, Collection[str]]
) -> dict[str, PendingTimers]:
    """The pending timers of these families, by actor, that have no handler.

    Reads the index, which has about one row for each pending timer: one or two seconds for a million.
    """
    found: dict[str, PendingTimers] = {}
    wanted = [actor for actor in plan.actors if actor.name in families]
    for actor, domain in product(wanted, (rows.EVENT_TIME, rows.PROCESSING_TIME)):
        prefix = rows.index_prefix(domain, actor.name.encode())
        passed = {rows.EXPIRY: -FOREVER}
        for row, _ in state.scan(prefix, rows.prefix_end(prefix)):
            # The key follows the time, and an escaped key ends with the first two zeros.
            name = row[row.index(b"\0\0", len(prefix) + 8) + 2 :]
            # All timers named by their time are of one kind, and so are all expiries.
            kind = name.partition(b":")[0] if name[:1] == b"n" else name[:1]
            if kind in passed and passed[kind] <= rows.time_of(row[len(prefix) : len(prefix) + 8]):
                continue
            family = _family(domain, name)
            if family in actor.schema.timers or family not in families[actor.name]:
                passed[kind] = -FOREVER
                continue
            # The timer may be due later than its index row, or not be pending any more.
            key_bytes = rows.read_index_row(row)[2]
            key_prefix = rows.actor_prefix(actor.name) + rows.escaped(key_bytes)
            timer = stored_timer(state, key_prefix, (domain, name))
            if timer is not None and timer.time_ms < passed.get(kind, FOREVER):
                passed[kind] = timer.time_ms
                key = actor.key_codec.decode(key_bytes)
                one = PendingTimers(actor.name, family, actor.cls.__name__, key, timer.time_ms)
                found[one.name] = one
    return found


def _family(domain: int, name: bytes) -> str:
    return timer_family(domain, "" if name[:1] == b"u" else name[1:].decode().partition(":")[0])


# --- state that is dropped


class Dropping:
    """The state without what is dropped: ``rows`` and ``index`` remove that from the store."""

    def __init__(self, plan: Plan, state: StateReader, dropped: Collection[str]) -> None:
        self._state = state
        self.rows: dict[bytes, bytes | None] = {}
        self.index: dict[bytes, bytes | None] = {}
        actors = {actor.name: actor for actor in plan.actors}
        parts: dict[str, list[str]] = {}
        for name in sorted(dropped):
            owner, _, part = name.partition(".")
            parts.setdefault(owner, []).append(part)
        for owner, some in parts.items():
            self._drop(owner, actors.get(owner), some)
        self._changed = self.rows | self.index
        self._order = sorted(self._changed)

    def _drop(self, name: str, actor: ActorPlan | None, parts: list[str]) -> None:
        prefix = rows.actor_prefix(name)
        found = self._state.scan(prefix, rows.prefix_end(prefix))
        for key_prefix, group in groupby(found, key=lambda pair: rows.key_prefix(pair[0])):
            before = {row[len(key_prefix) :]: value for row, value in group}
            after: KeyRows = {}
            if actor is not None:
                gone = [rest for rest in rows.spread(before) if _is_of(rest, parts)]
                after = without(actor, before, parts, gone)
            changed = [
                (key_prefix + rest, value, now)
                for rest, value in before.items()
                if (now := after.get(rest)) != value
            ]
            self.rows |= {row: now for row, _, now in changed}
            self.index |= rows.index_changes(changed)

    def written(self) -> None:
        """Note that the store has these changes."""
        self._changed, self._order = {}, []

    def get(self, row: bytes, /) -> bytes | None:
        """See ``StateReader``."""
        value = self._changed.get(row, _SAME)
        return self._state.get(row) if value is _SAME else value

    def get_many(self, rows: Sequence[bytes], /) -> list[bytes | None]:
        """See ``StateReader``."""
        stored = self._state.get_many(rows)
        if not self._changed:
            return stored
        return [self._changed.get(row, value) for row, value in zip(rows, stored, strict=True)]

    def scan(self, start: bytes, stop: bytes, /, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See ``StateReader``."""
        stored = self._state.scan(start, stop, reverse=reverse)
        changed, order = self._changed, self._order
        some = order[bisect_left(order, start) : bisect_left(order, stop)]
        if not some:
            return stored
        some = some[::-1] if reverse else some
        here = ((row, value) for row in some if (value := changed[row]) is not None)
        return merge((pair for pair in stored if pair[0] not in changed), here, reverse=reverse)


def _is_of(rest: bytes, parts: Collection[str]) -> bool:
    """Whether a row of a key belongs to one of these maps, lists and families of timers."""
    kind = rest[:1]
    if kind == b"t":
        return rest[2:3] != rows.EXPIRY and _family(rest[1], rest[2:]) in parts
    return kind in (b"m", b"l") and rest[1:].partition(b"\0")[0].decode() in parts
