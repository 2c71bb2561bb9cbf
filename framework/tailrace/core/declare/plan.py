"""The plan of an app: its declarations, compiled once to all that a task needs.

A plan is immutable data. ``App.plan()`` makes it; the task and its drivers read it. Indexes follow the order
of names, so two processes with the same declarations have the same plan.

Types of events and values are ``Any`` here: they were checked when the declarations were made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.core.declare.topic import Edge, Late, OnError, Stream, TimeKind, Topic, WatermarkKind
from tailrace.core.errors import UsageError
from tailrace.core.handling.entries import CollectionPlan, MapPlan
from tailrace.core.values.keys import KeyCodec
from tailrace.core.values.type_schemas import ActorSchema


class ActorBase:
    """The slots of an actor's instance that are not fields; the base of ``Actor``."""

    __slots__ = ("_tr_carried", "_tr_key", "_tr_mark", "_tr_parts", "_tr_row")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OperatorPlan:
    """An actor or a stateless function as a part of the app's flow of event time; see ``flow``.

    ``sources`` are the numbers of the inputs and channels whose watermarks it takes the minimum of; channels
    come after inputs. ``actor`` is the number of the actor, None for a function. ``holders`` are the actors
    whose timers may reach it within a step: itself, and actors that reach it by streams. ``feedback`` names
    the topics that come to it from its own circle. ``emits`` and ``sends`` are the only allowed targets.
    """

    index: int
    name: str
    actor: int | None
    sources: tuple[int, ...]
    level: int
    holders: tuple[int, ...]
    feedback: tuple[str, ...]
    emits: frozenset[Edge[Any, Any]]
    sends: frozenset[type[Any]]
    ordered: bool = False
    """Handles its events in the order of their times; see ``engine.ordering``."""
    together: tuple[int, ...] = ()
    """Itself, and if it is ordered, the operators that are connected with it by streams."""
    stage: int = 0
    """When it ends at the end of input: the level, but of operators that are together one."""

    def __repr__(self) -> str:
        return f"<operator {self.name}>"


@dataclass(frozen=True, slots=True)
class Published:
    """A topic or channel whose watermark the tasks publish: its writers' minimum, less its disorder."""

    name: str
    writers: tuple[int, ...]
    out_of_order_ms: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Route:
    """One handler that takes an event, a message or a timer.

    ``call`` is called with ``(instance, event, context)`` for an actor's handler, ``(event, context)`` for a
    stateless function (``target`` is None), and without the event for a timer's. ``operator`` is the number of the
    actor or function in ``Plan.operators``.
    """

    target: ActorPlan | None
    call: Callable[..., None]
    name: str
    operator: int
    deletes: bool = False
    """Takes the deletions of a table, not its events; it is called without an event."""
    payload: tuple[Callable[[Any], bytes], Callable[[bytes], Any]] | None = None
    """Encodes and decodes the payloads of its timers, if they have one."""
    failed: Callable[..., None] | None = None
    """Called for a timer in its place when it has failed and is a dead letter."""

    def __repr__(self) -> str:
        return f"<route to {self.name}>"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InputPlan:
    """One input topic of every task, or the app's inbox (``is_inbox``; then ``topic`` is None).

    ``decode`` and ``encode`` are the codec of the record's value; an inbox passes bytes through, since its
    records are messages, and redriven records of other inputs. ``key_of`` is None for an input whose key is
    the record's own key, bytes or None. ``time_of`` returns milliseconds, or None for an event without a time. ``time_of`` itself is None
    unless ``time_kind`` is ``"field"``.
    """

    index: int
    name: str
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    key_codec: KeyCodec
    on_error: OnError
    touches: tuple[int, ...]
    """Operators that its records may reach within a step: its takers, and operators behind streams."""
    is_inbox: bool = False
    topic: Topic[Any, Any] | None = None
    key_of: Callable[[Any], Any] | None = None
    time_of: Callable[[Any], int | None] | None = None
    time_kind: TimeKind = "record"
    out_of_order_ms: int = 0
    watermark: WatermarkKind = "none"
    late: Late = "handle"
    late_topic: Topic[Any, Any] | None = None
    idle_after_ms: int = 0
    time_min_ms: int = -(1 << 62)
    time_max_ms: int = 1 << 62
    ahead_of_clock_ms: int | None = None
    """How far event times may be ahead of the clock; None: any time, or events move no watermark."""
    refuse_seconds: bool = False
    """Event times that look like seconds since 1970 are refused; see ``TopicDeclaration``."""
    routes: tuple[Route, ...] = ()
    moves: tuple[int, ...] = ()
    """Operators that have this input among their sources."""
    own: bool = False
    """The app itself writes the topic: all of its tasks publish a watermark for it."""
    rank: int = 0
    """Its place among the app's inputs in the order of their declaration; messages come last."""
    is_table: bool = False
    """A record without a value deletes a key: some of the routes take these, the others the events."""
    repartitioned: bool = False
    """Records have other keys than declared: the only route forwards each to the topic with declared keys."""
    broadcast: bool = False
    """Its records are copied to every task, or are these copies (then it is not ``repartitioned``). They are never late."""

    @property
    def is_reference(self) -> bool:
        """Whether nobody waits for its records: in stages they come before the first event that is not earlier."""
        return self.broadcast or (self.watermark == "none" and not self.is_inbox)


