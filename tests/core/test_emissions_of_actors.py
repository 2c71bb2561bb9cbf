"""Where the handlers of an actor emit to and send to, and where their code hides it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import pytest

import tailrace as tr
from tests.core.emitting import (
    BY_KIND,
    Cases,
    Event,
    Other,
    Ping,
    Receiver,
    Settings,
    a,
    b,
    c,
    check,
    later,
    read,
    side,
    taken,
)

RECEIVERS = {"receiver": Receiver, "other": Other}
ALIASES = (Receiver,)
HIDDEN = Cases()


class Emitting:
    """What several actors have in common."""

    __slots__ = ()

    def report(self, event: Any, ctx: Any) -> None:
        ctx.emit(a, event)

    def told(self, event: Any, ctx: Any) -> None:
        raise NotImplementedError

    @property
    def chosen(self) -> Any:
        return a

    @staticmethod
    def statically(event: Any, ctx: Any) -> None:
        ctx.emit(c, event)


class Base(tr.Actor):
    OUT: ClassVar[Any] = b
    ROUTES = (a, b)
    SETTINGS: ClassVar[Any] = Settings(out=c)

    @classmethod
    def out(cls) -> Any:
        return cls.OUT

    def told(self, event: Any, ctx: Any) -> None:
        ctx.emit(side, event)


class Actor(Base, Emitting):
    """Every way in which an actor may come by a topic, one by one."""

    OUT: ClassVar[Any] = c
    count: int = 0
    name: str = ""
    by_name: dict[str, str] = tr.field(default_factory=dict[str, str])
    kept: tr.MapState[str, Event]
    topics: dict[str, int] = tr.field(default_factory=dict[str, int])

    def of_a_base(self, event: Any, ctx: Any) -> None:
        self.report(event, ctx)

    def by_super(self, event: Any, ctx: Any) -> None:
        super().told(event, ctx)

    def by_super_of_a_class(self, event: Any, ctx: Any) -> None:
        super().told(event, ctx)

    def told(self, event: Any, ctx: Any) -> None:
        ctx.emit(c, event)

    def its_own(self, event: Any, ctx: Any) -> None:
        self.told(event, ctx)

    def class_attribute(self, event: Any, ctx: Any) -> None:
        ctx.emit(self.OUT, event)

    def class_attribute_by_type(self, event: Any, ctx: Any) -> None:
        ctx.emit(type(self).OUT, event)

    def class_attribute_by_class(self, event: Any, ctx: Any) -> None:
        ctx.emit(self.__class__.OUT, event)
        ctx.emit(Base.OUT, event)

    def class_method(self, event: Any, ctx: Any) -> None:
        ctx.emit(self.out(), event)

    def settings(self, event: Any, ctx: Any) -> None:
        ctx.emit(self.SETTINGS.out, event)

    def routes(self, event: Any, ctx: Any) -> None:
        for to in self.ROUTES:
            ctx.emit(to, event)

    def a_property(self, event: Any, ctx: Any) -> None:
        ctx.emit(self.chosen, event)

    def a_static_method(self, event: Any, ctx: Any) -> None:
        self.statically(event, ctx)
        Emitting.statically(event, ctx)

    def a_method_of_a_class(self, event: Any, ctx: Any) -> None:
        Emitting.report(self, event, ctx)

    partially = functools.partialmethod(Emitting.report, Event(""))

    def a_partial_method(self, event: Any, ctx: Any) -> None:
        self.partially(ctx)

    @functools.singledispatchmethod
    def dispatched(self, event: Any, ctx: Any) -> None:
        ctx.emit(a, event)

    @dispatched.register
    def _of_int(self, event: int, ctx: Any) -> None:
        ctx.emit(b, Event(str(event)))

    def a_dispatched_method(self, event: Any, ctx: Any) -> None:
        self.dispatched(event, ctx)

    def on_a(self, event: Any, ctx: Any) -> None:
        ctx.emit(a, event)

    def by_a_name(self, event: Any, ctx: Any) -> None:
        getattr(self, "on_a")(event, ctx)  # noqa: B009  # the shape under test

    def in_a_table(self, event: Any, ctx: Any) -> None:
        {"a": self.on_a, "b": self.told}[event.kind](event, ctx)

    def in_a_comprehension(self, event: Any, ctx: Any) -> None:
        dict.fromkeys(event.held, self.on_a)[0](event, ctx)

    def of_a_field(self, event: Any, ctx: Any) -> None:
        self.count += 1
        self.kept["x"] = event
        if BY_KIND.get(self.by_name[event.kind]) is a:
            ctx.set_timer(self.count)

    def of_a_field_that_is_called_topics(self, event: Any, ctx: Any) -> None:
        self.topics["a"] += self.topics["b"]
        ctx.emit(c, event)


OF_ACTOR = [
    (Actor.of_a_base, {a}),
    (Actor.by_super, {side}),
    (Actor.by_super_of_a_class, {side}),
    (Actor.its_own, {c}),
    (Actor.class_attribute, {c}),
    (Actor.class_attribute_by_type, {c}),
    (Actor.class_attribute_by_class, {b, c}),
    (Actor.class_method, {c}),
    (Actor.settings, {c}),
    (Actor.routes, {a, b}),
    (Actor.a_property, {a}),
    (Actor.a_static_method, {c}),
    (Actor.a_method_of_a_class, {a}),
    (Actor.a_partial_method, {a}),
    (Actor.a_dispatched_method, {a, b}),
    (Actor.by_a_name, {a}),
    (Actor.in_a_table, {a, c}),
    (Actor.in_a_comprehension, {a}),
    (Actor.of_a_field, set[Any]()),
    (Actor.of_a_field_that_is_called_topics, {c}),
]


@pytest.mark.parametrize(("method", "edges"), OF_ACTOR, ids=lambda one: getattr(one, "__name__", ""))
def test_a_topic_is_found_through_the_instance(method: Any, edges: set[Any]) -> None:
    found = read(method, cls=Actor)
    assert found.edges == edges
    assert found.hidden == ()


def test_any_method_may_be_meant_by_a_name_that_is_not_known() -> None:
    def handler(self: Any, event: Any, ctx: Any) -> None:
        getattr(self, f"on_{event.kind}")(event, ctx)

    assert a in read(handler, cls=Actor).edges


def test_a_subclass_emits_to_what_it_overrides() -> None:
    class Sub(Actor):
        OUT: ClassVar[Any] = a

    assert read(Actor.class_attribute, Actor.class_method, cls=Sub).edges == {a}


def test_a_handler_that_emits_nothing_adds_nothing_to_those_that_do() -> None:
    def names(self: Any, event: Any, ctx: Any) -> None:
        self.count += event.held is b

    def emits(self: Any, event: Any, ctx: Any) -> None:
        ctx.emit(a, event)

    assert read(names, emits, cls=Actor).edges == {a}


def test_the_timers_handlers_are_read_as_well() -> None:
    def fires(self: Any, ctx: Any) -> None:
        self.report(Event(""), ctx)

    assert read(fires, cls=Actor).edges == {a}


# --- messages ---


def sends(event: Any, ctx: Any) -> None:
    ctx.send(Receiver, "k", Ping())


def sends_by_name(event: Any, ctx: Any) -> None:
    ctx.send(actor=RECEIVERS["other"], key="k", message=Ping())


def sends_to_one_of(event: Any, ctx: Any) -> None:
    for to in RECEIVERS.values():
        ctx.send(to, "k", Ping())


def sends_for(to: Any, ctx: Any) -> None:
    send = ctx.send
    send(to, "k", Ping())


def sends_elsewhere(event: Any, ctx: Any) -> None:
    sends_for(Receiver if event.held else Other, ctx)


def names_and_sends(event: Any, ctx: Any) -> None:
    if isinstance(event.held, Other) or event.held in (Other, ALIASES):
        other: Other = Other()
        ctx.send(Receiver, repr(other), Ping())


def only_names(event: Any, ctx: Any) -> None:
    held: Any = Receiver()
    if isinstance(held, Receiver | Other):
        ctx.emit(a, event)


@pytest.mark.parametrize(
    ("function", "actors"),
    [
        (sends, {Receiver}),
        (sends_by_name, {Other}),
        (sends_to_one_of, {Receiver, Other}),
        (sends_elsewhere, {Receiver, Other}),
        (names_and_sends, {Receiver}),
        (only_names, set[Any]()),
    ],
)
def test_an_actor_is_sent_to_where_it_is_given_to_send(function: Callable[..., None], actors: Any) -> None:
    found = read(function)
    assert found.actors == actors
    assert found.hidden == ()


def test_the_actor_itself_is_sent_to_by_its_type() -> None:
    def handler(self: Any, event: Any, ctx: Any) -> None:
        ctx.send(type(self), "k", Ping())

    assert read(handler, cls=Other).actors == {Other}


def test_where_a_send_is_hidden_any_actor_that_is_named_may_be_meant() -> None:
    def handler(event: Any, ctx: Any) -> None:
        ctx.send(event.held, repr(Other), Ping())

    found = read(handler)
    assert found.actors == {Other}
    (hidden,) = found.hidden
    assert hidden.endswith(": ctx.send(event.held, ...)")


# --- what is hidden ---


def hides(*texts: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(function: Callable[..., None]) -> Callable[..., None]:
        HIDDEN.rows.append(pytest.param(function, texts, id=function.__name__))
        return function

    return add


def tell_what_it_is_given(ctx: Any, to: Any, event: Any) -> None:
    ctx.emit(to, event)


@hides("ctx.emit(event.held, ...)")
def a_field_of_the_event(event: Any, ctx: Any) -> None:
    ctx.emit(event.held, event)


@hides("ctx.emit(to, ...)")
def a_variable(event: Any, ctx: Any) -> None:
    to = event.choose()
    ctx.emit(to, event)


@hides("ctx.emit(later[event.kind], ...)")
def a_container_that_is_filled_later(event: Any, ctx: Any) -> None:
    ctx.emit(later[event.kind], event)


@hides("ctx.emit(later.get(event.kind), ...)")
def a_call(event: Any, ctx: Any) -> None:
    ctx.emit(later.get(event.kind), event)


@hides("ctx.emit(to=event.held, ...)")
def a_keyword(event: Any, ctx: Any) -> None:
    ctx.emit(to=event.held, event=event)


@hides("ctx.emit(*event.held)")
def stars(event: Any, ctx: Any) -> None:
    ctx.emit(*event.held)


@hides("ctx.emit(to, ...)")
def what_a_function_is_given(event: Any, ctx: Any) -> None:
    tell_what_it_is_given(ctx, event.held, event)


@hides("event.held.apply(ctx, ...)")
def the_context_is_given_away(event: Any, ctx: Any) -> None:
    event.held.apply(ctx, event)


@hides("msgspec.json.encode(ctx)")
def the_context_is_given_to_what_is_not_python(event: Any, ctx: Any) -> None:
    msgspec.json.encode(ctx)


@hides("ctx.emit(event.held, ...)", "ctx.send(event.kind, ...)")
def two_of_them(event: Any, ctx: Any) -> None:
    ctx.emit(event.held, event)
    ctx.emit(a, event)
    ctx.send(event.kind, "k", Ping())


@pytest.mark.parametrize(("function", "texts"), HIDDEN.rows)
def test_what_code_hides_is_said_with_its_place(function: Any, texts: tuple[str, ...]) -> None:
    found = read(function).hidden
    assert tuple(one.partition(": ")[2] for one in found) == texts
    assert all(", line " in one for one in found)


def test_a_place_is_the_function_and_the_line() -> None:
    line = a_field_of_the_event.__code__.co_firstlineno + 2
    assert read(a_field_of_the_event).hidden == (
        f"a_field_of_the_event, line {line}: ctx.emit(event.held, ...)",
    )


def test_the_place_of_a_method_has_its_class() -> None:
    class Aircraft(tr.Actor):
        @tr.process(taken)
        def departed(self, event: Any, ctx: tr.Context[str]) -> None:
            list(map(lambda one: ctx.emit(one, event), event.held))  # noqa: C417  # the shape under test

    (hidden,) = read(Aircraft.departed, cls=Aircraft).hidden
    assert hidden.startswith("Aircraft.departed, line ")


def test_what_an_event_s_own_method_does_is_read_by_its_name() -> None:
    check(gives_it_to_an_event, {b})


class Courier:
    def carry(self, ctx: Any, event: Any) -> None:
        ctx.emit(b, event)


def gives_it_to_an_event(event: Any, ctx: Any) -> None:
    event.held.carry(ctx, event)


def test_a_misuse_is_not_called_hidden() -> None:
    def handler(event: Any, ctx: Any) -> None:
        ctx.emit("a", event)

    assert read(handler).hidden == ()


def test_the_topic_of_another_app_is_not_among_the_app_s_own() -> None:
    from tests.core.emitting import elsewhere

    def handler(event: Any, ctx: Any) -> None:
        ctx.emit(elsewhere, event)

    found = read(handler)
    assert (found.edges, found.hidden) == (frozenset(), ())


def test_an_internal_topic_is_emitted_to_by_what_forwards_to_it() -> None:
    orders = tr.App("orders")
    received = orders.topic("received", Event, key="key", key_type=str, repartition=True)

    @orders.process(received)
    def take(event: Event, ctx: tr.Context[str]) -> None: ...

    found = next(one for one in orders.plan().operators if one.name == "orders.received.by-key")
    assert {edge.name for edge in found.emits} == {"orders.received.by-key"}
