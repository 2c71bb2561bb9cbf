"""A task on a store in memory, which takes decoded events without a log, commits, and starts again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.actor_table import Table
from tailrace.core.engine.settings import CommitBatch
from tailrace.core.engine.task import Task, TaskSettings
from tailrace.core.records import Head, InputRecord, Output
from tailrace.state import MemoryStore


def heads_of(task: Task, events: Sequence[Any], first_offset: int) -> list[Head]:
    """Heads of events of the first input at consecutive offsets, as if records had been decoded."""
    plan = task.plan.inputs[0]
    assert plan.key_of is not None
    return [
        (
            offset,
            0 if plan.time_of is None else plan.time_of(event),
            plan.key_of(event),
            event,
            InputRecord(offset, 0, b"", b""),
        )
        for offset, event in enumerate(events, first_offset)
    ]


class Driven:
    """A store, and the task that is on it now."""

    def __init__(self, plan: Plan, store: MemoryStore | None = None, **settings: Any) -> None:
        self.plan, self.store = plan, MemoryStore() if store is None else store
        self.settings = TaskSettings(**settings)
        self.offset = 0
        self.outputs: list[Output] = []
        self.start(plan)

    def start(self, plan: Plan | None = None, *drop: str) -> Task:
        """Make the task from the store: of the same code, or of another version."""
        self.plan = self.plan if plan is None else plan
        self.task = Task(
            self.plan, 0, self.store, self.store.cut, lineage=b"x", settings=self.settings, drop=drop
        )
        self.drain()
        return self.task

    def take(self, *events: Any) -> None:
        heads = heads_of(self.task, events, self.offset)
        self.offset += len(heads)
        taken = 0
        while taken < len(heads):
            taken = self.task.run(0, heads, taken)
            self.drain()

    def drain(self) -> None:
        while self.task.draining:
            self.task.drain()

    def commit(self) -> CommitBatch:
        self.outputs += self.task.take_outputs()
        batch = self.task.commit_batch()
        self.store.write(batch.rows | batch.index_rows, batch.cut)
        self.task.committed()
        return batch

    def table(self, actor: str) -> Table:
        """The live instances of an actor."""
        tables: tuple[Table, ...] = self.task._cells.tables
        return next(one for one in tables if one.plan.name == actor)

    def state(self) -> dict[bytes, bytes]:
        """The committed rows of actors."""
        return {row: value for row, value in self.store.rows() if row[:1] == rows.STATE}
