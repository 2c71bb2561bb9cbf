"""Which topics and actors a handler may reach is found by the names in its code, and in the code that it
names.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest

import tailrace as tr
from tests.core.referring import Event, a, app, b, c, found_in, side, taken

this = sys.modules[__name__]


# --- objects that hold topics ---


class Topics(Enum):
    A = a
    B = b


@dataclass(frozen=True, slots=True)
class Slotted:
    out: Any
    other: Any


class Route(NamedTuple):
    to: Any
    why: Any = None


class Registry:
    def __init__(self, **topics: Any) -> None:
        self._topics = topics

    def __getitem__(self, name: str) -> Any:
        return self._topics[name]


class Loose:
    def __init__(self) -> None:
        self.hold = {"a": a}

    def __getattr__(self, name: str) -> Any:
        return self.hold[name]


class Descriptor:
    def __get__(self, one: object, cls: type) -> Any:
        return a


class Described:
    out = Descriptor()


BY_KIND = {"a": a, "b": b}
NESTED = {"x": [(a, "why"), (Slotted(b, None), "why")]}
NAMES = SimpleNamespace(a=a, deep=SimpleNamespace(b=b))
SLOTTED, ROUTE, REGISTRY, LOOSE = Slotted(a, c), Route(b, c), Registry(a=a, b=b), Loose()
LARGE = dict.fromkeys(range(20000), a)
package: Any = ModuleType("package")
inner: Any = ModuleType("package.inner")
inner.a, inner.b, package.inner = a, b, inner

# --- functions that handlers call ---


def tell(ctx: Any, event: Any, to: Any = a) -> None:
    ctx.emit(to, event)


def mutual(ctx: Any, event: Any) -> None:
    mutual_other(ctx, event)


def mutual_other(ctx: Any, event: Any) -> None:
    ctx.emit(a, event)
    mutual(ctx, event)


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def emitting_first(function: Any) -> Any:
    def wrapper(event: Any, ctx: Any) -> Any:
        ctx.emit(b, event)
        return function(event, ctx)

    return wrapper


@functools.singledispatch
def dispatched(event: Any, ctx: Any) -> None: ...


@dispatched.register(int)
def _(event: int, ctx: Any) -> None:
    ctx.emit(b, Event(str(event)))


@functools.lru_cache
def cached(kind: str) -> Any:
    return BY_KIND[kind]


@contextmanager
def managed(ctx: Any) -> Any:
    ctx.emit(a, Event(""))
    yield


class Teller:
    """A plain class that is given the context."""

    out = b

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    def report(self, event: Any) -> None:
        self.ctx.emit(self.chosen, event)

    @property
    def chosen(self) -> Any:
        return type(self).out

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.ctx.emit(c, Event(""))


bound = functools.partial(functools.partial(tell), to=b)

# --- the table ---

ROWS: list[Any] = []


def case(*edges: Any) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        ROWS.append(pytest.param(function, set(edges), id=function.__name__))
        return function

    return add


@case(a)
def a_global(event: Any, ctx: Any) -> None:
    ctx.emit(a, event)


@case(side, b)
def both_ways_of_a_condition(event: Any, ctx: Any) -> None:
    ctx.emit(b if event.kind == "b" else side, event)


@case(a)
def an_alias(event: Any, ctx: Any) -> None:
    emit, to = ctx.emit, a
    emit(to, event)


@case(a, b)
def attributes_of_modules(event: Any, ctx: Any) -> None:
    ctx.emit(this.a, event)
    ctx.emit(package.inner.b, event)


@case(a)
def an_alias_of_a_module(event: Any, ctx: Any) -> None:
    inner = package.inner
    ctx.emit(inner.a, event)


@case(a)
def an_import(event: Any, ctx: Any) -> None:
    from tests.core.referring import a as imported

    ctx.emit(imported, event)


@case(b)
def a_relative_import_of_a_module(event: Any, ctx: Any) -> None:
    from . import referring

    ctx.emit(referring.b, event)


@case(a, b)
def attributes_of_objects(event: Any, ctx: Any) -> None:
    ctx.emit(SLOTTED.out, event)
    ctx.emit(ROUTE.to, event)


@case(a)
def an_attribute_beside_another(event: Any, ctx: Any) -> None:
    ctx.emit(NAMES.a, event)


@case(a, b, c)
def objects_as_a_whole(event: Any, ctx: Any) -> None:
    holders: Any = (SLOTTED, ROUTE)
    for one in holders:
        ctx.emit(one.to, event)


@case(a)
def an_object_with_attributes_of_its_own(event: Any, ctx: Any) -> None:
    ctx.emit(LOOSE.a, event)


@case(a)
def a_descriptor(event: Any, ctx: Any) -> None:
    ctx.emit(Described().out, event)


@case(a, b)
def an_object_with_an_operator(event: Any, ctx: Any) -> None:
    ctx.emit(REGISTRY[event.kind], event)


@case(a)
def a_member_of_an_enum(event: Any, ctx: Any) -> None:
    ctx.emit(Topics.A.value, event)


@case(a, b)
def all_members_of_an_enum(event: Any, ctx: Any) -> None:
    ctx.emit(Topics[event.kind].value, event)


@case(a, b)
def a_container(event: Any, ctx: Any) -> None:
    ctx.emit(BY_KIND["a"], event)


@case(a, b)
def nested_containers(event: Any, ctx: Any) -> None:
    for to, _why in NESTED[event.kind]:
        ctx.emit(to, event)


@case(a)
def a_lambda(event: Any, ctx: Any) -> None:
    list(map(lambda one: ctx.emit(a, one), [event]))  # noqa: C417  # the shape under test


@case(a, b)
def nested_functions_and_classes(event: Any, ctx: Any) -> None:
    class Local:
        def deeper(self, to: Any = a) -> None:
            [ctx.emit(to, one) for to in (b,) for one in [event]]

    Local().deeper()


@case(a)
def a_default(event: Any, ctx: Any) -> None:
    tell(ctx, event)


@case(a)
def functions_that_call_each_other(event: Any, ctx: Any) -> None:
    mutual(ctx, event)


@case(a)
@wrapped
def a_wrapper(event: Any, ctx: Any) -> None:
    ctx.emit(a, event)


@case(a, b)
@emitting_first
def a_wrapper_that_emits(event: Any, ctx: Any) -> None:
    ctx.emit(a, event)


@case(a, b)
def a_partial(event: Any, ctx: Any) -> None:
    bound(ctx, event)


@case(b)
def a_dispatched_function(event: Any, ctx: Any) -> None:
    dispatched(event, ctx)


@case(a, b)
def a_cached_function(event: Any, ctx: Any) -> None:
    ctx.emit(cached(event.kind), event)


@case(a)
def a_context_manager(event: Any, ctx: Any) -> None:
    with managed(ctx):
        pass


@case(b, c)
def a_class_that_is_given_the_context(event: Any, ctx: Any) -> None:
    with Teller(ctx) as teller:
        teller.report(event)


@case()
def no_emit(event: Any, ctx: Any) -> None:
    if event.kind in BY_KIND and event.held is a:
        ctx.set_timer(5)


@case(a)
def the_name_of_a_topic(event: Any, ctx: Any) -> None:
    ctx.metrics.count(taken.name)
    ctx.emit(a, event)


@case()
def a_large_container(event: Any, ctx: Any) -> None:
    ctx.emit(LARGE[event.kind], event)


@case()
def an_attribute_whose_name_is_computed(event: Any, ctx: Any) -> None:
    ctx.emit(getattr(package.inner, event.kind), event)


@case()
def another_package_that_is_given_the_context(event: Any, ctx: Any) -> None:
    json.dumps([ctx, a])


@case()
def the_app_itself(event: Any, ctx: Any) -> None:
    ctx.emit(app.topics[event.kind], event)


def made_with(to: Any) -> Any:
    def a_closure(event: Any, ctx: Any) -> None:
        one = lambda: ctx.emit(to.b, event)  # noqa: E731  # the shape under test
        one()

    return a_closure


case(b)(made_with(package.inner))


@pytest.mark.parametrize(("function", "edges"), ROWS)
def test_the_topics_that_a_function_may_emit_to_are_found(function: FunctionType, edges: set[Any]) -> None:
    assert found_in(function).edges == edges


# --- actors ---


class Emitting:
    __slots__ = ()

    def report(self, event: Any, ctx: Any) -> None:
        ctx.emit(a, event)

    def told(self, event: Any, ctx: Any) -> None:
        ctx.emit(a, event)


class Base(tr.Actor, Emitting):
    OUT: ClassVar[Any] = b
    SETTINGS: ClassVar[Any] = Slotted(c, a)

    @classmethod
    def out(cls) -> Any:
        return cls.OUT

    def told(self, event: Any, ctx: Any) -> None:
        ctx.emit(side, event)


class Derived(Base):
    OUT: ClassVar[Any] = c
    topics: dict[str, int] = tr.field(default_factory=dict[str, int])

    def method_of_a_mixin(self, event: Any, ctx: Any) -> None:
        self.report(event, ctx)

    def method_of_a_base(self, event: Any, ctx: Any) -> None:
        super().told(event, ctx)

    def class_attribute(self, event: Any, ctx: Any) -> None:
        ctx.emit(type(self).OUT, event)

    def class_method(self, event: Any, ctx: Any) -> None:
        ctx.emit(self.out(), event)

    def attribute_of_an_attribute(self, event: Any, ctx: Any) -> None:
        ctx.emit(self.SETTINGS.out, event)

    def static_call(self, event: Any, ctx: Any) -> None:
        Emitting.report(self, event, ctx)

    partially = functools.partialmethod(Emitting.report, Event(""))

    def partial_method(self, event: Any, ctx: Any) -> None:
        self.partially(ctx)

    def durable_field(self, event: Any, ctx: Any) -> None:
        self.topics["a"] += 1
        ctx.emit(c, event)


@pytest.mark.parametrize(
    ("method", "edges"),
    [
        (Derived.method_of_a_mixin, {a}),
        (Derived.method_of_a_base, {a, side}),  # every one that super() may find
        (Derived.class_attribute, {c}),
        (Derived.class_method, {c}),
        (Derived.attribute_of_an_attribute, {c}),
        (Derived.static_call, {a}),
        (Derived.partial_method, {a}),
        (Derived.durable_field, {c}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_the_topics_that_a_method_may_emit_to_are_found(method: Any, edges: set[Any]) -> None:
    assert found_in(method, cls=Derived).edges == edges


def test_a_handler_that_does_not_emit_adds_nothing_to_those_that_do() -> None:
    assert found_in(no_emit, a_global).edges == {a}
