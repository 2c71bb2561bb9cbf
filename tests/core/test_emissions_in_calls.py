"""Where a handler emits to is found in the functions that it calls, whatever way it calls them."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from tests.core.emitting import BY_KIND, PAIR, Cases, Event, Function, a, b, c, check

CASES = Cases()
case = CASES.case


# --- functions that handlers call ---


def on_progress(ctx: Any, to: Any, event: Any) -> None:
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

    wrapper.__name__ = function.__name__
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


def in_another_package(source: str) -> Any:
    """A module of a package that is not the handlers' own."""
    module = ModuleType("foreign.module")
    exec(source, vars(module))  # as an import would
    return module


foreign = in_another_package("""
def tell(ctx, to, event):
    further(ctx, to, event)

def further(ctx, to, event):
    ctx.emit(to, event)

def choose(topics, kind):
    return look(topics, kind)

def look(topics, kind):
    return topics[kind]
""")


class Teller:
    """A plain class that is given the context."""

    out = b

    def __init__(self, ctx: Any, to: Any = None) -> None:
        self.ctx = ctx
        self.to = to

    def report(self, event: Any) -> None:
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
told_to_a = functools.partial(on_progress, to=a)
told_to_b = functools.partial(functools.partial(with_default), to=b)


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
    for to in [to for to in BY_KIND.values() if to.name]:
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
    on_progress(ctx, a, event)


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
@emitting_first
def a_handler_in_a_wrapper_without_a_note(event: Any, ctx: Any) -> None:
    ctx.emit(a, event)


@case(a, b)
def a_cached_function(event: Any, ctx: Any) -> None:
    ctx.emit(cached(event.kind), event)


@case(a, b)
def a_dispatched_function(event: Any, ctx: Any) -> None:
    dispatched(event, ctx)


@case(a)
def a_function_of_another_package(event: Any, ctx: Any) -> None:
    foreign.tell(ctx, a, event)


@case(a, b)
def what_a_function_of_another_package_gives(event: Any, ctx: Any) -> None:
    ctx.emit(foreign.choose(BY_KIND, event.kind), event)


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
    Teller(ctx, a).report(event)


@case(c)
def an_object_that_is_called(event: Any, ctx: Any) -> None:
    Teller(ctx)(event)


@case(a)
def a_static_method(event: Any, ctx: Any) -> None:
    TELLER.statically(ctx, event)


@pytest.mark.parametrize(("function", "edges"), CASES.rows)
def test_a_topic_is_found_in_whatever_is_called(function: Function, edges: set[Any]) -> None:
    check(function, edges)
