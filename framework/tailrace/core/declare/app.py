"""The app: the declarations of a service, from which its plan is made."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, ClassVar, Literal, Self, TypedDict, TypeVar, Unpack, overload

from tailrace.core.declare import planner
from tailrace.core.declare.actor import A, ActorMeta, declaration_of, resolve
from tailrace.core.declare.annotations import Scope
from tailrace.core.declare.broadcast import add_table
from tailrace.core.declare.context import Context
from tailrace.core.declare.declarations import Declared
from tailrace.core.declare.emissions import check_emits
from tailrace.core.declare.event_marks import KeyedType
from tailrace.core.declare.handlers import Handler, ProcessRole, QueryRole, check_edges, check_shape, place_of
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.run_options import RunOptions
from tailrace.core.declare.tables import Tables
from tailrace.core.declare.topic import ON_ERROR, ORDERS, Edge, Order, Stream, Topic, TopicOptions
from tailrace.core.declare.topic_declaration import FROM_TYPE, declare_topic, legal_name, one_of
from tailrace.core.errors import DefinitionError, UsageError
from tailrace.core.suggestions import refuse_unknown
from tailrace.core.values.types import spell

E = TypeVar("E")
E2 = TypeVar("E2")
E3 = TypeVar("E3")
E4 = TypeVar("E4")
K = TypeVar("K")

Function = Callable[[E, Context[K]], None]
"""A stateless handler of events of type E."""
Emits = Sequence[Declared]
"""Targets that the code of a handler hides: topics, streams, and actors or their stable names."""


class ProcessOptions(TypedDict, total=False):
    """The options of ``App.process``."""

    name: str | None
    emits: Emits | None
    order: Order | None


class App(Tables):
    """A service: topics, streams, actors and stateless functions under one name.

    - ``name``: the prefix of the app's internal topics, and the name of its state. Letters, digits, ``.``,
      ``_``, ``-``.
    - ``partitions``: number of tasks (default: 4), from 1 to 10000. Every input has as many partitions. Once
      the app has state, ``tailrace reshape`` changes it.
    - ``on_error``: what happens when a record cannot be decoded or a handler raises. ``"stop"`` (the default)
      stops the task. ``"dead-letter"`` sends the event to the app's dead letters with the reason, and
      continues; a mistake in the code (NameError, AttributeError, TypeError, ``tr.UsageError``) still stops
      the task. ``"dead-letter-all"`` continues after those, too. A topic may have its own.
    - ``version``: recorded with the history. Change it when a change of the code, or of a file that handlers
      read, changes results.
    - ``tracing``: what handlers emit and send carries the trace of their record on (header ``traceparent``), with a span of
      its own. A service sends these spans to OpenTelemetry; see ``docs/operating.md``.

    Raises:
        DefinitionError: An argument is unknown or not allowed.
    """

    _starter: ClassVar[Callable[[App, Mapping[str, Any]], None] | None] = None
    """What ``run`` calls. ``tailrace/__init__.py`` sets it, since the core does not know the command line."""

    def __init__(
        self,
        name: str,
        *,
        partitions: int = 4,
        on_error: Literal["stop", "dead-letter", "dead-letter-all"] = "stop",
        version: str = "1",
        tracing: bool = False,
    ) -> None:
        legal_name(name, "an app", limit=120)
        if type(partitions) is not int or not 1 <= partitions <= 10_000:
            raise DefinitionError(
                f"the app {name!r} has partitions={partitions!r}", hint="Give a number from 1 to 10000."
            )
        if type(version) is not str or not version:
            raise DefinitionError(
                f"the app {name!r} has version={version!r}",
                hint='Give a string that is not empty, such as "1".',
            )
        self.name = name
        self.partitions = partitions
        self.on_error = one_of(f"the app {name!r}", "on_error", on_error, ON_ERROR)
        self.version, self.tracing = version, bool(tracing)
        self.topics, self.streams = {}, {}
        self.actors, self.functions = {}, {}
        self.emits, self.orders = {}, {}
        self._plan = None

    def __repr__(self) -> str:
        return f"<app {self.name!r}>"

    def renamed(self, name: str) -> Self:
        """Return an app with the same declarations and another name. It has its own state, history and
        positions in the topics.

        It emits to the same topics, too. The records carry its name.

        Raises:
            DefinitionError: The name is not allowed.
        """
        legal_name(name, "an app", limit=120)
        other = copy.copy(self)
        other.name, other._plan = name, None
        return other

    # --- topics and streams ---

    @overload
    def topic(
        self,
        name: str,
        type: type[E],
        *,
        key: Callable[[E], K],
        key_type: Any = None,
        **options: Unpack[TopicOptions[E]],
    ) -> Topic[E, K]: ...
    @overload
    def topic(
        self,
        name: str,
        type: type[E],
        *,
        key: str | tuple[str, ...] = ...,
        key_type: type[K],
        **options: Unpack[TopicOptions[E]],
    ) -> Topic[E, K]: ...
    @overload
    def topic(
        self, name: str, type: type[E], *, key: None, **options: Unpack[TopicOptions[E]]
    ) -> Topic[E, bytes | None]: ...
    @overload
    def topic(self, name: str, type: KeyedType[E, K], **options: Unpack[TopicOptions[E]]) -> Topic[E, K]: ...
    @overload
    def topic(
        self,
        name: str,
        type: type[E],
        *,
        key: str | tuple[str, ...] = ...,
        **options: Unpack[TopicOptions[E]],
    ) -> Topic[E, Any]: ...
    @overload
    def topic(
        self,
        name: str,
        type: UnionType,
        *,
        key: str | tuple[str, ...] | Callable[[Any], Any] | None = ...,
        key_type: Any = None,
        **options: Unpack[TopicOptions[Any]],
    ) -> Topic[Any, Any]: ...
    def topic(
        self,
        name: str,
        type: Any,
        *,
        key: Any = FROM_TYPE,
        key_type: Any = None,
        **options: Unpack[TopicOptions[Any]],
    ) -> Topic[Any, Any]:
        """Declare a topic of events of one class, or of a union of tagged msgspec structs.

        Key and event time are best declared once, on the event type: ``tail: tr.Key[str]``, ``at:
        tr.EventTime[int]``. Arguments given here take precedence. A topic without a key (``key=None``) can be
        written to, and read by stateless functions.

        - ``key``: a field (``"tail"``), a nested one (``"plane.tail"``), several (``("airline", "number")``),
          or a function of the event.
        - ``key_type``: needed for a function that does not annotate its return type. A type checker knows the
          key's type from it, from ``tr.Keyed[str]`` and from a function of a typed event; else it is ``Any``.
        - ``event_time``: a field holding an int of milliseconds or an aware datetime, a function of the
          event, ``tr.RECORD_TIME`` (the record's timestamp, the default) or ``tr.ARRIVAL_TIME``.
        - ``out_of_order``: how far event times may be behind the highest seen without being late; default 0.
        - ``late``: ``"handle"`` (the default; the handler sees ``ctx.is_late``), ``"drop"`` (counted), or
          another topic, to which late events go unhandled.
        - ``watermark``: True for the highest event time seen less ``out_of_order``; False for slow reference
          data, which never holds the other inputs back; ``"upstream"`` for what the producing service
          publishes. By default a topic that the app itself writes follows its writers, any other its events.
        - ``idle_after``: how long a partition with nothing to read holds the watermark back (``"60s"``).
        - ``ahead_of_clock``: how far an event time may be ahead of the service's clock when the record is
          read (``"1d"``); None for any time. A later event is refused as ``from-the-future``, like a record
          that cannot be decoded, so that it does not move the watermark. Only topics whose watermark follows
          their events are checked, and no simulated clock does it: not in a harness, in ``explore`` or in a
          replay, which refuses what the service has refused.
        - ``on_error``: as for the app, for this topic only.
        - ``repartition``: read it through an internal topic, for producers whose keys or partitioner differ.
        - ``broadcast``: True for reference data that every task has as a table, for ``tr.shared``: the newest event of
          each key. No other record is handled before what the topic holds at the first start. The type must be immutable.
        - ``format``: ``"json"`` (the default; refuses nan and infinities), ``"msgpack"``, or that of a schema
          registry (``tailrace.registry``).
        - ``time_range``: the accepted event times; a record with another time is a bad record. Default: 1970
          to 2200, without those of early 1970 that look like seconds.

        Raises:
            DefinitionError: An argument is unknown or does not fit the event type, or the name is taken.
        """
        self._free(name, "topic")
        known = TopicOptions.__annotations__
        refuse_unknown(f"the topic {name!r}", options, ("key", "key_type", *known))
        topic = declare_topic(self.name, self.partitions, name, type, key, key_type, options)
        late = topic.settings.late_topic
        if late is not None:
            self._check_own((late,), f"the topic {name!r}")
        if topic.settings.broadcast:
            self._free_handler(name, f"the table of the topic {name!r}")
            add_table(self, topic)
        self.topics[name] = topic
        self._plan = None
        return topic

    @overload
    def stream(self, name: str, type: type[E]) -> Stream[E, Any]: ...
    @overload
    def stream(self, name: str, type: type[E], *, key_type: type[K]) -> Stream[E, K]: ...
    def stream(self, name: str, type: Any, *, key_type: Any = Any) -> Stream[Any, Any]:
        """Declare a stream: its events are handled in the same step, under the same key, and never stored.

        A stream chains functions and actors that share a key. Where the key changes, use a topic. ``key_type`` is the type
        of the key, for its takers and for type checkers.

        Raises:
            DefinitionError: The name is not allowed, or a topic or stream has it already.
        """
        legal_name(name, "a stream")
        self._free(name, "stream")
        stream = Stream[Any, Any](self.name, name, type, key_type)
        self.streams[name] = stream
        self._plan = None
        return stream

    # --- handlers ---

    @overload
    def actor(self, cls: type[A], /) -> type[A]: ...
    @overload
    def actor(
        self, /, *, name: str | None = None, emits: Emits | None = None
    ) -> Callable[[type[A]], type[A]]: ...
    def actor(self, cls: Any = None, /, *, name: str | None = None, emits: Emits | None = None) -> Any:
        """Make a class one of the app's actors: ``@app.actor``, or ``@app.actor(name=..., emits=...)``.

        ``name`` is the name that state and timers are stored under (default: the name of the class). Keep it
        when the class is renamed, and the state is kept.

        ``emits`` lists all topics, streams and actors that the handlers emit and send to. By default these
        are the ones that their code names. Give it where the code does not name a target, or names one that
        it does not emit to. Give an actor that is declared further down by its name. An emit to anything else
        raises UsageError.

        Raises:
            DefinitionError: The class is not an actor, has no handler, or its name is taken. The message says
            what to change.
            DurableTypeError: A field has a type that cannot be stored and read back unchanged.
        """
        if cls is not None:
            return self._add_actor(cls, name, emits)
        return functools.partial(self._add_actor, name=name, emits=emits)

    def _add_actor(self, cls: Any, name: str | None, emits: Emits | None) -> Any:
        if not isinstance(cls, ActorMeta):
            raise DefinitionError(
                f"@app.actor was given {place_of(cls)}, which is not an actor",
                hint="Derive the class from tr.Actor.",
            )
        stable = legal_name(cls.__name__ if name is None else name, "an actor", limit=120)
        self._free_handler(stable, cls.__name__)
        for known, other in self.actors.items():
            if other is cls:
                raise DefinitionError(
                    f"{cls.__name__} is already the actor {known!r} of this app", hint="Decorate it once."
                )
        handlers = declaration_of(cls).handlers
        if all(isinstance(one.roles[0], QueryRole) for one in handlers):
            raise DefinitionError(
                f"{cls.__name__} has no handler",
                hint="Give it a method with @tr.process(topic) or @tr.on_message.",
            )
        for handler in handlers:
            self._check_own(handler.edges, handler.where)
        declared = self._check_emits(emits, cls.__name__)
        resolve(cls, last_call=False)
        self.actors[stable] = cls
        if declared is not None:
            self.emits[stable] = declared
        self._plan = None
        return cls

    @overload
    def process(
        self, a: Edge[E, K], /, **options: Unpack[ProcessOptions]
    ) -> Callable[[Function[E, K]], Function[E, K]]: ...
    @overload
    def process(
        self, a: Edge[E, K], b: Edge[E2, K], /, **options: Unpack[ProcessOptions]
    ) -> Callable[[Function[E | E2, K]], Function[E | E2, K]]: ...
    @overload
    def process(
        self, a: Edge[E, K], b: Edge[E2, K], c: Edge[E3, K], /, **options: Unpack[ProcessOptions]
    ) -> Callable[[Function[E | E2 | E3, K]], Function[E | E2 | E3, K]]: ...
    @overload
    def process(
        self,
        a: Edge[E, K],
        b: Edge[E2, K],
        c: Edge[E3, K],
        d: Edge[E4, K],
        /,
        *more: Edge[E4, K],
        **options: Unpack[ProcessOptions],
    ) -> Callable[[Function[E | E2 | E3 | E4, K]], Function[E | E2 | E3 | E4, K]]: ...
    def process(
        self, *edges: Any, name: str | None = None, emits: Emits | None = None, order: Order | None = None
    ) -> Any:
        """Make a function ``(event, ctx)`` a stateless handler of one or several topics or streams.

        It maps, filters, routes or re-keys events by emitting others with ``ctx.emit``. It has no state and
        no timers. ``name`` is its stable name (default: the function's name). ``emits`` is as for ``actor``.

        ``order`` is the order in which it handles its events: ``"event-time"`` or ``"arrival"``; see ``Actor``. With
        two or more inputs it must be given.

        Raises:
            DefinitionError: The function does not take ``(event, ctx)``, its event type is not that of the
                topics, or its name is taken.
        """
        check_edges(edges, "@app.process")
        scope = Scope.of_caller(1)

        def decorate(function: Any) -> Any:
            check_shape(function, "@app.process", ("event", "ctx"))
            where = place_of(function)
            stable = legal_name(function.__name__ if name is None else name, "a function", limit=120)
            self._free_handler(stable, where)
            self._check_own(edges, where)
            declared = self._check_emits(emits, where)
            if order is not None:
                self.orders[stable] = one_of(where, "order", order, ORDERS)
            handler = Handler(
                where,
                stable,
                function,
                (ProcessRole(edges),),
                scope.for_function(function, {}),
                takes_self=False,
            )
            handler.resolve(last_call=False)
            self.functions[stable] = handler
            if declared is not None:
                self.emits[stable] = declared
            self._plan = None
            return function

        return decorate

    def _free_handler(self, name: str, where: str) -> None:
        if name in self.actors or name in self.functions:
            raise DefinitionError(
                f"{where} has the name {name!r}, which another actor or function of the app {self.name!r} "
                "has",
                hint="Give one of them another name=.",
            )

    def _check_emits(self, emits: Emits | None, where: str) -> tuple[Declared, ...] | None:
        if emits is None:
            return None
        declared = check_emits(emits, where)
        self._check_own(tuple(one for one in declared if isinstance(one, Edge)), where)
        return declared

    def _check_own(self, edges: tuple[Edge[Any, Any], ...], where: str) -> None:
        for edge in edges:
            if self.topics.get(edge.name) is not edge and self.streams.get(edge.name) is not edge:
                raise DefinitionError(
                    f"{where} uses {edge.name!r} of type {spell(edge.type)}, which was declared in another "
                    "app",
                    hint=f"Declare it in the app {self.name!r} as well, and use that.",
                )

    # --- a script ---

    def run(self, **options: Unpack[RunOptions]) -> None:
        """Run the app until it is asked to stop: what ``tailrace run`` does, with its options as keywords.

            if __name__ == "__main__":
                app.run(log="data/log", create_topics=True, workers=2)

        Call it under that guard, from the main thread. The app must be an attribute of a module or of the
        script, since worker processes import it. They do not see declarations under the guard, and refuse to
        run without them.

        Returns where the command would exit with 0: after SIGTERM, Ctrl-C, or the end of a run with
        ``until_end=True``. Otherwise it writes the reason to standard error and raises SystemExit with the
        exit code of the command. Raises DefinitionError for an unknown option, and UsageError where the app
        cannot be run from here.
        """
        starter = type(self)._starter
        if starter is None:
            raise UsageError(
                "no command line is installed for app.run", hint="Import the app with 'import tailrace'."
            )
        starter(self, options)

    # --- the plan ---

    def plan(self) -> Plan:
        """Check all declarations and compile them to a plan for the engine. Tests call it to check an app.

        The plan is cached until there are further declarations.

        Raises:
            DefinitionError: The declarations do not fit together. The message says what to change.
            DurableTypeError: A field has a type that cannot be stored and read back unchanged.
        """
        if self._plan is None:
            self._plan = dataclasses.replace(planner.make_plan(self), tracing=self.tracing)
        return self._plan
