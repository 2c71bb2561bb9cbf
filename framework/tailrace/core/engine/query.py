"""Queries on an actor's committed state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.core.declare.context import Context
from tailrace.core.declare.context_timers import KeyTimer, key_timers
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine.actor_table import give_tables
from tailrace.core.engine.evolution import past_of
from tailrace.core.engine.failure import FAILURES
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.instance_extras import EarlierDeclaration
from tailrace.core.errors import QueryError
from tailrace.core.storage import StateReader
from tailrace.core.suggestions import did_you_mean


class QueryReader:
    """Reads the committed instances of one task. Returns copies: changing them does not change the state.

    The declarations that wrote the state are read once: after another version of the app has written its own, make another reader.
    """

    def __init__(self, plan: Plan, partition: int, state: StateReader) -> None:
        self._plan = plan
        self._partition = partition
        self._state = state
        self._past: Mapping[str, EarlierDeclaration] | None = None
        self._cells: InstanceCache | None = None

    def instance(self, actor: type[Any], key: Any) -> Any:
        """The instance of a key, or None if the key has no instance. Its map and list states can be read."""
        found = self._load(self._plan.actor_of(actor), key)
        return found[1] if found is not None else None

    def timers(self, actor: type[Any], key: Any) -> dict[tuple[str, str | int], int]:
        """A key's pending timers: ("event" or "processing", name, or time if unnamed) -> due time in ms."""
        found = self.key_timers(actor, key)
        return {(one.domain, one.due if one.name is None else one.name): one.due for one in found}

    def key_timers(self, actor: type[Any], key: Any) -> list[KeyTimer]:
        """A key's pending timers with their payloads, by the time at which they are due."""
        found = self._load(self._plan.actor_of(actor), key)
        return [] if found is None else key_timers(found[0].plan, found[0].parts(found[1]).timers)

    def query(self, actor: type[Any], key: Any, name: str, /, *arguments: Any, **named: Any) -> Any:
        """Run a query on an instance; it never changes the state. Raises QueryError if the query or the key
        does not exist, or if the query fails.
        """
        plan = self._plan.actor_of(actor)
        call = plan.queries.get(name)
        if call is None:
            known = ", ".join(sorted(plan.queries)) or "none"
            hint = did_you_mean(name, plan.queries, f"It has: {known}.")
            raise QueryError(f"{plan.name} has no query {name!r}", actor=plan.name, hint=hint)
        found = self._load(plan, key)
        if found is None:
            raise QueryError(f"{plan.name} has no instance of this key", actor=plan.name, query=name, key=key)
        table, instance = found
        before = table.encode(instance)
        try:
            answer = call(instance, *arguments, **named)
        except FAILURES as error:
            raise QueryError(
                f"the query failed with {type(error).__name__}: {error}", actor=plan.name, query=name, key=key
            ) from error
        entries = table.parts(instance).collections()
        if table.encode(instance) != before or any(one.is_changed_in_place for one in entries):
            raise QueryError(
                "the query has changed the instance",
                actor=plan.name,
                query=name,
                key=key,
                hint="Queries only read; the change was dropped. Change state in a handler.",
            )
        return answer

    def _load(self, plan: ActorPlan, key: Any) -> tuple[Any, Any] | None:
        if self._past is None:
            self._past = past_of(self._plan, self._state)
        if self._cells is None:
            self._cells = InstanceCache(
                self._plan, self._partition, self._state, (), cache_bytes=1 << 20, reading=True
            )
            give_tables(self._cells, self._plan, self._past)
            self._cells.context = Context(self._plan, b"", 0)
        table = self._cells.tables[plan.index]
        self._cells.begin()
        table.live.clear()  # each answer is read from the store
        instance = table.load(key)
        return None if table.is_absent(instance) else (table, instance)
