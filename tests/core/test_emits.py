"""What a handler may emit to and send to: found by the names in its code, or declared with ``emits=``."""

from __future__ import annotations

import argparse
import functools
import operator
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.emissions import Emissions, emissions_of
from tailrace.testing import Harness


class Event(msgspec.Struct):
    key: str
    kind: str = "a"


class Ping(msgspec.Struct):
    number: int = 0


app = tr.App("referring", partitions=1)
a, b, c = (app.topic(name, Event, key="key", key_type=str) for name in "abc")
side = app.stream("side", Event)


@app.actor
class Receiver(tr.Actor):
    @tr.on_message
    def ping(self, message: Ping, ctx: tr.Context[str]) -> None:
        self.report(ctx)

    def report(self, ctx: tr.Context[str]) -> None:
        ctx.emit(c, Event(""))


def found_in(*calls: Callable[..., None], cls: type[Any] | None = None) -> Emissions:
    return emissions_of(calls, cls, (a, b, c), (side,), [Receiver, Derived])


# --- objects that hold topics, and functions that handlers call ---


@dataclass(frozen=True, slots=True)
class Slotted:
    out: Any
    other: Any


class Registry:
    def __init__(self, **topics: Any) -> None:
        self._topics = topics

    def __getitem__(self, name: str) -> Any:
        return self._topics[name]


class Topics(Enum):
    A = a


BY_KIND = {"a": a, "b": b}
NAMES = SimpleNamespace(a=a, deep=SimpleNamespace(b=b))
SLOTTED, REGISTRY = Slotted(a, c), Registry(a=a, b=b)
FOREIGN = argparse.Namespace(out=a)  # what such an object leads to is not searched: it may be very much
LARGE = dict.fromkeys(map(str, range(20_000)), a) | {"a": a}
package: Any = ModuleType("package")
package.inner = inner = SimpleNamespace(a=a, b=b)


def tell(ctx: Any, event: Any, to: Any = a) -> None:
    ctx.emit(to, event)
    told(ctx, event)


def told(ctx: Any, event: Any) -> None:
    tell(ctx, event)


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(event: Any, ctx: Any) -> Any:
        ctx.emit(b, event)
        return function(event, ctx)

    return wrapper


@functools.lru_cache
def cached(kind: str) -> Any:
    return BY_KIND[kind]


@contextmanager
def managed(ctx: Any) -> Any:
    ctx.emit(a, Event(""))
    yield


class Teller:
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

# --- what is found in functions ---

FOUND: list[Any] = []
NOT_FOUND: list[Any] = []


def case(*edges: Any) -> Callable[[Any], Any]:
    """A function that names these topics. None: it emits to the topic ``a``, which cannot be found."""

    def add(function: Any) -> Any:
        if edges:
            FOUND.append(pytest.param(function, set(edges), id=function.__name__))
        else:
            NOT_FOUND.append(function)
        return function

    return add


@case(a, b, side)
def globals_in_a_condition_and_by_an_alias(event: Any, ctx: Any) -> None:
    emit, to = ctx.emit, a
    emit(to, event)
    ctx.emit(b if event.kind == "b" else side, event)


@case(a)
def a_topic_but_not_an_attribute_of_its_name(event: Any, ctx: Any) -> None:
    ctx.emit(a, event.b)
    event.c = 1


@case(a, b)
def attributes_of_modules(event: Any, ctx: Any) -> None:
    ctx.emit(sys.modules[__name__].a, event)
    ctx.emit(package.inner.b, event)


@case(a)
def an_import(event: Any, ctx: Any) -> None:
    from tests.core.test_emits import a as imported

    ctx.emit(imported, event)


@case(b)
def a_relative_import_of_a_module(event: Any, ctx: Any) -> None:
    from . import test_emits

    ctx.emit(test_emits.b, event)


@case(a, b)
def attributes_of_objects(event: Any, ctx: Any) -> None:
    ctx.emit(SLOTTED.out, event)
    ctx.emit(NAMES.deep.b, event)


@case(a, b)
def an_object_with_an_operator(event: Any, ctx: Any) -> None:
    ctx.emit(REGISTRY[event.kind], event)


@case(a, b)
def all_elements_of_a_container(event: Any, ctx: Any) -> None:
    ctx.emit(BY_KIND["a"], event)


