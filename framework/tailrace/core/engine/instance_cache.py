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
from typing import TYPE_CHECKING, Any

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.actor_table import Rows, Table
from tailrace.core.engine.instance_extras import EarlierDeclaration
from tailrace.core.engine.timers import TimerQueue
from tailrace.core.handling.entries import MISSING, Entries
from tailrace.core.storage import StateReader

if TYPE_CHECKING:
    from tailrace.core.handling.context import Context


class InstanceCache:
    """All instances of a task, and the unit that is under way."""

    __slots__ = (
        "armed",
        "cache_bytes",
        "cleared",
        "context",
        "dirty_collections",
        "epoch",
        "partition",
        "partitions",
        "past",
        "queues",
        "reading",
        "reload",
        "state",
        "tables",
        "touched",
        "touched_collections",
        "undo",
    )

    context: Context[Any]

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
        self.past: Mapping[str, EarlierDeclaration] = {} if past is None else past
        self.state = state
        self.partition = partition
        self.partitions = plan.partitions
        self.queues = queues
        self.cache_bytes = cache_bytes
        self.reload = reload
        self.reading = reading
        self.epoch = 1
        self.undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self.touched: list[tuple[Table, Any, bytes | None]] = []
        self.cleared: set[tuple[int, Any]] = set()
        self.touched_collections: list[Entries] = []
        self.dirty_collections: dict[Entries, None] = {}
        self.armed: Rows = {}
        """Index rows of entries that expire, set or gone since the last commit."""
        self.tables = tuple(Table(self, actor, checked=checked) for actor in plan.actors)

    def expiry(self, domain: int, ttl_ms: int) -> int:
        """When what is written now expires.

        A timer writes as of its own time, however far the watermark has come when it fires: a firing that is later than
        it might have been shows in nothing. A late event writes as of the watermark: else its value would be gone at once.
        """
        context = self.context
        if domain == rows.PROCESSING_TIME:
            return context.now + ttl_ms
        if context._fired is not None:
            return context.event_time + ttl_ms
        return max(context.event_time, context.watermark) + ttl_ms

    def arm(self, domain: int, time_ms: int, table: Table, key: bytes, name: bytes) -> None:
        """Have an entry looked at when it expires."""
        self.armed[rows.index_row(domain, time_ms, table.plan.name.encode(), key, name)] = b""
        table.push_timer(domain, time_ms, key, name)

    def disarm(self, domain: int, time_ms: int, table: Table, key: bytes, name: bytes) -> None:
        """An expiry has come up."""
        self.armed[rows.index_row(domain, time_ms, table.plan.name.encode(), key, name)] = None

    def begin(self) -> None:
        """A unit begins: what the one before noted for its undoing is no longer needed."""
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
