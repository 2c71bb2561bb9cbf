"""Versions of an actor, one after another on the state that the one before has left."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, cast

import msgspec

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.query import QueryReader
from tailrace.core.engine.task import Task, TaskSettings
from tailrace.core.records import InputRecord
from tailrace.state import MemoryStore

Fields = dict[str, tuple[Any, Any]]
"""Of an actor, by attribute: type and default, None for a collection or for a field without default."""

Restart = Literal["local", "restored"]


class Set(msgspec.Struct, frozen=True):
    """An event that sets fields (``name``), entries (``name[entry]``), appends (``name[]``), deletes (None)
    or clears.
    """

    key: str
    at: int
    values: dict[str, Any] = {}
    clear: bool = False


def plan_of(fields: Fields) -> Plan:
    """The plan of ``app_of`` these fields."""
    return app_of(fields).plan()


def app_of(fields: Fields) -> tr.App:
    """An app with one actor that has these fields."""
    app = tr.App("versions", partitions=1)
    topic = app.topic("told", Set, key="key", event_time="at")

    def take(self: Any, event: Set, ctx: tr.Context[str]) -> None:
        if event.clear:
            ctx.clear()
        for place, value in event.values.items():
            attr, _, entry = place.removesuffix("]").partition("[")
            if place.endswith("[]"):
                getattr(self, attr).append(value)
            elif not entry:
                kind = fields[attr][0]
                setattr(self, attr, value if kind in (int, float, str) else msgspec.convert(value, kind))
            elif value is None:
                getattr(self, attr).pop(entry, None)
            else:
                getattr(self, attr)[entry] = value

    body = {
        "__annotations__": {attr: kind for attr, (kind, _) in fields.items()},
        "__module__": __name__,
        "take": tr.process(topic)(take),
        **{attr: default for attr, (_, default) in fields.items() if default is not None},
    }
    app.actor(name="Plane")(cast(Any, type(tr.Actor))("Plane", (tr.Actor,), body))
    return app


class Lives:
    """A store, what the changelog has, and the task that is on them now."""

    def __init__(self, plan: Plan, **settings: Any) -> None:
        self.store, self.changelog = MemoryStore(), dict[bytes, bytes]()
        self.settings = TaskSettings(**settings)
        self.offset = 0
        self.start(plan)

    def start(self, plan: Plan, how: Restart = "local", drop: Collection[str] = ()) -> Task:
        """Run this version, on the store as it is or as a restore from the changelog makes it."""
        if how == "restored" and self.store.cut is not None:
            restored = MemoryStore()
            index: dict[bytes, bytes | None] = {}
            for row, value in self.changelog.items():
                index |= rows.derived_index_rows(row, None, value)
            restored.write(cast("dict[bytes, bytes | None]", self.changelog) | index, self.store.cut)
            self.store = restored
        self.plan = plan
        self.task = Task(plan, 0, self.store, self.store.cut, lineage=b"x", settings=self.settings, drop=drop)
        self._drain()
        return self.task

    def report(self, *events: Set) -> None:
        heads = self.task.heads(0, events, self.offset)
        self.offset += len(heads)
        records = [(*head[:4], InputRecord(head[0], 0, b"", b"")) for head in heads]
        taken = 0
        while taken < len(records):
            taken = self.task.run(0, records, taken)
            self._drain()

    def clock(self, now_ms: int) -> None:
        self.task.clock(now_ms)
        self._drain()

    def _drain(self) -> None:
        while self.task.draining:
            self.task.drain()

    def commit(self) -> None:
        self.task.take_outputs()
        batch = self.task.commit_batch()
        self.store.write(batch.rows | batch.index_rows, batch.cut)
        for row, value in batch.rows.items():
            if value is None:
                self.changelog.pop(row, None)
            else:
                self.changelog[row] = value
        self.task.committed()

    def state(self) -> dict[bytes, bytes]:
        """The committed rows of actors."""
        found = {row: value for row, value in self.store.rows() if row[:1] == rows.STATE}
        assert found == {row: value for row, value in self.changelog.items() if row[:1] == rows.STATE}
        return found

    def instance(self, key: str) -> Any:
        """What a query reads of a key, None if nothing is stored of it."""
        return QueryReader(self.plan, 0, self.store).instance(self.plan.actors[0].cls, key)
