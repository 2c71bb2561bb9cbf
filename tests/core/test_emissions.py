"""What code shows of where a handler emits and sends to, on every Python that is supported."""

from __future__ import annotations

import functools
import logging
import operator
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.emissions import Emissions, emissions_of


class Event(msgspec.Struct):
    key: str
    kind: str = "a"
    held: Any = None


class Ping(msgspec.Struct):
    number: int = 0


app = tr.App("emitting")
taken = app.topic("taken", Event, key="key", key_type=str)
a = app.topic("a", Event, key="key", key_type=str)
b = app.topic("b", Event, key="key", key_type=str)
c = app.topic("c", Event, key="key", key_type=str)
side = app.stream("side", Event)
elsewhere = tr.App("elsewhere").topic("elsewhere", Event, key="key", key_type=str)


class Receiver(tr.Actor):
    """An actor that messages are sent to."""

    @tr.on_message
    def ping(self, message: Ping, ctx: tr.Context[str]) -> None: ...


class Other(tr.Actor):
    @tr.on_message
    def ping(self, message: Ping, ctx: tr.Context[str]) -> None: ...


class Topics(Enum):
    A = a
    B = b


@dataclass
class Settings:
    out: Any
    others: Any = ()


@dataclass(frozen=True, slots=True)
class Slotted:
    out: Any


class Route(NamedTuple):
    to: Any
    why: str


class Row(msgspec.Struct):
    to: Any


class Registry:
    """Topics by their names, as somebody may write it."""

    def __init__(self, **topics: Any) -> None:
        self._topics = topics

    def __getitem__(self, name: str) -> Any:
        return self._topics[name]

    def __iter__(self) -> Any:
        return iter(self._topics.values())

    def pick(self, name: str) -> Any:
        return self._topics.get(name)


class Loose:
    def __init__(self) -> None:
        self.hold = {"a": a}

    def __getattr__(self, name: str) -> Any:
        return self.hold[name]


class Descriptor:
    def __get__(self, one: object, cls: type) -> Any:
        return a


BY_KIND = {"a": a, "b": b}
NESTED = {"x": [(a, "why"), (b, "why")]}
PAIR = (a, b)
LIST = [a]
SET = {a, b}
PROXY = MappingProxyType({"a": a})
DEFAULTS: defaultdict[str, Any] = defaultdict(lambda: a, {"b": b})
ROUTES = {"a": Route(a, "so"), "b": Route(b, "so")}
ROWS = [Row(a), Row(b)]
NAMES = SimpleNamespace(a=a, deep=SimpleNamespace(b=b))
SETTINGS = Settings(out=a, others=[b])
SLOTTED = Slotted(a)
REGISTRY = Registry(a=a, b=b)
LOOSE = Loose()
KIND = "a"
LARGE = {str(number): number for number in range(20_000)}
LOG = logging.getLogger("emitting")
this = sys.modules[__name__]
package: Any = ModuleType("package")
package.inner = ModuleType("package.inner")
package.inner.a = a
later: dict[str, Any] = {}


# --- functions that handlers call ---


def tell(ctx: Any, to: Any, event: Any) -> None:
    ctx.emit(to, event)


def tell_by_name(ctx: Any, *, event: Any, to: Any = a) -> None:
    ctx.emit(to=to, event=event)


def tell_all(ctx: Any, event: Any, *to: Any, **more: Any) -> None:
    for one in to:
        ctx.emit(one, event)
    for one in more.values():
        ctx.emit(one, event)


def with_default(ctx: Any, event: Any, to: Any = a) -> None:
    ctx.emit(to, event)


def pick(kind: str) -> Any:
    return a if kind == "a" else BY_KIND.get(kind)


def pick_one(kind: str) -> Any:
    match kind:
        case "a":
            return a
        case _:
            return None


def picks(kind: str) -> Any:
    yield a
    yield from (b,)


def mutual(ctx: Any, event: Any, depth: int) -> None:
    if depth:
        mutual_other(ctx, event, depth - 1)


def mutual_other(ctx: Any, event: Any, depth: int) -> None:
    ctx.emit(a, event)
    mutual(ctx, event, depth)


