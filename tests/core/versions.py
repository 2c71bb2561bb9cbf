"""Versions of an actor, one after another on the state that the one before has left."""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.query import QueryReader
from tailrace.core.engine.settings import CommitBatch
from tailrace.core.engine.task import Task
from tailrace.state import MemoryStore
from tests.core.driven import Driven

Fields = dict[str, tuple[Any, Any]]
"""Of an actor, by attribute: type and default, None for a collection or for a field without default."""

Restart = Literal["local", "restored"]


class Set(msgspec.Struct, frozen=True):
    """An event that sets fields (``name``), entries (``name[entry]``), appends (``name[]``), deletes (None)
    or clears; then it may fail.
    """

    key: str
    at: int
    values: dict[str, Any] = {}
    clear: bool = False
    fails: bool = False


def plan_of(fields: Fields, on_error: Any = "stop") -> Plan:
    """The plan of ``app_of`` these fields."""
    return app_of(fields, on_error).plan()


def app_of(fields: Fields, on_error: Any = "stop") -> tr.App:
    """An app with one actor that has these fields."""
    app = tr.App("versions", partitions=1, on_error=on_error)
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
        if event.fails:
            raise ValueError("told to fail")

    body = {
        "__annotations__": {attr: kind for attr, (kind, _) in fields.items()},
        "__module__": __name__,
        "take": tr.process(topic)(take),
        **{attr: default for attr, (_, default) in fields.items() if default is not None},
    }
    app.actor(name="Plane")(cast(Any, type(tr.Actor))("Plane", (tr.Actor,), body))
    return app


class Lives(Driven):
    """A store, what the changelog has, and the task that is on them now."""

    def __init__(self, plan: Plan, **settings: Any) -> None:
        self.changelog = dict[bytes, bytes]()
        super().__init__(plan, **settings)

    def restart(self, plan: Plan, how: Restart, *drop: str) -> Task:
        """Run this version, on the store as it is or as a restore from the changelog makes it."""
        if how == "restored" and self.store.cut is not None:
            restored = MemoryStore()
            index: dict[bytes, bytes | None] = {}
            for row, value in self.changelog.items():
                index |= rows.derived_index_rows(row, None, value)
            restored.write(cast("dict[bytes, bytes | None]", self.changelog) | index, self.store.cut)
            self.store = restored
        return self.start(plan, *drop)

    def clock(self, now_ms: int) -> None:
        self.task.clock(now_ms)
        self.drain()

    def commit(self) -> CommitBatch:
        batch = super().commit()
        for row, value in batch.rows.items():
            if value is None:
                was = self.changelog.pop(row, None)
                is_value = row[:1] == rows.STATE and not rows.read_state_row(row).rest
                assert was is not None or not is_value, f"a deletion of what was not there: {row!r}"
            else:
                self.changelog[row] = value
        return batch

    def state(self) -> dict[bytes, bytes]:
        """The committed rows of actors."""
        found = super().state()
        assert found == {row: value for row, value in self.changelog.items() if row[:1] == rows.STATE}
        return found

    def instance(self, key: str) -> Any:
        """What a query reads of a key, None if nothing is stored of it."""
        return QueryReader(self.plan, 0, self.store).instance(self.plan.actors[0].cls, key)
