"""The live instances of a task: loaded, touched, sealed, undone and committed.

Theory. A *unit* succeeds or fails as a whole: one record with all its handlers, or one timer firing. A unit
touches instances, collections and timers. If it fails, all three are reset to their state before it. For
this, three records are kept:

    undo      assignments to dictionaries (timers, live and pending entries, the table), undone in reverse
    touched   (table, key, image): the encoding of each instance before the unit, None if it did not exist
    dirty     per commit and actor: key -> image at the first touch since the last commit

At the end of a handler its instance is *sealed*: wrong types are refused. Unless every field's type is a
fixed point of the codec, the instance is replaced by its decoded encoding. So a live instance always equals
the one that a restart would load. At a commit each dirty instance is encoded once and compared with its
image; only differences are written.

An instance is *bare* if all its fields have their defaults and it has no timer and no entry. No handler can
distinguish it from a new one, so a commit stores no row for it. This is the same for an instance that never
changed, was cleared, or is back at its defaults. An instance with a required field is never bare unless it is
cleared. Timers and entries of a key exist only together with its value row: without a value row nothing else
has to be looked for.

Live instances are kept in two generations, ``live`` and ``old``. If a commit finds ``live`` too large,
``live`` becomes ``old``; instances that are used move back. Dirty instances are never dropped, because a
commit leaves none dirty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.actor_table import Table
from tailrace.core.engine.instance_extras import NO_PAST, EarlierDeclaration
from tailrace.core.engine.timers import TimerQueue
from tailrace.core.engine.unit_books import Rows, UnitBooks
from tailrace.core.handling.entries import MISSING
from tailrace.core.storage import StateReader


class InstanceCache(UnitBooks):
    """All instances of a task, and the current unit."""

    __slots__ = ("cache_bytes", "tables")

    def __init__(
        self,
        plan: Plan,
        partition: int,
        state: StateReader,
        queues: Sequence[Sequence[TimerQueue]],
        *,
        cache_bytes: int,
        reload: bool = False,
        checked: bool = False,
        reading: bool = False,
        past: Mapping[str, EarlierDeclaration] | None = None,
    ) -> None:
        """``queues`` by time domain and actor. ``reload`` decodes every touched instance again. ``checked``
        looks for state that was changed outside of its handlers.

        ``past``: by name of the actor, stored state that other declarations have written.
        """
        super().__init__(plan, partition, state, queues, reload=reload, reading=reading)
        self.cache_bytes = cache_bytes
        earlier = past or {}
        self.tables = tuple(
            Table(self, actor, earlier.get(actor.name, NO_PAST), checked=checked) for actor in plan.actors
        )

    def rollback(self) -> None:
        """Undo the current unit: everything is reset to its state when the unit began."""
        for entries in self.touched_collections:
            entries.drop()
        self.touched_collections.clear()
        for target, key, old in reversed(self.undo):
            if old is MISSING:
                target.pop(key, None)
            else:
                target[key] = old
        # The first image counts: a key that was cleared and touched again in the unit has a second, empty
        # one.
        first: dict[tuple[int, Any], tuple[Table, bytes | None]] = {}
        for table, key, image in self.touched:
            first.setdefault((table.plan.index, key), (table, image))
        for (_, key), (table, image) in first.items():
            table.restore(key, image)
        self.begin()

    def collect(self) -> tuple[Rows, Rows]:
        """The changes since the last commit: the rows, and those of the index."""
        batch: Rows = {}
        index: Rows = {}
        for table in self.tables:
            table.verify()
            table.collect(batch, index)
        for entries in self.dirty_collections:
            entries.collect(batch)
        index.update(self.armed)
        return batch, index

    def committed(self) -> None:
        """Note that the store has the collected rows."""
        for entries in self.dirty_collections:
            entries.committed()
        self.dirty_collections.clear()
        self.armed.clear()
        self.epoch += 1
        for table in self.tables:
            table.committed(self.cache_bytes // max(1, len(self.tables)))
        for of_domain in self.queues:
            for queue in of_domain:
                queue.committed()
