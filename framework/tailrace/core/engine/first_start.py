"""When the tables of broadcast topics are complete for the first time: nothing else is taken before. See ``declare.broadcast``."""

from __future__ import annotations

from typing import Any

from tailrace.core.declare.broadcast import Copy, copies, tokens
from tailrace.core.declare.plan import Plan
from tailrace.core.records import RawOutput


class FirstStart:
    """What a task knows of its tables, which have it in their state. ``tables``: of all actors, by number."""

    def __init__(self, plan: Plan, partition: int, tables: tuple[Any, ...]) -> None:
        self._plan, self._partition, self._tables = plan, partition, tables
        copied = [one for one in plan.inputs if one.broadcast and not one.repartitioned]
        self._inputs = {one.name: one for one in copied}
        self._incomplete = [one.routes[0].operator for one in copied]
        """The actors with tables that are not complete, as far as it is known."""

    def awaits(self, number: int) -> bool:
        """Whether no record of an input may be taken yet: a table is not complete."""
        if not self._incomplete or self._plan.inputs[number].broadcast:
            return False
        every = self._plan.partitions
        self._incomplete = [one for one in self._incomplete if len(self._marked(one)) < every]
        return bool(self._incomplete)

    def marks(self, source: int, now_ms: int) -> list[RawOutput]:
        """The marks to send when a source has become idle, until the task's own mark has come back."""
        found: list[RawOutput] = []
        inputs = self._plan.inputs
        for route in inputs[source].routes if source < len(inputs) and inputs[source].repartitioned else ():
            to = self._inputs.get(route.name)
            if (
                to is not None
                and to.topic is not None
                and self._partition not in self._marked(to.routes[0].operator)
            ):
                found += copies(to.topic, Copy(self._partition), self._plan.partitions, max(0, now_ms))
        return found

    def _marked(self, actor: int) -> tuple[int, ...]:
        """The tasks whose marks a table has."""
        token = tokens(self._plan.partitions)[self._partition]
        found: tuple[int, ...] = self._tables[actor].instance(token).read
        return found
