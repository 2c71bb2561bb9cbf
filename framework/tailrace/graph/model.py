"""The graph of one or several apps: topics and streams, actors and functions, and the edges between them.

A topic that two apps name is one node: this connects the apps of a chain. Every other node belongs to one app. The ``id`` of a
node consists of its kind and name; that of a table is that of its topic. Edges:

==============  ====================================================================================
takes           from a topic or stream to the actor or function that handles it
emits           from an actor or function to a topic or stream that its code may emit to
sends           from an actor or function to the inbox of an app; ``takes`` leads from there to the actors
forwards        from a topic to the internal topic that repartitions or broadcasts it
looks-up        from the table of a broadcast topic to an actor that looks it up
late            from a topic to the topic that receives its late events
dead-letters    from a topic to the dead-letter topic of its app, for events that cannot be handled
==============  ====================================================================================

A ``takes`` edge may be *feedback*: the events of the topic follow from what its reader emits. The reader does not wait for
such a topic, and its events are never late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from tailrace.core.declare.actor import declaration_of
from tailrace.core.declare.broadcast import SharedField
from tailrace.core.declare.emissions import emissions_of
from tailrace.core.declare.plan import ActorPlan, InputPlan, OperatorPlan, Plan, Route
from tailrace.core.declare.topic import Edge as Target
from tailrace.core.declare.topic import Stream, Topic
from tailrace.core.durations import spelled
from tailrace.core.values.types import spell

NodeKind = Literal["topic", "table", "stream", "actor", "function", "inbox", "dead-letters"]
EdgeKind = Literal["takes", "emits", "sends", "forwards", "looks-up", "late", "dead-letters"]


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node. ``about`` has short facts for people."""

    id: str
    kind: NodeKind
    name: str
    apps: tuple[str, ...]
    partitions: int | None = None
    type: str | None = None
    """Type of the events, for a topic or stream."""
    key: str | None = None
    about: tuple[str, ...] = ()


class Edge(msgspec.Struct, frozen=True, omit_defaults=True):
    """An edge between two nodes, by their ids. ``handlers`` are the methods that it stands for."""

    source: str
    target: str
    kind: EdgeKind
    handlers: tuple[str, ...] = ()
    feedback: bool = False


class AppNote(msgspec.Struct, frozen=True):
    """Facts about an app as a whole. ``own_topics`` are the topics that only this app uses."""

    name: str
    version: str
    partitions: int
    on_error: str
    own_topics: tuple[str, ...]


