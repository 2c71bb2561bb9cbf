"""The records that a task keeps to undo the current unit, and to collect the changes since the last commit.

The instances, collections and timers of a task write into these records. ``instance_cache`` has the theory
and uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.core import rows
from tailrace.core.declare.context import Context
from tailrace.core.declare.current_unit import CurrentUnit
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine.timers import TimerQueue
from tailrace.core.handling.entries import Entries
from tailrace.core.storage import StateReader

Rows = dict[bytes, bytes | None]


class UnitBooks:
    """The records of one task: for undoing a unit, and for the next commit."""

    __slots__ = (
        "armed",
        "cleared",
        "context",
        "dirty_collections",
        "epoch",
        "partition",
        "partitions",
        "queues",
        "reading",
        "reload",
        "state",
        "touched",
        "touched_collections",
        "undo",
        "unit",
    )

    context: Context[Any]

    def __init__(
        self,
        plan: Plan,
        partition: int,
        state: StateReader,
        queues: Sequence[Sequence[TimerQueue]],
        *,
        reload: bool,
        reading: bool,
    ) -> None:
        self.state = state
        self.partition = partition
        self.partitions = plan.partitions
        self.queues = queues
        self.reload = reload
        self.reading = reading
        self.unit = CurrentUnit()
        self.epoch: int = 1
        self.undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self.touched: list[tuple[Any, Any, bytes | None]] = []
        """Table, key and image of each instance that the unit has touched."""
        self.cleared: dict[tuple[int, Any], None] = {}
        """Actor and key of each ``clear`` call."""
        self.touched_collections: list[Entries] = []
        self.dirty_collections: dict[Entries, None] = {}
        self.armed: Rows = {}
        """Index rows of expiring entries, set or removed since the last commit."""

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
        """Schedule the check of an entry for the time when it expires."""
        self.armed[rows.index_row(domain, time_ms, actor.name.encode(), key, name)] = b""
        self.queues[domain][actor.index].push(time_ms, key, name)

    def disarm(self, domain: int, time_ms: int, actor: ActorPlan, key: bytes, name: bytes) -> None:
        """Remove an expiry that has come up."""
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