@case(a, b, c)
def nested_functions_and_classes(event: Any, ctx: Any) -> None:
    class Local:
        def deeper(self, to: Any = a) -> None:
            [ctx.emit(to, one) for to in (b,) for one in [event]]

    list(map(lambda one: ctx.emit(c, one), [event]))  # noqa: C417  # the shape under test


@case(a)
def a_default_in_functions_that_call_each_other(event: Any, ctx: Any) -> None:
    told(ctx, event)


@case(a, b)
@wrapped
def a_wrapper_that_emits(event: Any, ctx: Any) -> None:
    ctx.emit(a, event)


@case(a, b)
def a_partial(event: Any, ctx: Any) -> None:
    bound(ctx, event)


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


@case(a, b)
def too_much_if_a_topic_is_only_compared(event: Any, ctx: Any) -> None:
    if event.topic is not b:
        ctx.emit(a, event)


def made_with(to: Any) -> Any:
    def a_closure(event: Any, ctx: Any) -> None:
        one = lambda: ctx.emit(to.b, event)  # noqa: E731  # the shape under test
        one()

    return a_closure


case(b)(made_with(inner))


@pytest.mark.parametrize(("function", "edges"), FOUND)
def test_the_topics_that_a_function_names_are_found(function: Any, edges: set[Any]) -> None:
    assert found_in(function).edges == edges


@case()
def an_attribute_whose_name_is_computed(event: Any, ctx: Any) -> None:
    ctx.emit(getattr(inner, event.kind), event)


@case()
def a_member_of_an_enum(event: Any, ctx: Any) -> None:
    ctx.emit(Topics[event.kind.upper()].value, event)


@case()
def the_app_itself(event: Any, ctx: Any) -> None:
    ctx.emit(app.topics[event.kind], event)


@case()
def an_attribute_of_an_object_of_another_package(event: Any, ctx: Any) -> None:
    ctx.emit(FOREIGN.out, event)


@case()
def a_large_container(event: Any, ctx: Any) -> None:
    ctx.emit(LARGE[event.kind], event)


@case()
def a_context_that_another_package_emits_with(event: Any, ctx: Any) -> None:
    operator.methodcaller("emit", a, event)(ctx)


for function in NOT_FOUND:
    for name, emits in ((function.__name__, None), (f"{function.__name__}-declared", [a])):
        app.process(app.topic(f"in-{name}", Event, key="key", key_type=str), name=name, emits=emits)(function)


@pytest.mark.parametrize("name", [function.__name__ for function in NOT_FOUND])
def test_an_emit_that_is_not_found_is_refused_with_the_fix(name: str) -> None:
    message = (
        rf"{name} emits to 'a', which was not found in its code: watermarks that depend on it would be wrong. "
        rf"List all targets of {name} where it is declared, @app.process\(emits=\[...\]\): 'a'."
    )
    with Harness(app) as h:
        h.send(app.topics[f"in-{name}-declared"], Event("k"))
        assert len(h.emitted(a)) == 1
        with pytest.raises(tr.HandlerError, match=message):
            h.send(app.topics[f"in-{name}"], Event("k"))


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
    b: dict[str, int] = tr.field(default_factory=dict[str, int])

    @tr.on_message
    def ping(self, message: Ping, ctx: tr.Context[str]) -> None: ...

    def method_of_a_mixin(self, event: Any, ctx: Any) -> None:
        self.report(event, ctx)

    def method_of_a_base(self, event: Any, ctx: Any) -> None:
        super().told(event, ctx)

    def class_attribute(self, event: Any, ctx: Any) -> None:
        ctx.emit(type(self).OUT, event)

    def class_method(self, event: Any, ctx: Any) -> None:
        ctx.emit(self.out(), event)

    def attribute_of_an_attribute(self, event: Any, ctx: Any) -> None:
        ctx.emit(self.SETTINGS.other, event)

    partially = functools.partialmethod(Emitting.report, Event(""))

    def partial_method(self, event: Any, ctx: Any) -> None:
        self.partially(ctx)

    def field_with_the_name_of_a_topic(self, event: Any, ctx: Any) -> None:
        self.b["a"] += 1
        ctx.emit(c, event)

    def method_of_another_actor(self, event: Any, ctx: Any) -> None:
        ctx.send(Receiver, "k", Ping())
        event.report(ctx)