class Graph(msgspec.Struct, frozen=True):
    """Nodes and edges, sorted and without duplicates."""

    apps: tuple[AppNote, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def as_json(self) -> bytes:
        """The graph in JSON, formatted."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def graph_of(plans: Iterable[Plan]) -> Graph:
    """The graph of one or several apps."""
    drawn = _Drawn()
    apps: list[AppNote] = []
    for plan in plans:
        drawn.add(plan)
        own = (plan.changelog_topic, plan.tape_topic, plan.dead_letters_topic)
        apps.append(AppNote(plan.app, plan.version, plan.partitions, plan.on_error, own))
    return Graph(tuple(apps), drawn.nodes(), drawn.edges())


class _Drawn:
    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._edges: dict[tuple[str, str, EdgeKind], dict[str, None]] = {}
        self._feedback: set[tuple[str, str]] = set()
        self._plan: Plan

    def nodes(self) -> tuple[Node, ...]:
        order = list(NodeKind.__args__)  # type: ignore[attr-defined]  # a Literal has them
        return tuple(sorted(self._nodes.values(), key=lambda node: (order.index(node.kind), node.name)))

    def edges(self) -> tuple[Edge, ...]:
        return tuple(
            Edge(at, to, kind, tuple(handlers), kind == "takes" and (at, to) in self._feedback)
            for (at, to, kind), handlers in sorted(self._edges.items(), key=lambda one: one[0])
        )

    def add(self, plan: Plan) -> None:
        self._plan = plan
        inputs = {one.name: one for one in plan.inputs}
        for topic in plan.topics.values():
            self._topic(topic, inputs.get(topic.name))
        for stream in plan.streams:
            self._node(_stream(plan, stream), "stream", stream.name, type=stream.type_name)
        for actor in plan.actors:
            id_ = _id("actor", plan.app, actor.name)
            self._node(
                id_,
                "actor",
                actor.name,
                about=(
                    *(f"{part}: {what}" if part else what for part, what in actor.schema.meaning.items()),
                    *_facts(actor),
                    *_order(plan.operators[actor.index]),
                ),
            )
        if plan.has_messages:
            id_ = _id("inbox", plan.inbox_topic)
            self._node(id_, "inbox", plan.inbox_topic, partitions=plan.partitions)
        for one in plan.inputs:
            self._input(one)
        for stream, routes in zip(plan.streams, plan.routes_of_stream, strict=True):
            for route in routes:
                self._taken(_stream(plan, stream), route)
        for actor in plan.actors:
            for message in actor.messages.values():
                self._taken(_id("inbox", plan.inbox_topic), message.route)
            for route in (*actor.event_timers.values(), *actor.processing_timers.values()):
                self._emitted(route)
            for field in declaration_of(actor.cls).components.values():
                if isinstance(field, SharedField):
                    app = plan.app
                    self._edge(_id("actor", app, field.topic.name), _id("actor", app, actor.name), "looks-up")
        for operator in plan.operators:
            self._emits(operator)

    def _topic(self, topic: Topic[Any, Any], taken: InputPlan | None) -> None:
        app, id_ = self._plan.app, _id("topic", topic.name)
        key = None if topic.key_of is None else f"{_key(topic)}: {spell(topic.key_type)}"
        about = () if taken is None else _times(taken)
        partitions = self._plan.partitions if taken is not None else topic.partitions
        known = self._nodes.get(id_)
        if known is not None:
            self._nodes[id_] = msgspec.structs.replace(
                known,
                apps=(*known.apps, app),
                partitions=partitions if taken is not None else known.partitions,
                about=(*known.about, *(fact for fact in about if fact not in known.about)),
            )
            return
        kind: NodeKind = "table" if topic.is_table else "topic"
        self._node(id_, kind, topic.name, partitions=partitions, type=topic.type_name, key=key, about=about)

    def _input(self, one: InputPlan) -> None:
        if one.is_inbox:
            return
        source = _id("topic", one.name)
        for route in one.routes:
            if one.repartitioned:
                self._edge(source, _id("topic", route.name), "forwards")
            else:
                self._taken(source, route)
                if one.name in self._plan.operators[route.operator].feedback:
                    self._feedback.add((source, self._owner(route)))
        if one.late_topic is not None:
            self._edge(source, _id("topic", one.late_topic.name), "late")
        if one.on_error != "stop":
            name = self._plan.dead_letters_topic
            self._node(_id("dead-letters", name), "dead-letters", name, partitions=self._plan.partitions)
            self._edge(source, _id("dead-letters", name), "dead-letters")

    def _taken(self, source: str, route: Route) -> None:
        self._edge(source, self._owner(route), "takes", route.name)
        self._emitted(route)

    def _emitted(self, route: Route) -> None:
        plan, owner = self._plan, self._owner(route)
        cls = None if route.target is None else route.target.cls
        takers = [actor.cls for actor in plan.actors if actor.messages]
        found = emissions_of([route.call], cls, plan.topics.values(), plan.streams, takers)
        allowed = plan.operators[route.operator]
        for one in found.edges & allowed.emits:
            self._edge(owner, self._target(one), "emits", route.name)
        if found.actors & allowed.sends:
            self._edge(owner, _id("inbox", plan.inbox_topic), "sends", route.name)

    def _emits(self, operator: OperatorPlan) -> None:
        """Add the targets that the code does not show: ``emits=`` has them."""
        plan = self._plan
        owner = _id("function" if operator.actor is None else "actor", plan.app, operator.name)
        if owner not in self._nodes:
            return  # it only forwards a topic
        for one in operator.emits:
            self._edge(owner, self._target(one), "emits")
        if operator.sends:
            self._edge(owner, _id("inbox", plan.inbox_topic), "sends")

    def _target(self, one: Target[Any, Any]) -> str:
        return _id("stream", self._plan.app, one.name) if one.is_stream else _id("topic", one.name)

    def _owner(self, route: Route) -> str:
        plan = self._plan
        if route.target is not None:
            return _id("actor", plan.app, route.target.name)
        id_ = _id("function", plan.app, route.name)
        self._node(id_, "function", route.name, about=_order(plan.operators[route.operator]))
        return id_

    def _node(self, id_: str, kind: NodeKind, name: str, **facts: Any) -> None:
        self._nodes.setdefault(id_, Node(id_, kind, name, (self._plan.app,), **facts))

    def _edge(self, source: str, target: str, kind: EdgeKind, handler: str | None = None) -> None:
        handlers = self._edges.setdefault((source, target, kind), {})
        if handler is not None:
            handlers[handler] = None


def _id(*parts: str) -> str:
    return ":".join(parts)


def _stream(plan: Plan, stream: Stream[Any, Any]) -> str:
    return _id("stream", plan.app, stream.name)


def _key(topic: Topic[Any, Any]) -> str:
    key = topic.settings.key
    if isinstance(key, str):
        return key
    if isinstance(key, tuple):
        return ", ".join(key)  # pyright: ignore[reportUnknownArgumentType]  # a declared key is a tuple of names
    return getattr(key, "__name__", "key").replace("<lambda>", "a function")


def _times(one: InputPlan) -> tuple[str, ...]:
    assert one.topic is not None
    time = one.topic.settings.event_time
    known = {"record": "time of the record", "arrival": "time of arrival"}
    facts = [known.get(one.time_kind) or f"time {time if isinstance(time, str) else 'by a function'}"]
    if one.out_of_order_ms:
        facts.append(f"out of order by {spelled(one.out_of_order_ms)}")
    if one.watermark == "upstream":
        facts.append("follows its writers" if one.own else "upstream's watermark")
    if one.watermark == "none":
        facts.append("no watermark" if one.topic.settings.watermark == "none" else "feedback alone")
    if one.late != "handle":
        facts.append("late ones dropped" if one.late == "drop" else "late ones routed")
    return tuple(facts)


def _order(one: OperatorPlan) -> tuple[str, ...]:
    return ("events in event-time order",) if one.ordered else ()


def _facts(actor: ActorPlan) -> Iterator[str]:
    yield f"key {spell(actor.key_codec.type)}"
    for timers, kind in ((actor.event_timers, "timer"), (actor.processing_timers, "processing timer")):
        for family in timers:
            yield f"{kind} {family}" if family else f"unnamed {kind}"
    for query in actor.queries:
        yield f"query {query}"