@dataclass(frozen=True, slots=True)
class TtlPlan:
    """A plain field with a time to live. A write to it reports its number in ``ActorPlan.ttls``.

    ``default`` is the value after expiry, encoded as it is stored.
    """

    attr: str
    name: str
    ttl_ms: int
    domain: int
    default: bytes


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """A type of message that an actor takes, with its stable name."""

    name: str
    type: type[Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    route: Route


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ActorPlan:
    """One actor. Its state is stored under ``name`` and the stored names of its fields.

    ``new`` makes the instance of a new key; fields without default (``required``) are unset in it. ``encode``
    writes the plain fields as a map by stored name; AttributeError if one is unset. It is for settled values:
    ``encode_unsettled`` writes an instance that a handler has changed. ``seal`` refuses values of the wrong
    type. ``fixed``: after ``seal`` the live instance equals its decoded encoding; if False, it must be
    replaced by that. Timers are found by family: the part of their name before the first ``:``, or ``""`` for
    timers without a name; ``unless_ended`` are the families that do not move event time at the end of input.
    """

    index: int
    name: str
    cls: type[ActorBase]
    new: Callable[[], Any]
    encode: Callable[[Any], bytes]
    encode_unsettled: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    key_codec: KeyCodec
    seal: Callable[[Any], None] | None
    fixed: bool
    event_timers: Mapping[str, Route]
    unless_ended: frozenset[str]
    processing_timers: Mapping[str, Route]
    messages: Mapping[str, MessagePlan]
    message_names: Mapping[type[Any], str]
    maps: tuple[MapPlan, ...]
    lists: tuple[CollectionPlan, ...]
    ttls: tuple[TtlPlan, ...]
    queries: Mapping[str, Callable[..., Any]]
    required: tuple[str, ...]
    schema: ActorSchema
    has_components: bool = False
    """Whether it has composite fields, whose views need the instance's parts."""

    def __repr__(self) -> str:
        return f"<plan of actor {self.name}>"


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """An app, compiled. ``inputs`` are in the order of their topics' names, with the inbox last.

    ``operators`` are the actors, by number, then the functions. ``sources`` are the names of the inputs, by
    number, then those of the channels. ``stages`` is the number of stages. ``order`` is the place of each actor
    among timers of one instant. ``circles`` are the names of operators that reach each other.
    """

    app: str
    version: str
    partitions: int
    on_error: OnError
    inputs: tuple[InputPlan, ...]
    actors: tuple[ActorPlan, ...]
    outputs: tuple[str, ...]
    inbox_topic: str
    changelog_topic: str
    tape_topic: str
    dead_letters_topic: str
    streams: tuple[Stream[Any, Any], ...]
    routes_of_stream: tuple[tuple[Route, ...], ...]
    topics: Mapping[str, Topic[Any, Any]]
    by_class: Mapping[type[Any], ActorPlan]
    operators: tuple[OperatorPlan, ...]
    sources: tuple[str, ...]
    stages: int
    order: tuple[int, ...]
    published: tuple[Published, ...]
    circles: tuple[tuple[str, ...], ...]
    tracing: bool = False
    """What is emitted and sent carries the trace of its record; see ``engine.trace``."""
    located: bool = False
    """Whether ``changelog_topic`` was chosen for a log; see ``history.reading.generations``."""

    @property
    def written(self) -> frozenset[str]:
        """Topics and channels that the app writes: those of its operators, and those for late events."""
        routed = (one.late_topic.name for one in self.inputs if one.late_topic is not None)
        return frozenset((*(one.name for one in self.published), *routed))

    @property
    def inside(self) -> frozenset[str]:
        """The inputs that the app may write itself: its inbox, topics that its operators emit to, and those for late events."""
        written = self.written.union(
            edge.name for one in self.operators for edge in one.emits if not edge.is_stream
        )
        return frozenset(one.name for one in self.inputs if one.is_inbox or one.name in written)

    @property
    def forwarded(self) -> frozenset[str]:
        """The topics that the app forwards records to by their keys, and that it alone writes."""
        return frozenset(route.name for one in self.inputs if one.repartitioned for route in one.routes)

    @property
    def tables(self) -> Mapping[str, Topic[Any, Any]]:
        """The tables that the app reads or writes, by name."""
        return {name: one for name, one in self.topics.items() if one.is_table}

    def refuse_own_table(self, topic: Topic[Any, Any]) -> None:
        """Raise UsageError for a table that the app writes itself: a value of another would replace its own."""
        if topic.is_table and any(one.name == topic.name for one in self.published):
            raise UsageError(
                f"the app {self.app!r} writes the table {topic.name!r} itself: the value of another writer would replace its own",
                hint="Send events to its inputs.",
            )

    @property
    def has_messages(self) -> bool:
        """Whether an actor takes messages."""
        return any(actor.messages for actor in self.actors)

    def actor_of(self, cls: type[Any]) -> ActorPlan:
        """The plan of an actor class. Raises UsageError if it is not one of the app's."""
        found = self.by_class.get(cls)
        if found is not None:
            return found
        raise UsageError(
            f"{getattr(cls, '__name__', repr(cls))} is not an actor of the app {self.app!r}",
            hint=f"Its actors: {', '.join(actor.cls.__name__ for actor in self.actors) or 'none'}. "
            "Decorate the class with @app.actor.",
        )
