"""From declarations to a plan: everything is checked, named, numbered and bound to its codec."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tailrace.core.declare.actor import declaration_of, key_type_of_actor, resolve
from tailrace.core.declare.fields import Field
from tailrace.core.declare.handlers import Handler, MessageRole, QueryRole, TimerRole
from tailrace.core.declare.plan import (
    ActorPlan,
    InputPlan,
    ListPlan,
    MapPlan,
    MessagePlan,
    Plan,
    Route,
    TtlPlan,
)
from tailrace.core.declare.schema import describe
from tailrace.core.declare.topic import Edge, Topic
from tailrace.core.errors import DefinitionError
from tailrace.core.values.codec import ValueCodec
from tailrace.core.values.keys import key_codec_for, map_key_codec_for
from tailrace.core.values.types import (
    CODEC_ERRORS,
    is_fixed_point,
    is_immutable,
    make_sealer,
    normaliser,
    spell,
)

if TYPE_CHECKING:
    from tailrace.core.declare.actor import ActorMeta
    from tailrace.core.declare.app import App
    from tailrace.core.handling.context import Context

Takers = dict[Edge[Any, Any], list[tuple[str, str, Route]]]
"""Who takes a topic's or stream's events, each with the names it is ordered by."""

_BOUNDS = ValueCodec[tuple[int, int]](tuple[int, int])


def make_plan(app: App) -> Plan:
    """Compile an app. Raises DefinitionError or DurableTypeError with the mend."""
    takers: Takers = {}
    actors = tuple(_actor(app, index, name, takers) for index, name in enumerate(sorted(app.actors)))
    for function in app.functions.values():
        function.resolve(last_call=True)
        for edge in function.edges:
            route = Route(None, function.call, function.method, _salt("function", function.method, edge.name))
            takers.setdefault(edge, []).append((function.method, "", route))
    streams = tuple(app.streams[name] for name in sorted(app.streams))
    for index, stream in enumerate(streams):
        stream.index = index
    topics = dict(app.topics)
    inputs = _inputs(app, topics, takers)
    inbox = f"{app.name}.inbox" if any(actor.messages for actor in actors) else None
    if inbox is not None:
        inputs.append(_inbox(app, inbox, len(inputs)))
    plan = Plan(
        app=app.name,
        version=app.version,
        partitions=app.partitions,
        on_error=app.on_error,
        inputs=tuple(inputs),
        actors=actors,
        outputs=tuple(sorted(topics)),
        inbox_topic=inbox,
        changelog_topic=f"{app.name}.changelog",
        tape_topic=f"{app.name}.tape",
        dead_letters_topic=f"{app.name}.dead-letters",
        streams=streams,
        routes_of_stream=tuple(_routes(takers, stream) for stream in streams),
        topics=MappingProxyType(topics),
        by_class=MappingProxyType({actor.cls: actor for actor in actors}),
    )
    for own in (
        f"{app.name}.inbox",
        f"{app.name}.redriven",
        plan.changelog_topic,
        plan.tape_topic,
        plan.dead_letters_topic,
    ):
        if own in app.topics:
            raise DefinitionError(
                f"the topic {own!r} has the name of an internal topic of its app", mend="Rename it."
            )
    return plan


def _salt(*names: str) -> int:
    return int.from_bytes(hashlib.blake2b("\0".join(names).encode(), digest_size=8).digest(), "big")


def _routes(takers: Takers, edge: Edge[Any, Any]) -> tuple[Route, ...]:
    return tuple(route for _, _, route in sorted(takers.get(edge, ()), key=lambda taker: taker[:2]))


# --- inputs ---


def _inputs(app: App, topics: dict[str, Topic[Any, Any]], takers: Takers) -> list[InputPlan]:
    """The inputs in the order of their names. Adds the internal topics that are read to ``topics``."""
    read: dict[str, tuple[Topic[Any, Any], tuple[Route, ...], bool]] = {}
    for topic in list(topics.values()):
        routes = _routes(takers, topic)
        if not routes:
            continue
        if topic.settings.repartition:
            inner = topic.internal(f"{app.name}.{topic.name}.by-key")
            if inner.name in topics:
                raise DefinitionError(
                    f"the topic {inner.name!r} has the name of the one that {topic.name!r} is repartitioned through",
                    mend="Rename it.",
                )
            topics[inner.name] = inner
            read[inner.name] = inner, routes, False
            forward = Route(None, _forwarding(inner), inner.name, _salt("forward", topic.name))
            read[topic.name] = topic, (forward,), True
        else:
            read[topic.name] = topic, routes, False
    return [_input(app, index, *read[name]) for index, name in enumerate(sorted(read))]


def _forwarding(to: Topic[Any, Any]) -> Callable[..., None]:
    def forward(event: Any, ctx: Context[Any]) -> None:
        ctx.emit(to, event)

    return forward


def _input(
    app: App, index: int, topic: Topic[Any, Any], routes: tuple[Route, ...], repartitioned: bool
) -> InputPlan:
    settings = topic.settings
    # What is only forwarded is judged where it arrives with its key: here nothing is late, and nothing is held back.
    return InputPlan(
        index=index,
        name=topic.name,
        is_inbox=False,
        topic=topic,
        decode=topic.decode,
        encode=topic.encode,
        key_of=None if repartitioned else topic.key_of,
        key_codec=key_codec_for(bytes) if repartitioned else topic.key_codec,
        time_of=topic.time_of,
        time_kind=settings.time_kind,
        out_of_order_ms=settings.out_of_order_ms,
        watermark="none" if repartitioned else settings.watermark,
        punctuate=None if repartitioned else settings.punctuate,
        generator=None if repartitioned else settings.generator,
        late="handle" if repartitioned else settings.late,
        late_topic=None if repartitioned else settings.late_topic,
        idle_after_ms=settings.idle_after_ms,
        on_error=settings.on_error or app.on_error,
        time_min_ms=settings.time_min_ms,
        time_max_ms=settings.time_max_ms,
        refuse_seconds=settings.refuse_seconds,
        routes=routes,
        repartitioned=repartitioned,
    )


def _inbox(app: App, name: str, index: int) -> InputPlan:
    return InputPlan(
        index=index,
        name=name,
        is_inbox=True,
        topic=None,
        decode=bytes,
        encode=bytes,
        key_of=None,
        key_codec=key_codec_for(bytes),
        time_of=None,
        time_kind="record",
        out_of_order_ms=0,
        watermark="none",
        punctuate=None,
        generator=None,
        late="handle",
        late_topic=None,
        idle_after_ms=0,
        on_error=app.on_error,
        time_min_ms=-(1 << 62),
        time_max_ms=1 << 62,
        routes=(),
    )


# --- actors ---


def _actor(app: App, index: int, name: str, takers: Takers) -> ActorPlan:
    cls: Any = app.actors[name]
    resolve(cls, last_call=True)
    declaration = declaration_of(cls)
    values = declaration.of_kind("value")
    codec = ValueCodec[Any](cls)
    required = tuple(one.attr for one in values if one.required)
    new = _maker(cls, required)
    event_timers: dict[str, Route] = {}
    processing_timers: dict[str, Route] = {}
    messages: dict[str, MessagePlan] = {}
    plan = ActorPlan(
        index=index,
        name=name,
        cls=cls,
        new=new,
        encode=codec.encode,
        decode=codec.decode,
        key_codec=key_codec_for(_key_type(cls)),
        seal=make_sealer([(one.attr, one.annotation) for one in values]) if values else None,
        fixed=all(is_fixed_point(one.annotation) for one in values),
        event_timers=MappingProxyType(event_timers),
        processing_timers=MappingProxyType(processing_timers),
        messages=MappingProxyType(messages),
        message_names=MappingProxyType(
            {type_: one for handler in declaration.handlers for type_, one in _message_names(handler)}
        ),
        maps=tuple(_map(one) for one in declaration.of_kind("map")),
        lists=tuple(_list(one) for one in declaration.of_kind("list")),
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
    )
    for handler in declaration.handlers:
        where = f"{name}.{handler.method}"
        for edge in handler.edges:
            route = Route(plan, handler.call, where, _salt("process", name, edge.name))
            takers.setdefault(edge, []).append((name, handler.method, route))
        for role in handler.roles:
            if isinstance(role, TimerRole):
                timers = processing_timers if role.domain else event_timers
                salt = _salt("processing-timer" if role.domain else "timer", name, role.family)
                timers[role.family] = Route(plan, handler.call, where, salt)
        for type_, known_as in _message_names(handler):
            route = Route(plan, handler.call, where, _salt("message", name, known_as))
            message = ValueCodec[Any](type_)
            messages[known_as] = MessagePlan(known_as, type_, message.encode, message.decode, route)
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
            f"nothing says of which type the keys of {cls.__name__} are",
            mend="Declare the context of one of its handlers as ctx: tr.Context[str], or whatever the key is.",
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
    """The default of a plain field as it is stored: that of a float may be written as an int."""
    default = getattr(new(), one.attr)
    try:
        return ValueCodec[Any](one.annotation).settle(default)[0]
    except CODEC_ERRORS as error:
        raise DefinitionError(
            f"{one.where} has the default {default!r}, which is not of its type {spell(one.annotation)}: {error}",
            mend="Give it a default of its type.",
        ) from error


def _map(one: Field) -> MapPlan:
    key_type, value_type = one.types
    codec = ValueCodec[Any](value_type)
    return MapPlan(
        attr=one.attr,
        name=one.name,
        key_codec=map_key_codec_for(key_type),
        encode=codec.encode,
        decode=codec.decode,
        immutable=is_immutable(value_type) and is_fixed_point(value_type),
        check=normaliser(value_type, owner=one.owner, field=one.attr),
        ttl_ms=one.ttl_ms,
        ttl_domain=one.ttl_domain,
    )


def _list(one: Field) -> ListPlan:
    (value_type,) = one.types
    codec = ValueCodec[Any](value_type)
    return ListPlan(
        attr=one.attr,
        name=one.name,
        encode=codec.encode,
        decode=codec.decode,
        immutable=is_immutable(value_type) and is_fixed_point(value_type),
        check=normaliser(value_type, owner=one.owner, field=one.attr),
        ttl_ms=one.ttl_ms,
        ttl_domain=one.ttl_domain,
        encode_bounds=_BOUNDS.encode,
        decode_bounds=_BOUNDS.decode,
    )
