"""Broadcast topics: each task has a table of the whole topic, which its actors look up.

    rules = app.topic("rules", Rule, broadcast=True)

    class Account(tr.Actor):
        rules: tr.Shared[str, Rule] = tr.shared(rules)

Each task copies the records that it reads to every partition of ``<app>.<topic>.broadcast``. The record key of a copy is a *token*, a
key that belongs to the partition. The actor with the topic's name has one instance per task, under that token. When a task
has read its partition to the end for the first time, it sends a *mark*: a copy without a value. With the marks of all tasks
a table is complete; before, drivers take no other records (``FirstStart``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any, TypeVar

import msgspec

from tailrace.core.declare.actor import Actor, ActorMeta, declaration_of
from tailrace.core.declare.components import Component, context_of
from tailrace.core.declare.context import Context
from tailrace.core.declare.declarations import Declarations
from tailrace.core.declare.event_time import RECORD_TIME
from tailrace.core.declare.handlers import process
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Topic
from tailrace.core.errors import DefinitionError
from tailrace.core.handling.collections import MapState
from tailrace.core.names import broadcast_of, by_key_of
from tailrace.core.records import RawOutput
from tailrace.core.values.partitioner import partition_of

E = TypeVar("E")
K = TypeVar("K")
V = TypeVar("V")


class Copy(msgspec.Struct, frozen=True):
    """A record of a broadcast topic on its way to a task. Without a value: the mark that ``partition`` was read to its end."""

    partition: int
    value: bytes | None = None


class Table(Actor):
    """The base of the actors that keep the tables."""


@cache
def tokens(partitions: int) -> tuple[bytes, ...]:
    """For each partition a key that belongs to it."""
    found: dict[int, bytes] = {}
    for number in count():
        token = b"%d" % number
        found.setdefault(partition_of(token, partitions), token)
        if len(found) == partitions:
            return tuple(found[one] for one in range(partitions))
    raise AssertionError


def forwarded(app: Declarations, taken: set[str]) -> dict[str, Topic[Any, Any]]:
    """The topics that inputs are forwarded to, by the names of the inputs. ``taken``: the topics with handlers.

    Raises DefinitionError if another topic has such a name.
    """
    found: dict[str, Topic[Any, Any]] = {}
    for name, topic in app.topics.items():
        if not (topic.settings.repartition and name in taken):
            continue
        if topic.settings.broadcast:
            found[name] = copies_of(topic, broadcast_of(app.name, name))
        else:
            found[name] = topic.internal(by_key_of(app.name, name))
        if (hidden := found[name].name) in app.topics:
            raise DefinitionError(
                f"the topic {hidden!r} has the name of the internal topic through which {name!r} is forwarded",
                hint="Rename it.",
            )
    return found


def forwarding(topic: Topic[Any, Any], to: Topic[Any, Any], partitions: int) -> Callable[..., None]:
    """The function that forwards the events of a topic."""
    plain = topic.internal(topic.name)

    def copy(event: Any, ctx: Context[Any]) -> None:
        topic.encode_key(event)  # a record without a key that can be used fails here, where it was read
        for name, key, value, time_ms, _ in copies(
            to, Copy(-1, plain.encode_emitted(event)), partitions, ctx.event_time
        ):
            ctx._unit.write(name, key, value, time_ms)

    def forward(event: Any, ctx: Context[Any]) -> None:
        ctx._unit.pass_on(to, event, ctx.event_time)

    return copy if topic.settings.broadcast else forward


def copies_of(topic: Topic[Any, Any], name: str) -> Topic[Any, Any]:
    """The internal topic of the copies."""
    settings = replace(
        topic.internal(name).settings, format="msgpack", key=None, time_kind="record", event_time=RECORD_TIME
    )
    return Topic(
        topic.app, name, Copy, partitions=topic.partitions, key_type=bytes, key_of=None, settings=settings
    )


def copies(to: Topic[Any, Any], copy: Copy, partitions: int, time_ms: int) -> Iterator[RawOutput]:
    """The records of a copy, or of a mark, for all partitions."""
    value = to.encode(copy)
    return ((to.name, token, value, time_ms, ()) for token in tokens(partitions))


def add_table(app: Declarations, topic: Topic[Any, Any]) -> None:
    """Add the actor with the table of a broadcast topic. Raises DefinitionError if its events can be changed."""
    if not topic.immutable:
        raise DefinitionError(
            f"the topic {topic.name!r} is broadcast, but its events ({topic.type_name}) can be changed: all keys of a task share them",
            hint="Make it a struct with frozen=True, with tuples instead of lists and dicts.",
        )
    plain = topic.internal(topic.name)
    key_of: Any = topic.key_of
    entries: Any = MapState

    def copied(self: Any, copy: Copy, _ctx: Context[bytes]) -> None:
        if copy.value is None:
            self.read = tuple(sorted({*self.read, copy.partition}))
        else:
            event = plain.decode(copy.value)
            self.entries[key_of(event)] = event

    copied.__annotations__ = {}
    body: dict[str, Any] = {
        "__module__": __name__,
        "__annotations__": {"read": tuple[int, ...], "entries": entries[topic.key_type, topic.type]},
        "read": (),
        "copied": process(topic)(copied),
    }
    app.actors[topic.name] = ActorMeta(topic.name, (Table,), body)
    app.emits[topic.name] = ()


def check_broadcast(app: Declarations) -> None:
    """Refuse handlers of broadcast topics, and tables of topics that are not broadcast. Raises DefinitionError."""
    others = [one for one in app.actors.values() if not issubclass(one, Table)]
    of_actors = [one for cls in others for one in declaration_of(cls).handlers]
    for handler in (*app.functions.values(), *of_actors):
        for edge in handler.edges:
            if isinstance(edge, Topic) and edge.settings.broadcast:
                raise DefinitionError(
                    f"{handler.where} takes {edge.name!r}, which is broadcast: every task has it as a table",
                    hint=f"Look it up: app.lookup, or in an actor a field of type tr.Shared with the default tr.shared({edge.name}).",
                )
    for cls in others:
        for attr, one in declaration_of(cls).components.items():
            if isinstance(one, SharedField) and app.topics.get(one.topic.name) is not one.topic:
                raise DefinitionError(
                    f"{cls.__name__}.{attr} shows {one.topic.name!r}, which was declared in another app",
                    hint="Declare it in this app as well, and use that.",
                )


class Shared(Mapping[K, V]):
    """The table of a broadcast topic: the newest event of each key. It is the same for all keys of a task, and read only.

    It changes when a record of the topic arrives, between two events of the app. Iteration is in the order of keys. It and ``len`` read
    the whole table: look up what you need by key.
    """

    __slots__ = ("_table", "_token")

    def __init__(self, table: Any, token: bytes) -> None:
        self._table, self._token = table, token

    def _entries(self) -> MapState[K, V]:
        found: MapState[K, V] = self._table.instance(self._token).entries
        return found

    def __getitem__(self, key: K) -> V:
        return self._entries()[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())


class SharedField(Component):
    """A field that shows the table of a broadcast topic."""

    def __init__(self, topic: Topic[Any, Any]) -> None:
        self.topic = topic

    def parts(self) -> Mapping[str, tuple[Any, Any]]:
        """None: the table belongs to another actor."""
        return {}

    def view(self, instance: Any) -> Shared[Any, Any]:
        """The table of the instance's task."""
        context_of(instance)
        cells: Any = instance._tr_parts.table.cells
        found: Any = cells.shared.get(self.topic.name)
        if found is None:
            table = next(one for one in cells.tables if one.plan.name == self.topic.name)
            number: int = cells.partition
            found = cells.shared[self.topic.name] = Shared[Any, Any](table, tokens(cells.partitions)[number])
        if cells.reading:
            found._table.live.clear()  # each answer is read from the store
        return found  # type: ignore[no-any-return]  # only these are kept there


