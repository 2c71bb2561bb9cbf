"""The parts of an instance besides its plain fields: its collections and its pending timers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from tailrace.core import rows
from tailrace.core.handling.collections import ListState, MapState
from tailrace.core.handling.entries import CollectionPlan, Entries, ListEntries
from tailrace.core.rows import TimerId, Timers


class EarlierDeclaration(NamedTuple):
    """Stored state of an actor that its present declaration would not have written."""

    fields: frozenset[str] = frozenset()
    """Plain fields that are no longer declared; their values are carried."""
    collections: tuple[tuple[bytes, str], ...] = ()
    """Maps (``m``) and lists (``l``) that are no longer declared; their entries are kept."""
    mixed: bool = False
    """Whether there may be value rows of another form than the one that is written now."""


NO_PAST: Final = EarlierDeclaration()
_UNUSED: Final[dict[int, Any]] = {}


class Parts:
    """The collections and pending timers of an instance."""

    __slots__ = (
        "_lists",
        "_maps",
        "_past",
        "_timers",
        "fresh",
        "have_rows",
        "indexed",
        "key",
        "key_bytes",
        "prefix",
        "table",
        "was",
        "written",
    )

    def __init__(self, table: Any, instance: Any, key_bytes: bytes, timers: Timers | None) -> None:
        """``timers``: the pending timers; None if they have rows of their own, which are read on first use."""
        self.table = table
        """The ``actor_table.Table`` of its actor."""
        self.key = instance._tr_key
        self.key_bytes = key_bytes
        self.prefix: bytes = instance._tr_row
        self.fresh = False
        """Whether the store has no valid state of this key."""
        self.written: Collection[int] = ()
        """Fields with a time to live that the running handler has assigned."""
        self._timers = timers
        self.was: Any = None
        """The timers changed since the last commit, with their values before."""
        self.have_rows = timers is None
        """Whether the timers have rows of their own in the store."""
        self.indexed: dict[TimerId, int] | None = None
        """The time in the store's index of timers that have another there than their own: see ``timers``."""
        self._maps: dict[int, MapState[Any, Any]] = _UNUSED
        self._lists: dict[int, ListState[Any]] = _UNUSED
        self._past: tuple[Entries, ...] | None = None

    def map(self, index: int) -> MapState[Any, Any]:
        """The map state that the actor declares as number ``index``."""
        found = self._maps.get(index)
        if found is None:
            found = MapState[Any, Any](Entries(self, self.table.plan.maps[index], b"m"))
            self._maps = {**self._maps, index: found}
        return found

    def list(self, index: int) -> ListState[Any]:
        """The list state that the actor declares as number ``index``."""
        found = self._lists.get(index)
        if found is None:
            found = ListState[Any](ListEntries(self, self.table.plan.lists[index], b"l"))
            self._lists = {**self._lists, index: found}
        return found

    def ttl_written(self, index: int) -> None:
        """Note that a field with a time to live is assigned."""
        if index not in self.written:
            self.written = (*self.written, index)

    @property
    def timers(self) -> Timers:
        """The pending timers of this key."""
        if self._timers is None:
            start = self.prefix + b"t"
            self._timers = {
                (row[len(start)], row[len(start) + 1 :]): rows.decode_timer(value)
                for row, value in self.table.state.scan(start, rows.prefix_end(start))
            }
        return self._timers

    def head(self) -> bytes:
        """The bytes of the value row in front of the fields."""
        return rows.WITH_TIMER_ROWS if self._timers is None else rows.value_head(self._timers)

    def collections(self) -> Sequence[Entries]:
        """The entries of all collections of the actor: used, unused, or no longer declared."""
        plan, past = self.table.plan, self.table.past.collections
        if past and self._past is None:
            self._past = tuple(Entries(self, _undeclared(name), kind) for kind, name in past)
        return [
            *(self._past or ()),
            *(self.map(i)._entries for i in range(len(plan.maps))),
            *(self.list(i)._entries for i in range(len(plan.lists))),
        ]

    def is_empty(self) -> bool:
        """Whether there is no timer and no entry. Call it only between two handlers."""
        # If the timers have not been read yet, there is always one.
        return self._timers == {} and not any(entries.occupied() for entries in self.collections())

    def forget_live(self) -> None:
        """Decode every entry again from now on."""
        for entries in (
            *(one._entries for one in self._maps.values()),
            *(one._entries for one in self._lists.values()),
        ):
            entries.forget_live()


def _undeclared(name: str) -> CollectionPlan:
    """A plan for a map or list that is not declared: its entries can be found and removed, but not read."""
    return CollectionPlan(
        attr=name,
        name=name,
        encode=bytes,
        encode_unsettled=bytes,
        decode=bytes,
        immutable=True,
        check_item=None,
        check=None,
    )
