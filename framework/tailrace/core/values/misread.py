"""Unions that msgspec 0.22 takes for others: it looks for the limits of one member among the parts of another, and corrupts memory.

=========================================  ========================================
a union of                                 with
=========================================  ========================================
a tuple of fixed length                    a type with limits (``Meta(ge=0)``)
a ``str`` with a pattern                   a list, set, tuple or dict
=========================================  ========================================

Making a decoder is enough, so they are found in the annotations.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from tailrace.core.values.event_fields import event_fields
from tailrace.core.values.guards import LIMITS

INSTEAD: Final = (
    "Leave the limits out and check them in the handler, or put one of the types into a msgspec.Struct."
)


def misread(declared: Any, seen: list[Any]) -> str:
    """Why msgspec cannot read the type or a part of it; empty if there is no such union. ``seen``: what is known to have none."""
    if declared in seen:
        return ""
    seen.append(declared)
    members = [*_members(declared, frozenset())]
    kinds = [get_origin(one) or one for one, _ in members]
    if len(members) > 1:
        if any(limits for _, limits in members) and any(
            kind is tuple and get_args(one)[1:] != (...,)
            for kind, (one, _) in zip(kinds, members, strict=True)
        ):
            return "msgspec cannot read a union of a tuple and a type with limits"
        if any("pattern" in limits for _, limits in members) and {*kinds} & {
            list,
            set,
            frozenset,
            tuple,
            dict,
        }:
            return "msgspec cannot read a union of a str with a pattern and a list, set, tuple or dict"
    found = (misread(part, seen) for one, _ in members for part in _parts(one))
    return next(filter(None, found), "")


def _members(declared: Any, limits: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
    """The members of a union with the names of their limits; the type itself if it is no union."""
    if get_origin(declared) is Annotated:
        declared, *marks = get_args(declared)
        given = {
            name
            for one in marks
            if isinstance(one, msgspec.Meta)
            for name in LIMITS
            if getattr(one, name) is not None
        }
        yield from _members(declared, limits | given - {"tz"})
    elif get_origin(declared) in (Union, UnionType):
        for one in get_args(declared):
            yield from _members(one, limits)
    elif named := getattr(declared, "__supertype__", None) or getattr(declared, "__value__", None):
        yield from _members(named, limits)
    else:
        yield declared, limits


def _parts(declared: Any) -> Iterator[Any]:
    yield from get_args(declared)
    try:
        yield from (one.type for one in event_fields(declared).values())
        if hasattr(declared, "_fields") or hasattr(declared, "__total__"):
            yield from get_type_hints(declared, include_extras=True).values()
    except NameError:
        return  # an error of its own