def shared(topic: Topic[E, K]) -> Shared[K, E]:
    """Declare a field that shows the table of a broadcast topic: ``rules: tr.Shared[str, Rule] = tr.shared(rules)``.

    Raises DefinitionError if the topic was not declared with ``broadcast=True``.
    """
    given: Any = topic
    if not isinstance(given, Topic) or not topic.settings.broadcast:
        raise DefinitionError(
            f"tr.shared was given {topic!r}, which is not a broadcast topic",
            hint="Declare it with broadcast=True: app.topic(..., broadcast=True).",
        )
    field: Any = SharedField(topic)
    return field  # type: ignore[no-any-return]  # the metaclass replaces it by what it shows


class FirstStart:
    """What a task knows of its tables, which have it in their state. ``tables``: of all actors, by number."""

    def __init__(self, plan: Plan, partition: int, tables: tuple[Any, ...]) -> None:
        self._plan, self._partition, self._tables = plan, partition, tables
        copied = [one for one in plan.inputs if one.broadcast and not one.repartitioned]
        self._inputs = {one.name: one for one in copied}
        self._incomplete = [route.operator for one in copied for route in one.routes[:1]]
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
                and not any(self._partition in self._marked(one.operator) for one in to.routes)
            ):
                found += copies(to.topic, Copy(self._partition), self._plan.partitions, max(0, now_ms))
        return found

    def _marked(self, actor: int) -> tuple[int, ...]:
        """The tasks whose marks a table has."""
        token = tokens(self._plan.partitions)[self._partition]
        found: tuple[int, ...] = self._tables[actor].instance(token).read
        return found
