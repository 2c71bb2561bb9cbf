"""The live instances of a task: loaded, touched, sealed, undone and committed.

Theory. A *unit* is what succeeds or fails as a whole: one record with all its handlers, or one timer firing. A unit
touches instances, collections and timers. If it fails, all three are as they were before it. Three records are kept:

    undo      assignments to dictionaries (timers, live and pending entries, the table itself), taken back in reverse
    touched   (table, key, image): the encoding of each instance before the unit, None for one that was not there
    dirty     per commit and actor: key -> image at the first touch since the last commit

At the end of a handler its instance is *sealed*: wrong types are refused, and unless every field's type is a fixed
point of the codec, the instance is replaced by the one that its encoding says. So what is live is always what a restart
would load. At a commit each dirty instance is encoded once and compared with its image; what differs is written.

An instance is *bare* when its fields all have their defaults and it has no timer and no entry: then no handler can tell
it from a new one, and a commit stores no row for it, whether it was never anything else, was cleared, or has gone back
to its defaults. An instance with a required field is never bare, except when it is cleared. Whatever a key has (timers,
entries) hangs on its value row: no value row, nothing else, and so nothing needs to be looked for.

Live instances are kept in two generations, ``live`` and ``old``. A commit that finds ``live`` too heavy makes it the old
one; what is used moves back. Nothing dirty is ever dropped, as a commit leaves nothing dirty.
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
    """All instances of a task, and the unit that is under way."""

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
        """``queues`` by time domain and actor; ``reload`` decodes every touched instance anew; ``checked`` looks for state
        changed behind our back.

        ``past``: of actors by name, what is stored of them that other declarations have written.
        """
        super().__init__(plan, partition, state, queues, reload=reload, reading=reading)
        self.cache_bytes = cache_bytes
        earlier = past or {}
        self.tables = tuple(
            Table(self, actor, earlier.get(actor.name, NO_PAST), checked=checked) for actor in plan.actors
        )

    def rollback(self) -> None:
        """The unit has failed: everything is as it was when it began."""
        for entries in self.touched_collections:
            entries.drop()
        self.touched_collections.clear()
        for target, key, old in reversed(self.undo):
            if old is MISSING:
                target.pop(key, None)
            else:
                target[key] = old
        # The first image counts: a key that was cleared and touched again in the unit has a second one, of nothing.
        first: dict[tuple[int, Any], tuple[Table, bytes | None]] = {}
        for table, key, image in self.touched:
            first.setdefault((table.plan.index, key), (table, image))
        for (_, key), (table, image) in first.items():
            table.restore(key, image)
        self.begin()

    def collect(self) -> tuple[Rows, Rows]:
        """What has changed since the last commit: the rows, and those of the index."""
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
        """What was collected is in the store."""
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
