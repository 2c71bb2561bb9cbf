"""Sets defaults in decoded dataclasses, so that they are encoded to the same bytes as constructed ones.

msgspec does not set a field that is missing in a record, since the class has the default; and it encodes only the fields
set in the instance. So of two equal instances of a dataclass without slots, the constructed one would be written with the
field, the decoded one without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import getattr_static
from types import MemberDescriptorType
from typing import Any, get_origin

from msgspec import inspect

from tailrace.core.values.event_values import inside
from tailrace.core.values.types import parts_of


def completer(declared: Any) -> Callable[[Any], Any] | None:
    """A function that gives each dataclass within a decoded value its defaults, and returns the value.

    None if it would do nothing: no dataclass in the type has defaults on its class, or all of them have slots.
    """
    node = inspect.type_info(declared)
    known = {
        cls: names
        for part in parts_of(node, set())
        if isinstance(part, inspect.DataclassType)
        if (names := _on_class(cls := get_origin(part.cls) or part.cls))
    }
    if not known:
        return None
    if isinstance(node, inspect.DataclassType) and not _inner_classes(node) & known.keys():
        return _flat(known[get_origin(declared) or declared])

    def complete(value: Any) -> Any:
        names = known.get(value.__class__)
        if names is not None:
            _fill(value, names)
        for _, inner in inside(value):
            complete(inner)
        return value

    return complete


def _flat(names: tuple[tuple[str, Any], ...]) -> Callable[[Any], Any]:
    """For a type that has defaults only on its own class, and none within its fields."""
    return lambda value: _fill(value, names)


def _fill(value: Any, names: tuple[tuple[str, Any], ...]) -> Any:
    own = value.__dict__
    for name, default in names:
        if name not in own:
            own[name] = default
    return value


def _inner_classes(node: inspect.DataclassType) -> set[type]:
    parts = (part for field in node.fields for part in parts_of(field.type, set()))
    return {get_origin(part.cls) or part.cls for part in parts if isinstance(part, inspect.DataclassType)}


def _on_class(cls: type) -> tuple[tuple[str, Any], ...]:
    """The defaults that are attributes of the class."""
    return tuple(
        (one.name, one.default)
        for one in fields(cls)
        if one.default is not MISSING and not _is_slot(cls, one.name)
    )


def _is_slot(cls: type, name: str) -> bool:
    """Whether a field is in a slot of the class or of a base, and so is always in the instance."""
    return isinstance(getattr_static(cls, name, None), MemberDescriptorType)
