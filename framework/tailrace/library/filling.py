"""``into=``: events of a topic whose fields are filled by name from the results of an operator, or refused where it is written.

A field is, in this order: the key, if it is that of the topic; a field of the result; the event time, if it is that of the topic; a
field of a part of the result, such as the left event of a pair. What two of them have is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import NoneType
from typing import Any, get_args

from tailrace.core.declare.event_marks import marked_key
from tailrace.core.declare.topic import Edge, Topic
from tailrace.core.errors import DefinitionError
from tailrace.core.values.event_fields import event_fields
from tailrace.core.values.key_paths import members_of
from tailrace.core.values.type_schemas import TypeSchema, describe_event
from tailrace.core.values.types import spell
from tailrace.library.operators import is_mixed

Get = Callable[[Any, Any, int], Any]
"""Gets a value of a result, its key and its event time."""
Part = tuple[Callable[[Any], Any], Any]
"""A part of a result: the function that gets it, and its type."""


def filler(
    where: str,
    topic: Topic[Any, Any],
    edge: Edge[Any, Any],
    own: Any,
    parts: Sequence[Part],
    *,
    sure: bool,
    fills: Sequence[Any] = (),
) -> Get:
    """A function that makes an event of the topic from a result of the type ``own``. Raises DefinitionError.

    ``edge``: an input of the operator, which has its key. ``sure``: values may be of any of the types of a union, else perhaps only of one of them.
    ``fills``: those of them that there will be.
    """
    keys = _keys(where, topic, edge, own)
    cls, declared, getters = topic.type, event_fields(topic.type), dict[str, Get]()
    for name, parameter in inspect.signature(cls).parameters.items():
        found, wrong = list(_sources(name, topic.settings.event_time, keys, own, parts)), ""
        if len(found) > 1:
            wrong = f"it has two values for it, that of {found[0][0]}, and that of {found[1][0]}"
        elif found:
            what, given, getters[name] = found[0]
            if name in declared and not _fits(given, declared[name].type, fills, sure=sure):
                types = " | ".join("None" if one is NoneType else spell(one) for one in given)
                wrong = f"it is {spell(declared[name].type)}, and that of {what} is {types}"
        elif parameter.default is inspect.Parameter.empty:
            wrong = "nothing has this name"
        if wrong:
            raise DefinitionError(
                f"{where} cannot fill the field {name!r} of {spell(cls)} in the topic {topic.name!r}: {wrong}",
                hint="It fills the key, the event time, and by name the fields of the result and of its parts. Change the name "
                "or the type of the field, give it a default, or leave into= out and emit the event from a function.",
            )
    return lambda result, key, at_ms: cls(**{name: get(result, key, at_ms) for name, get in getters.items()})


def _keys(
    where: str, topic: Topic[Any, Any], edge: Edge[Any, Any], own: Any
) -> dict[str, tuple[int | None, Any]]:
    """By the names of the fields that are the key: the place in the key of the operator, and the type."""
    names: Any = topic.settings.key
    if names.__class__ is not tuple:
        names = (names if isinstance(names, str) else "key",)
    # What the result has is filled by its name: a table has a value for each window.
    keys: list[Any] = [one for one in names if one == "key" or one not in event_fields(own)]
    if len(keys) < 2:
        return dict.fromkeys(keys, (None, edge.key_type))
    types, given = get_args(edge.key_type), edge.key_names
    if {*given} == {*keys}:
        keys = [*given]  # the parts go by their names
    elif len(keys) != len(types) or is_mixed(keys, given):
        parts = f", {', '.join(given)}" if given else ""
        raise DefinitionError(
            f"{where} cannot fill {', '.join(keys)} in the topic {topic.name!r} from its key of type {spell(edge.key_type)}{parts}",
            hint="Give a topic with the key of the operator, or leave into= out and emit the event from a function.",
        )
    return {name: (at, type_) for at, (name, type_) in enumerate(zip(keys, types, strict=True))}


def _sources(
    name: str, time: Any, keys: dict[str, tuple[int | None, Any]], own: Any, parts: Sequence[Part]
) -> Iterator[tuple[str, list[Any], Get]]:
    """What can fill a field: how it is called, the types that it may have, the function that gets it."""
    of_result: Any = event_fields(own)
    if is_key := name in keys:
        at, type_ = keys[name]
        yield "the key", [type_], lambda _, key, __: key if at is None else key[at]
    elif name in of_result:
        yield "the result", [of_result[name].type], lambda result, _, __: getattr(result, name)
    elif name == time:
        yield "the event time", [int], lambda _, __, at_ms: at_ms
        return
    for get, type_ in parts:
        (only, *others), lacks = members_of(type_) or (None,), NoneType in get_args(type_)
        fields: Any = {} if others else event_fields(only)
        marked = (marked_key(only, name) if name in fields else None) or name
        keyed = is_key and (
            name == marked if isinstance(marked, str) else name in marked
        )  # it is the same key
        if name in fields and not keyed:
            yield spell(only), [fields[name].type, *[NoneType] * lacks], partial(_inner, get, name)


def _inner(get: Callable[[Any], Any], name: str, result: Any, _key: Any, _at_ms: int) -> Any:
    return getattr(get(result), name, None)  # None has no such field


def _fits(given: Sequence[Any], wanted: Any, fills: Sequence[Any], *, sure: bool) -> bool:
    """Whether a value of these types can be given for the other; True if that cannot be known."""
    try:
        certain = {_kind(one) for type_ in fills for one in describe_event(type_).members}
        some = {_kind(one) for type_ in given for one in describe_event(type_).members}
        known = {_kind(one) for one in describe_event(wanted).members}
    except (TypeError, NameError):
        return True
    if "float" in known:
        known.add("int")
    if "Any" in some | known:
        return True
    return some <= known if sure else not some.isdisjoint(known) and some & certain <= known


def _kind(of: TypeSchema) -> str:
    """How it is written: enums and literals as what they hold, all lists alike."""
    if of.values:
        return type(of.values[0]).__name__
    return "list" if of.kind in ("tuple", "tuple...", "set", "frozenset", "namedtuple") else of.kind
