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

from collections.abc import Sequence
from typing import Any

from tailrace.core import rows
from tailrace.core.declare.context import Context
from tailrace.core.declare.current_unit import CurrentUnit
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine.timers import TimerQueue
from tailrace.core.handling.entries import MISSING, Entries
from tailrace.core.storage import StateReader

Rows = dict[bytes, bytes | None]


class InstanceCache:
    """All instances of a task, and what it notes to undo the current unit and for the next commit.

    ``queues`` by time domain and actor. ``reload`` decodes every touched instance again. ``reading``: for
    queries, which change nothing.
    """

    context: Context[Any]
    tables: tuple[Any, ...]
    """The ``actor_table.Table`` of each actor, by its number."""

    def __init__(
        self,
        plan: Plan,
        partition: int,
        state: StateReader,
        queues: Sequence[Sequence[TimerQueue]],
        *,
        cache_bytes: int,
        reload: bool = False,
        reading: bool = False,
    ) -> None:
        self.state, self.queues = state, queues
        self.partition, self.partitions = partition, plan.partitions
        self.cache_bytes, self.reload, self.reading = cache_bytes, reload, reading
        self.unit = CurrentUnit()
        self.epoch: int = 1
        self.undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self.touched: list[tuple[Any, Any, bytes | None]] = []
        """Table, key and image of each instance that the unit has touched."""
        self.cleared: dict[tuple[int, Any], None] = {}
        """Actor and key of each ``clear`` call."""
        self.touched_collections: list[Entries] = []
        self.dirty_collections: dict[Entries, None] = {}
        self.shared: dict[str, Any] = {}
        """The views of broadcast tables, by topic."""
        self.armed: Rows = {}
        """Index rows of expiring entries, and of timers that came up too early, set or removed since the last commit.
        """

    def expiry(self, domain: int, ttl_ms: int) -> int:
        """The time at which a value written now expires.

        In a timer handler it counts from the timer's own time, however far the watermark has advanced when it
        fires: a late firing must not affect the result. For a late event it counts from the watermark:
        otherwise the value would expire at once.
        """
        context = self.context
        if domain == rows.PROCESSING_TIME:
            return context.now + ttl_ms
        if self.unit.fired is not None:
            return context.event_time + ttl_ms
        return max(context.event_time, context.watermark) + ttl_ms

    def arm(self, domain: int, time_ms: int, actor: ActorPlan, key: bytes, name: bytes) -> None:
        """Schedule the check of an entry for the time when it expires, or of a timer that was moved to a later time."""
        self.armed[rows.index_row(domain, time_ms, actor.name.encode(), key, name)] = b""
        self.queues[domain][actor.index].push(time_ms, key, name)

    def disarm(self, domain: int, time_ms: int, actor: ActorPlan, key: bytes, name: bytes) -> None:
        """Remove an index row that has come up."""
        self.armed[rows.index_row(domain, time_ms, actor.name.encode(), key, name)] = None

    def begin(self) -> None:
        """Begin a unit: drop the undo records of the unit before."""
        self.undo.clear()
        self.touched.clear()
        if self.cleared:
            self.cleared.clear()

    def seal_collections(self) -> None:
        """Seal the entries that the handler touched."""
        for entries in self.touched_collections:
            entries.seal()
        self.touched_collections.clear()

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
        first: dict[tuple[int, Any], tuple[Any, bytes | None]] = {}
        for table, key, image in self.touched:
            first.setdefault((table.plan.index, key), (table, image))
        for (_, key), (table, image) in first.items():
            table.restore(key, image)
        self.begin()

    def collect(self) -> tuple[Rows, Rows]:
        """The changes since the last commit: the rows, and those of the index."""
        batch: Rows = {}
        index: Rows = dict(self.armed)
        for table in self.tables:
            table.verify()
            table.collect(batch, index)
        for entries in self.dirty_collections:
            entries.collect(batch)
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