@pytest.mark.parametrize(
    ("method", "edges"),
    [
        (Derived.method_of_a_mixin, {a}),
        (Derived.method_of_a_base, {a, side}),  # every one that super() may find
        (Derived.class_attribute, {c}),
        (Derived.class_method, {c}),
        (Derived.attribute_of_an_attribute, {a}),
        (Derived.partial_method, {a}),
        (Derived.field_with_the_name_of_a_topic, {c}),
    ],
)
def test_the_topics_that_a_method_names_are_found(method: Any, edges: set[Any]) -> None:
    assert found_in(method, cls=Derived).edges == edges


def sends(event: Any, ctx: Any) -> None:
    ctx.send(Receiver, "k", Ping())


def sends_to_itself(self: Any, event: Any, ctx: Any) -> None:
    ctx.send(type(self), "k", Ping())


def sends_to_itself_by_name(self: Any, event: Any, ctx: Any) -> None:
    ctx.send(Derived, "k", Ping())


def only_names(event: Any, ctx: Any) -> None:
    if isinstance(event, Receiver):
        ctx.emit(a, event)


def only_compares(event: Any, ctx: Any) -> None:
    ctx.metrics.count("a", event.topic is a)


def test_names_count_only_if_the_code_names_emit_or_send_as_well() -> None:
    assert found_in(sends).actors == {Receiver}
    assert found_in(sends_to_itself, cls=Derived).actors == {Derived}
    assert found_in(sends_to_itself_by_name, cls=Derived).actors == {Derived}
    assert found_in(only_names).actors == set()
    assert found_in(only_compares, sends).edges == set()
    assert found_in(Derived.method_of_another_actor) == Emissions(frozenset(), frozenset({Receiver}))


# --- the search itself ---


def execute(source: str, names: dict[str, Any]) -> None:
    exec(compile(source, "app.py", "exec"), names)


def test_code_of_the_objects_is_not_run() -> None:
    def refuse(*_: object) -> Any:
        raise RuntimeError("code was run")

    names = ("getattribute", "call", "eq", "hash", "bool", "iter", "len", "getitem")
    proxy: Any = type("Proxy", (), {f"__{name}__": refuse for name in names})()
    table: dict[str, Any] = {"proxy": proxy, "a": a}

    def handler(event: Any, ctx: Any) -> None:
        proxy.read(event, [one.key for one in table.values()])
        ctx.emit(table[event.kind], event)

    assert found_in(handler).edges == {a}


def test_long_chains_of_calls_are_followed_to_their_end() -> None:
    names: dict[str, Any] = {"a": a, "__name__": __name__}
    for number in range(1_500):
        execute(f"def f{number}(ctx): f{number + 1}(ctx)", names)
    execute("def f1500(ctx): ctx.emit(a, None)", names)
    assert found_in(names["f0"]).edges == {a}


@pytest.mark.parametrize(("folder", "edges"), [("src", {a}), ("site-packages", set[Any]())])
def test_modules_in_one_folder_are_one_app_but_not_where_packages_are_installed(
    folder: str, edges: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    helping, main = f"helping_{len(folder)}", f"main_{len(folder)}"
    for name, source in (
        (helping, "def tell(ctx): ctx.emit(a, None)"),
        (main, f"import {helping}\ndef handler(event, ctx): {helping}.tell(ctx)"),
    ):
        module: Any = ModuleType(name)
        module.__file__, module.a = f"/home/{folder}/{name}.py", a
        monkeypatch.setitem(sys.modules, name, module)
        execute(source, vars(module))
    assert found_in(sys.modules[main].handler).edges == edges


# --- emits= ---


def routing(emits: list[str] | None = None) -> tuple[tr.App, Any]:
    """An app whose function chooses one of two topics; it takes one of them."""
    shop = tr.App("shop", partitions=1)
    names = ("orders", "sales")
    topics = {name: shop.topic(name, Event, key="key", key_type=str) for name in names}
    orders, sales = topics["orders"], topics["sales"]

    @shop.process(orders, emits=None if emits is None else [topics[name] for name in emits])
    def route(event: Event, ctx: tr.Context[str]) -> None:
        ctx.emit({"o": orders, "s": sales}[event.kind], event)

    return shop, orders


def test_emits_replaces_the_targets_that_were_found() -> None:
    assert routing()[0].plan().circles == (("route",),)
    shop, orders = routing(["sales"])
    assert shop.plan().circles == ()
    with (
        Harness(shop) as h,
        pytest.raises(tr.HandlerError, match=r"'orders', which was not found.*: 'orders', 'sales'\."),
    ):
        h.send(orders, Event("k", "o"))
