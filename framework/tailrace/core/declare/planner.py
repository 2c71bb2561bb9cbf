"""Compiles declarations to a plan: everything is checked, named, numbered and bound to its codec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_origin

from tailrace.core.declare.actor import ActorMeta, declaration_of, key_type_of_actor, resolve
from tailrace.core.declare.broadcast import check_broadcast, forwarded, forwarding
from tailrace.core.declare.declarations import Declarations
from tailrace.core.declare.emissions import declared_emissions, emissions_of
from tailrace.core.declare.fields import Field
from tailrace.core.declare.flow import Flow, Input, Operator, find_flow
from tailrace.core.declare.handlers import Handler, MessageRole, QueryRole, TimerRole
from tailrace.core.declare.migrations import check_migrations
from tailrace.core.declare.order import join, ordered_operators
from tailrace.core.declare.plan import (
    ActorPlan,
    InputPlan,
    MessagePlan,
    OperatorPlan,
    Plan,
    Published,
    Route,
    TtlPlan,
)
from tailrace.core.declare.schema import describe
from tailrace.core.declare.topic import Edge, Topic
from tailrace.core.errors import DefinitionError
from tailrace.core.handling.entries import CollectionPlan, MapPlan
from tailrace.core.names import (
    broadcast_of,
    by_key_of,
    changelog_of,
    dead_letters_of,
    inbox_of,
    is_changelog_of,
    own_topics_of,
    tape_of,
)
from tailrace.core.records import CHANNEL
from tailrace.core.values.codec import ValueCodec
from tailrace.core.values.event_values import canonical_writer
from tailrace.core.values.keys import key_codec_for
from tailrace.core.values.map_keys import map_key_codec_for
from tailrace.core.values.types import (
    CODEC_ERRORS,
    is_fixed_point,
    is_immutable,
    make_sealer,
    normaliser,
    spell,
)

Takers = dict[Edge[Any, Any], list[tuple[str, str, Route]]]
"""The handlers of a topic's or stream's events, each with the names that it is sorted by."""


def make_plan(app: Declarations) -> Plan:
    """Compile an app. Raises DefinitionError or DurableTypeError with a hint."""
    takers: Takers = {}
    actors = tuple(_actor(app, index, name, takers) for index, name in enumerate(sorted(app.actors)))
    check_broadcast(app)
    inner = forwarded(app, {edge.name for one in _handlers(app) for edge in one.edges if not edge.is_stream})
    names = [*sorted(app.actors), *sorted([*app.functions, *(one.name for one in inner.values())])]
    numbers = {name: number for number, name in enumerate(names)}
    _add_functions(app, takers, numbers)
    streams = tuple(app.streams[name] for name in sorted(app.streams))
    for index, stream in enumerate(streams):
        stream.index = index
    read = _read(app, inner, takers, numbers)
    topics = dict(app.topics) | {name: one.topic for name, one in read.items()}
    operators = _operators(app, names, inner, actors)
    flow = find_flow(operators, [one.as_source() for one in read.values()], inbox_of(app.name))
    ordered = ordered_operators(app, operators, flow)
    join(operators, ordered, flow)
    inputs = [_input(app, index, read[name], flow, operators) for index, name in enumerate(sorted(read))]
    messages = [message.route for actor in actors for message in actor.messages.values()]
    inbox = inbox_of(app.name)
    sources = (*sorted(read), inbox, *flow.channels)
    inputs.append(_inbox(app, inbox, len(inputs), _touched(operators, messages)))
    plan = Plan(
        app=app.name,
        version=app.version,
        partitions=app.partitions,
        on_error=app.on_error,
        inputs=tuple(inputs),
        actors=actors,
        outputs=tuple(sorted(topics)),
        inbox_topic=inbox,
        changelog_topic=changelog_of(app.name),
        tape_topic=tape_of(app.name),
        dead_letters_topic=dead_letters_of(app.name),
        streams=streams,
        routes_of_stream=tuple(_routes(takers, stream) for stream in streams),
        topics=MappingProxyType(topics),
        by_class=MappingProxyType({actor.cls: actor for actor in actors}),
        operators=_operator_plans(app, operators, flow, sources, ordered),
        sources=sources,
        stages=1 + max(flow.stages.values(), default=0),
        order=_order([flow.levels[actor.name] for actor in actors]),
        published=_published(flow, numbers, topics),
        circles=flow.circles,
    )
    _check_internal_names(app)
    for topic in topics.values():
        topic.is_inside = topic.name in plan.inside
    return plan


def _add_functions(app: Declarations, takers: Takers, numbers: dict[str, int]) -> None:
    """Add the stateless functions to the takers."""
    for name, function in app.functions.items():
        function.resolve(last_call=True)
        for edge in function.edges:
            route = Route(None, function.call, function.method, numbers[name])
            takers.setdefault(edge, []).append((function.method, "", route))


def _operator_plans(
    app: Declarations,
    operators: list[Operator],
    flow: Flow,
    sources: tuple[str, ...],
    ordered: frozenset[str],
) -> tuple[OperatorPlan, ...]:
    actors = range(len(app.actors))
    return tuple(
        OperatorPlan(
            index=number,
            name=one.name,
            actor=number if number in actors else None,
            sources=tuple(sorted(map(sources.index, flow.sources[one.name]))),
            level=flow.levels[one.name],
            holders=tuple(n for n in actors if operators[n].name in flow.streamed[one.name]),
            feedback=flow.feedback[one.name],
            emits=one.emits,
            sends=frozenset(app.actors[name] for name in one.sends),
            ordered=one.name in ordered,
            together=tuple(n for n, other in enumerate(operators) if other.name in flow.together[one.name]),
            stage=flow.stages[one.name],
        )
        for number, one in enumerate(operators)
    )


def _published(
    flow: Flow, numbers: dict[str, int], topics: dict[str, Topic[Any, Any]]
) -> tuple[Published, ...]:
    return tuple(
        Published(
            name,
            tuple(sorted(numbers[writer] for writer in writers)),
            0 if CHANNEL in name else topics[name].settings.out_of_order_ms,
        )
        for name, writers in sorted(flow.writers.items())
    )


def _check_internal_names(app: Declarations) -> None:
    for name in sorted(app.topics):
        if name in own_topics_of(app.name) or is_changelog_of(app.name, name):
            what = f"the topic {name!r} has the name of an internal topic of its app"
            raise DefinitionError(what, hint="Rename it.")


def _handlers(app: Declarations) -> Iterator[Handler]:
    for cls in app.actors.values():
        yield from declaration_of(cls).handlers
    yield from app.functions.values()


def _order(levels: list[int]) -> tuple[int, ...]:
    """The place of each actor among timers of one instant: by level, then by name."""
    places = sorted(range(len(levels)), key=lambda actor: (levels[actor], actor))
    return tuple(map(places.index, range(len(levels))))


# --- operators


def _operators(
    app: Declarations, names: list[str], forwarded: dict[str, Topic[Any, Any]], actors: tuple[ActorPlan, ...]
) -> list[Operator]:
    """The operators, in the order of their numbers."""
    sources = {inner.name: (app.topics[name], inner) for name, inner in forwarded.items()}
    by_class: dict[type[Any], str] = {cls: name for name, cls in app.actors.items()}
    receivers = [actor.cls for actor in actors if actor.messages]
    declared = declared_emissions(app)
    found: list[Operator] = []
    for name in names:
        if name in sources:
            source, inner = sources[name]
            found.append(Operator(name, (source,), frozenset((inner,)), frozenset()))
            continue
        cls: Any = app.actors.get(name)
        handlers = [app.functions[name]] if cls is None else list(declaration_of(cls).handlers)
        # emits= is exact. The code may name topics that it does not emit to, which could look like a circle.
        shown = declared.get(name) or emissions_of(
            [one.call for one in handlers], cls, app.topics.values(), app.streams.values(), receivers
        )
        # A repartitioned topic reaches its handlers through the topic that it is forwarded to.
        takes = tuple(forwarded.get(edge.name, edge) for one in handlers for edge in one.edges)
        found.append(
            Operator(
                name,
                tuple(dict.fromkeys(takes)),
                shown.edges,
                frozenset(by_class[one] for one in shown.actors),
                any(isinstance(one.roles[0], MessageRole) for one in handlers),
            )
        )
    return found


def _touched(operators: list[Operator], routes: Iterable[Route]) -> tuple[int, ...]:
    """The operators that an event may reach within a step: by these routes, and by streams after them."""
    found = {route.operator for route in routes}
    waiting = list(found)
    while waiting:
        streams = {edge for edge in operators[waiting.pop()].emits if edge.is_stream}
        new = {n for n, one in enumerate(operators) if n not in found and not streams.isdisjoint(one.takes)}
        found |= new
        waiting += new
    return tuple(sorted(found))


def _routes(takers: Takers, edge: Edge[Any, Any]) -> tuple[Route, ...]:
    return tuple(route for _, _, route in sorted(takers.get(edge, ()), key=lambda taker: taker[:2]))


# --- inputs ---


class _Read(NamedTuple):
    """A topic that is read, its handlers, and whether it is only forwarded."""

    topic: Topic[Any, Any]
    routes: tuple[Route, ...]
    repartitioned: bool = False

    def as_source(self) -> Input:
        """For the flow."""
        settings = self.topic.settings
        follows = settings.follows or settings.watermark == "upstream"
        return Input(self.topic, settings.watermark, follows, settings.broadcast)


def _read(
    app: Declarations, forwarded: dict[str, Topic[Any, Any]], takers: Takers, numbers: dict[str, int]
) -> dict[str, _Read]:
    """The topics that are read, by name, internal ones included."""
    read: dict[str, _Read] = {}
    for topic in app.topics.values():
        routes = _routes(takers, topic)
        inner = forwarded.get(topic.name)
        if inner is None:
            if routes:
                read[topic.name] = _Read(topic, routes)
            continue
        forward = Route(None, forwarding(topic, inner, app.partitions), inner.name, numbers[inner.name])
        read[inner.name] = _Read(inner, routes)
        read[topic.name] = _Read(topic, (forward,), repartitioned=True)
    return read


def _input(app: Declarations, index: int, read: _Read, flow: Flow, operators: list[Operator]) -> InputPlan:
    topic, routes, repartitioned = read
    settings, name = topic.settings, topic.name
    follows = name in flow.writers and flow.kinds[name] == "upstream"
    # A record that is only forwarded is never late here: lateness is judged where it arrives with its key.
    return InputPlan(
        index=index,
        name=name,
        topic=topic,
        decode=topic.decode,
        encode=topic.encode,
        key_of=None if repartitioned else topic.key_of,
        key_codec=key_codec_for(bytes) if repartitioned else topic.key_codec,
        time_of=topic.time_of,
        time_kind=settings.time_kind,
        out_of_order_ms=settings.out_of_order_ms,
        watermark=flow.kinds[name],
        late="handle" if repartitioned else settings.late,
        late_topic=None if repartitioned else settings.late_topic,
        idle_after_ms=settings.idle_after_ms,
        on_error=settings.on_error or app.on_error,
        time_min_ms=settings.time_min_ms,
        time_max_ms=settings.time_max_ms,
        ahead_of_clock_ms=settings.ahead_of_clock_ms if flow.kinds[name] == "events" else None,
        refuse_seconds=settings.refuse_seconds,
        rank=_rank(app, name),
        routes=routes,
        moves=tuple(number for number, one in enumerate(operators) if name in flow.sources[one.name]),
        touches=_touched(operators, routes),
        own=follows,
        is_table=topic.is_table,
        repartitioned=repartitioned,
        broadcast=settings.broadcast,
    )


def _rank(app: Declarations, name: str) -> int:
    """The place of a topic in the order of declaration; of one that records are forwarded to, that of its source."""
    for rank, topic in enumerate(app.topics):
        if name in (topic, by_key_of(app.name, topic), broadcast_of(app.name, topic)):
            return rank
    return len(app.topics)


def _inbox(app: Declarations, name: str, index: int, touches: tuple[int, ...]) -> InputPlan:
    return InputPlan(
        index=index,
        name=name,
        is_inbox=True,
        decode=bytes,
        encode=bytes,
        key_codec=key_codec_for(bytes),
        on_error=app.on_error,
        rank=len(app.topics),
        touches=touches,
    )


# --- actors ---


def _actor(app: Declarations, index: int, name: str, takers: Takers) -> ActorPlan:
    cls: Any = app.actors[name]
    resolve(cls, last_call=True)
    declaration = declaration_of(cls)
    values = declaration.of_kind("value")
    codec = ValueCodec[Any](cls)
    required = tuple(one.attr for one in values if one.required)
    new = _maker(cls, required)
    fixed = all(is_fixed_point(one.annotation) for one in values)
    event_timers: dict[str, Route] = {}
    processing_timers: dict[str, Route] = {}
    messages: dict[str, MessagePlan] = {}
    plan = ActorPlan(
        index=index,
        name=name,
        cls=cls,
        new=new,
        encode=codec.encode,
        encode_unsettled=_unsettled(cls, codec, settled=fixed),
        decode=codec.decode,
        key_codec=key_codec_for(_key_type(cls)),
        seal=make_sealer([(one.attr, one.annotation) for one in values]) if values else None,
        fixed=fixed,
        event_timers=MappingProxyType(event_timers),
        unless_ended=frozenset(
            role.family
            for handler in declaration.handlers
            for role in handler.roles
            if isinstance(role, TimerRole) and role.unless_ended
        ),
        processing_timers=MappingProxyType(processing_timers),
        messages=MappingProxyType(messages),
        message_names=MappingProxyType(
            {type_: one for handler in declaration.handlers for type_, one in _message_names(handler)}
        ),
        maps=tuple(
            MapPlan(**_collection(one), key_codec=map_key_codec_for(one.types[0]))
            for one in declaration.of_kind("map")
        ),
        lists=tuple(CollectionPlan(**_collection(one)) for one in declaration.of_kind("list")),
        ttls=tuple(
            TtlPlan(one.attr, one.name, one.ttl_ms, one.ttl_domain, _stored_default(one, new))
            for one in declaration.with_ttl()
            if one.ttl_ms is not None
        ),
        queries=MappingProxyType(
            {one.method: one.call for one in declaration.handlers if isinstance(one.roles[0], QueryRole)}
        ),
        required=required,
        schema=describe(cls),
        has_components=bool(declaration.components),
    )
    check_migrations(declaration.migrations, plan.schema, plan.key_codec.type, app.version)
    for handler in declaration.handlers:
        where = f"{name}.{handler.method}"
        for edge in handler.edges:
            route = Route(plan, handler.call, where, index, handler.deletes)
            takers.setdefault(edge, []).append((name, handler.method, route))
        for role in handler.roles:
            if isinstance(role, TimerRole):
                timers = processing_timers if role.domain else event_timers
                payload = None
                if role.payload is not None:
                    codec = ValueCodec[Any](role.payload)
                    payload = canonical_writer(role.payload, codec.encode), codec.decode
                timers[role.family] = Route(
                    plan, handler.call, where, index, payload=payload, failed=role.failed
                )
        for type_, known_as in _message_names(handler):
            route = Route(plan, handler.call, where, index)
            message = ValueCodec[Any](type_)
            encode = canonical_writer(type_, message.encode)
            messages[known_as] = MessagePlan(known_as, type_, encode, message.decode, route)
    return plan


def _message_names(handler: Handler) -> list[tuple[type[Any], str]]:
    role = handler.roles[0]
    if not isinstance(role, MessageRole):
        return []
    return [(type_, role.name or type_.__name__) for type_ in handler.message_types]


def _key_type(cls: ActorMeta) -> Any:
    key_type = key_type_of_actor(cls)
    if key_type is Any:
        raise DefinitionError(
            f"the type of the keys of {cls.__name__} is not declared",
            hint="Declare the context of one of its handlers as ctx: tr.Context[str], with the type of the "
            "key.",
        )
    return key_type


def _maker(cls: Any, required: tuple[str, ...]) -> Callable[[], Any]:
    if not required:
        return cls  # type: ignore[no-any-return]  # a class is a function that makes its instances
    blanks = dict.fromkeys(required)

    def new() -> Any:
        instance = cls(**blanks)
        for attr in required:
            delattr(instance, attr)
        return instance

    return new


def _stored_default(one: Field, new: Callable[[], Any]) -> bytes:
    """The default of a plain field as it is stored. The default of a float field may be an int."""
    default = getattr(new(), one.attr)
    try:
        return ValueCodec[Any](one.annotation).settle(default)[0]
    except CODEC_ERRORS as error:
        raise DefinitionError(
            f"{one.where} has the default {default!r}, which is not of its type {spell(one.annotation)}: "
            f"{error}",
            hint="Give it a default of its type.",
        ) from error


def _unsettled(declared: Any, codec: ValueCodec[Any], *, settled: bool) -> Callable[[Any], bytes]:
    """The encoder of values that a handler has left; that of all values if those are ``settled``."""
    return codec.encode if settled else canonical_writer(declared, codec.encode)


def _collection(one: Field) -> dict[str, Any]:
    """The arguments of the plan of a map or a list."""
    value_type = one.types[-1]
    codec = ValueCodec[Any](value_type)
    immutable = is_immutable(value_type) and is_fixed_point(value_type)
    item = get_args(value_type)[0] if get_origin(value_type) is list else Any
    is_list_of_immutable = is_immutable(item) and is_fixed_point(item)
    return {
        "attr": one.attr,
        "name": one.name,
        "encode": codec.encode,
        "encode_unsettled": _unsettled(value_type, codec, settled=immutable),
        "decode": codec.decode,
        "immutable": immutable,
        "check_item": normaliser(item, owner=one.owner, field=one.attr) if is_list_of_immutable else None,
        "check": normaliser(value_type, owner=one.owner, field=one.attr),
        "ttl_ms": one.ttl_ms,
        "ttl_domain": one.ttl_domain,
    }
