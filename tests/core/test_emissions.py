"""Where a handler emits to is found in its code, however it names or holds its topics."""

from __future__ import annotations

import logging
import operator
import sys
from typing import Any

import pytest

from tests.core.emitting import (
    BY_KIND,
    DEFAULTS,
    KIND,
    LARGE,
    LIST,
    LOOSE,
    NAMES,
    NESTED,
    PAIR,
    PROXY,
    REGISTRY,
    ROUTES,
    ROWS,
    SET,
    SETTINGS,
    SLOTTED,
    Cases,
    Event,
    Function,
    Topics,
    a,
    app,
    b,
    c,
    check,
    later,
    package,
    side,
)

CASES = Cases()
case = CASES.case
LOG = logging.getLogger("emitting")

this = sys.modules[__name__]


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
    from tests.core.emitting import a as imported

    ctx.emit(imported, event)


@case(a)
def an_import_of_a_module(event: Any, ctx: Any) -> None:
    import tests.core.emitting

    ctx.emit(tests.core.emitting.a, event)


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


CASES.add("a_closure", made_with(a), a)
CASES.add("a_closure_over_a_container", made_with([a, b]), a, b)


@pytest.mark.parametrize(("function", "edges"), CASES.rows)
def test_a_topic_is_found_by_whatever_name_it_goes(function: Function, edges: set[Any]) -> None:
    check(function, edges)