def noted(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def emitting_first(function: Any) -> Any:
    def wrapper(event: Any, ctx: Any) -> Any:
        ctx.emit(b, event)
        return function(event, ctx)

    return wrapper


@noted
def noted_tell(ctx: Any, event: Any) -> None:
    ctx.emit(a, event)


@functools.lru_cache
def cached(kind: str) -> Any:
    return BY_KIND[kind]


@functools.singledispatch
def dispatched(event: Any, ctx: Any) -> None: ...


@dispatched.register
def _(event: Event, ctx: Any) -> None:
    ctx.emit(a, event)


@dispatched.register(int)
def _(event: int, ctx: Any) -> None:
    ctx.emit(b, Event(str(event)))


@contextmanager
def managed(ctx: Any) -> Any:
    ctx.emit(a, Event(""))
    yield a


class Teller:
    """A plain class that is given the context."""

    out = b

    def __init__(self, ctx: Any, to: Any = None) -> None:
        self.ctx = ctx
        self.to = to

    def tell(self, event: Any) -> None:
        self.ctx.emit(self.to, event)

    def tell_out(self, event: Any) -> None:
        self.ctx.emit(self.out, event)

    def __call__(self, event: Any) -> None:
        self.ctx.emit(c, event)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.ctx.emit(c, Event(""))

    @staticmethod
    def statically(ctx: Any, event: Any) -> None:
        ctx.emit(a, event)


TELLER = Teller(None, a)
HANDLERS = {"a": with_default, "b": lambda ctx, event: ctx.emit(b, event)}
told_to_a = functools.partial(tell, to=a)
told_to_b = functools.partial(functools.partial(with_default), to=b)


# --- stateless functions: the code, what it emits to ---

Function = Callable[..., None]
CASES: dict[str, tuple[Function, set[Any]]] = {}


def case(*edges: Any) -> Callable[[Function], Function]:
    def note(function: Function) -> Function:
        assert function.__name__ not in CASES
        CASES[function.__name__] = function, set(edges)
        return function

    return note


@case(a)
def a_global(event: Any, ctx: Any) -> None:
    ctx.emit(a, event)


@case(side, b)
def a_stream_and_a_topic(event: Any, ctx: Any) -> None:
    if event.kind == "b":
        ctx.emit(b, event)
    else:
        ctx.emit(side, event)


@case()
def nothing_is_emitted(event: Any, ctx: Any) -> None:
    if event.held is a or event.kind in BY_KIND:
        ctx.set_timer(5)


@case(a)
def an_attribute_of_a_module(event: Any, ctx: Any) -> None:
    ctx.emit(this.a, event)


@case(a)
def an_attribute_of_a_module_in_a_module(event: Any, ctx: Any) -> None:
    ctx.emit(package.inner.a, event)


@case(a, b)
def attributes_of_an_object(event: Any, ctx: Any) -> None:
    ctx.emit(NAMES.a, event)
    ctx.emit(NAMES.deep.b, event)


@case(a)
def an_attribute_of_a_dataclass(event: Any, ctx: Any) -> None:
    ctx.emit(SETTINGS.out, event)


@case(a)
def an_attribute_in_a_slot(event: Any, ctx: Any) -> None:
    ctx.emit(SLOTTED.out, event)


@case(b)
def a_container_in_a_dataclass(event: Any, ctx: Any) -> None:
    for to in SETTINGS.others:
        ctx.emit(to, event)


@case(a)
def a_member_of_an_enum(event: Any, ctx: Any) -> None:
    ctx.emit(Topics.A.value, event)


@case(a, b)
def a_member_of_an_enum_by_its_name(event: Any, ctx: Any) -> None:
    ctx.emit(Topics[event.kind].value, event)


@case(a, b)
def all_members_of_an_enum(event: Any, ctx: Any) -> None:
    for one in Topics:
        ctx.emit(one.value, event)


@case(a)
def a_topic_of_the_app(event: Any, ctx: Any) -> None:
    ctx.emit(app.topics["a"], event)


@case(side)
def a_stream_of_the_app(event: Any, ctx: Any) -> None:
    streams = app.streams
    ctx.emit(streams["side"], event)


@case(a)
def a_topic_of_an_app_that_is_given(event: Any, ctx: Any) -> None:
    ctx.emit(event.app.topics["a"], event)


@case(a)
def an_item_by_a_constant(event: Any, ctx: Any) -> None:
    ctx.emit(BY_KIND[KIND], event)
    ctx.emit(BY_KIND["a"], event)
    ctx.emit(PAIR[0], event)


@case(a, b)
def an_item_by_what_may_be_a_constant(event: Any, ctx: Any) -> None:
    kind = "a"
    if event.held:
        kind = event.kind
    ctx.emit(BY_KIND[kind], event)


@case(a, b)
def an_item_by_one_of_two_constants(event: Any, ctx: Any) -> None:
    ctx.emit(BY_KIND["a" if event.held else event.kind], event)


@case(a, b)
def an_item(event: Any, ctx: Any) -> None:
    ctx.emit(BY_KIND[event.kind], event)


@case(a, b)
def what_a_method_of_a_dict_gives(event: Any, ctx: Any) -> None:
    to = BY_KIND.get(event.kind)
    if to is not None:
        ctx.emit(to, event)


@case(a, b)
def all_values(event: Any, ctx: Any) -> None:
    for to in BY_KIND.values():
        ctx.emit(to, event)


@case(a, b)
def all_items(event: Any, ctx: Any) -> None:
    for kind, to in BY_KIND.items():
        if kind == event.kind:
            ctx.emit(to, event)


@case(a, b)
def nested_containers(event: Any, ctx: Any) -> None:
    for to, _why in NESTED[event.kind]:
        ctx.emit(to, event)


@case(a, b)
def a_set_and_a_list(event: Any, ctx: Any) -> None:
    for to in SET:
        ctx.emit(to, event)
    ctx.emit(LIST[-1], event)


@case(a)
def a_proxy_of_a_dict(event: Any, ctx: Any) -> None:
    ctx.emit(PROXY[event.kind], event)


@case(b)
def a_default_dict(event: Any, ctx: Any) -> None:
    ctx.emit(DEFAULTS[event.kind], event)


@case(a, b)
def an_attribute_of_an_item(event: Any, ctx: Any) -> None:
    ctx.emit(ROUTES[event.kind].to, event)


@case(a, b)
def an_attribute_of_every_item(event: Any, ctx: Any) -> None:
    for _kind, route in sorted(ROUTES.items()):
        ctx.emit(route.to, event)


@case(a, b)
def a_struct_in_a_list(event: Any, ctx: Any) -> None:
    row = ROWS[event.held]
    ctx.emit(row.to, event)


@case(a, b)
def one_of_two(event: Any, ctx: Any) -> None:
    ctx.emit(a if event.held else b, event)


@case(a, b)
def one_or_the_other(event: Any, ctx: Any) -> None:
    ctx.emit(event.held or (event.kind and BY_KIND.get("a")) or b, event)


@case(a, b)
def a_local_variable(event: Any, ctx: Any) -> None:
    to = a
    if event.kind == "b":
        to = b
    try:
        event.go()
    except ValueError:
        to = a
    finally:
        ctx.emit(to, event)


@case(a, b)
def two_local_variables(event: Any, ctx: Any) -> None:
    to, other = a, b
    to, other = other, to
    ctx.emit(to, event)


@case(a, b, c)
def unpacking(event: Any, ctx: Any) -> None:
    first, *rest = [a, b, c]
    ctx.emit(first, event)
    for to in rest:
        ctx.emit(to, event)


@case(a, b)
def a_walrus(event: Any, ctx: Any) -> None:
    if (to := BY_KIND.get(event.kind)) is not None:
        ctx.emit(to, event)


@case(a, b)
def a_match(event: Any, ctx: Any) -> None:
    match event:
        case Event(kind="a"):
            to = a
        case {"kind": _, **_others}:
            to = b
        case [_first, *_more]:
            return
        case _:
            return
    ctx.emit(to, event)


@case(a)
def a_keyword(event: Any, ctx: Any) -> None:
    ctx.emit(event=event, to=a)


@case(a)
def stars(event: Any, ctx: Any) -> None:
    both = (a, event)
    ctx.emit(*both)


@case(a)
def two_stars(event: Any, ctx: Any) -> None:
    ctx.emit(**{"to": a, "event": event})  # noqa: PIE804  # the shape under test


@case(a)
def the_method_under_another_name(event: Any, ctx: Any) -> None:
    emit = ctx.emit
    emit(a, event)


@case(a)
def a_lambda(event: Any, ctx: Any) -> None:
    one = lambda: ctx.emit(a, event)  # noqa: E731  # the shape under test
    one()


@case(a, b)
def a_lambda_with_a_parameter(event: Any, ctx: Any) -> None:
    one = lambda to, more=b: (ctx.emit(to, event), ctx.emit(more, event))  # noqa: E731
    one(a)


@case(a, b)
def a_nested_function(event: Any, ctx: Any) -> None:
    def one(to: Any = a, *, more: Any = b) -> None:
        def deeper() -> None:
            ctx.emit(to, event)
            ctx.emit(more, event)

        deeper()

    one()


@case(a)
def a_nested_variable(event: Any, ctx: Any) -> None:
    to = None

    def choose() -> None:
        nonlocal to
        to = a

    choose()
    ctx.emit(to, event)


@case(a, b)
def comprehensions(event: Any, ctx: Any) -> None:
    [ctx.emit(to, event) for to in PAIR]
    {ctx.emit(to, event) for to in PAIR}
    {n: ctx.emit(to, event) for n, to in enumerate(PAIR)}
    list(ctx.emit(to, event) for to in PAIR)  # noqa: C400  # the shape under test


@case(a, b)
def a_list_of_topics(event: Any, ctx: Any) -> None:
    for to in [to for to in BY_KIND.values() if to is not None]:
        ctx.emit(to, event)


@case(a, b)
def a_list_that_grows(event: Any, ctx: Any) -> None:
    to = []
    to.append(a)
    to += [b]
    for one in to:
        ctx.emit(one, event)


@case(a, b)
def a_dict_that_is_made(event: Any, ctx: Any) -> None:
    to = {}
    to["a"] = a
    to.setdefault("b", b)
    to.update(dict(a=a))  # noqa: C408  # the shape under test
    ctx.emit(to[event.kind], event)


@case(a, b)
def builtins_that_give_back(event: Any, ctx: Any) -> None:
    for to, one in zip(PAIR, [event, event], strict=True):
        ctx.emit(to, one)
    for number, to in enumerate(reversed(list(PAIR))):
        if number:
            ctx.emit(to, event)
    ctx.emit(next(iter(PAIR)), event)
    ctx.emit(max(PAIR, key=lambda to: to.name), event)


@case(a, b)
def builtins_that_call(event: Any, ctx: Any) -> None:
    list(map(lambda to: ctx.emit(to, event), PAIR))  # noqa: C417  # the shape under test


@case(a)
def a_partial(event: Any, ctx: Any) -> None:
    one = functools.partial(ctx.emit, a)
    one(event)


@case(a)
def a_partial_in_a_module(event: Any, ctx: Any) -> None:
    told_to_a(ctx, event=event)


@case(a, b)
def a_partial_of_a_partial(event: Any, ctx: Any) -> None:
    told_to_b(ctx, event)


@case(a)
def a_function(event: Any, ctx: Any) -> None:
    tell(ctx, a, event)


@case(a, b)
def a_function_by_name(event: Any, ctx: Any) -> None:
    tell_by_name(ctx, event=event)
    tell_by_name(to=b, ctx=ctx, event=event)


@case(a, b, c)
def a_function_of_many(event: Any, ctx: Any) -> None:
    tell_all(ctx, event, a, b, other=c)


@case(a, b)
def a_function_with_stars(event: Any, ctx: Any) -> None:
    tell_all(ctx, event, *PAIR)


@case(a)
def a_default(event: Any, ctx: Any) -> None:
    with_default(ctx, event)


@case(a, b)
def a_default_and_another(event: Any, ctx: Any) -> None:
    with_default(ctx, event, b)


@case(a)
def own_default(event: Any, ctx: Any, to: Any = a) -> None:
    ctx.emit(to, event)


@case(a, b)
def what_a_function_gives(event: Any, ctx: Any) -> None:
    ctx.emit(pick(event.kind), event)


@case(a)
def what_a_function_gives_in_a_variable(event: Any, ctx: Any) -> None:
    to = pick_one(event.kind)
    if to:
        ctx.emit(to, event)


@case(a, b)
def what_a_generator_gives(event: Any, ctx: Any) -> None:
    for to in picks(event.kind):
        ctx.emit(to, event)


@case(a)
def functions_that_call_each_other(event: Any, ctx: Any) -> None:
    mutual(ctx, event, 5)


@case(a)
def a_decorated_function(event: Any, ctx: Any) -> None:
    noted_tell(ctx, event)


@case(a)
@noted
def a_decorated_handler(event: Any, ctx: Any) -> None:
    ctx.emit(a, event)


@case(a, b)
def a_wrapper_without_a_note(event: Any, ctx: Any) -> None: ...


CASES["a_wrapper_without_a_note"] = emitting_first(a_global), {a, b}


@case(a, b)
def a_cached_function(event: Any, ctx: Any) -> None:
    ctx.emit(cached(event.kind), event)


@case(a, b)
def a_dispatched_function(event: Any, ctx: Any) -> None:
    dispatched(event, ctx)


@case(a, b)
def functions_in_a_dict(event: Any, ctx: Any) -> None:
    HANDLERS[event.kind](ctx, event)


@case(a)
def a_context_manager(event: Any, ctx: Any) -> None:
    with managed(ctx) as to:
        ctx.emit(to, event)


@case(b, c)
def a_class_with_a_context(event: Any, ctx: Any) -> None:
    with Teller(ctx) as teller:
        teller.tell_out(event)


@case(a)
def an_object_with_a_context(event: Any, ctx: Any) -> None:
    Teller(ctx, a).tell(event)


@case(c)
def an_object_that_is_called(event: Any, ctx: Any) -> None:
    Teller(ctx)(event)


@case(a)
def a_static_method(event: Any, ctx: Any) -> None:
    TELLER.statically(ctx, event)


@case(a, b)
def a_registry(event: Any, ctx: Any) -> None:
    ctx.emit(REGISTRY.pick(event.kind), event)


@case(a, b)
def a_registry_with_operators(event: Any, ctx: Any) -> None:
    ctx.emit(REGISTRY[event.kind], event)
    for to in REGISTRY:
        ctx.emit(to, event)


@case(a)
def an_object_with_attributes_of_its_own(event: Any, ctx: Any) -> None:
    ctx.emit(LOOSE.a, event)


@case(a)
def getattr_of_a_constant(event: Any, ctx: Any) -> None:
    ctx.emit(getattr(NAMES, "a"), event)  # noqa: B009


@case(a)
def getattr_of_a_name(event: Any, ctx: Any) -> None:
    ctx.emit(getattr(NAMES, event.kind), event)


@case(a)
def the_dict_of_an_object(event: Any, ctx: Any) -> None:
    ctx.emit(vars(NAMES)["a"], event)
    ctx.emit(NAMES.__dict__[event.kind], event)


@case(a)
def an_import(event: Any, ctx: Any) -> None:
    from tests.core.test_emissions import a as imported

    ctx.emit(imported, event)


@case(a)
def an_import_of_a_module(event: Any, ctx: Any) -> None:
    import tests.core.test_emissions

    ctx.emit(tests.core.test_emissions.a, event)


@case(a)
def logging_and_more(event: Any, ctx: Any) -> None:
    LOG.info("%s %s", ctx, a)
    ctx.metrics.count("seen")
    print(ctx, ctx.key, event.held.send(1), file=sys.stderr)  # noqa: T201  # the shape under test
    repr(ctx)
    later.get(str(LARGE["1"]))
    operator.attrgetter("key")(event)
    ctx.emit(a, Event(str(ctx.uuid()), f"{ctx.random.random()}"))


def made_with(to: Any) -> Any:
    def handler(event: Any, ctx: Any) -> None:
        ctx.emit(to, event)

    return handler


CASES["a_closure"] = made_with(a), {a}
CASES["a_closure_over_a_container"] = made_with([a, b]), {a, b}


def read(call: Callable[..., None], cls: type[Any] | None = None) -> Emissions:
    return emissions_of([call], cls, [*app.topics.values()], app.streams.values(), [Receiver, Other])


@pytest.mark.parametrize("name", CASES)
def test_what_a_function_emits_to_is_found_and_none_is_said_to_be_hidden(name: str) -> None:
    function, edges = CASES[name]
    found = read(function)
    assert found.edges == edges
    assert found.hidden == ()
    assert found.actors == frozenset()
