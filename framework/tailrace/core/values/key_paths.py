"""The path of an event's key (``"tail"``, ``"plane.tail"``, ``("airline", "number")``), and its type."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

import msgspec

from tailrace.core.errors import BadRecordError, DefinitionError
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.event_fields import event_fields, kind_of
from tailrace.core.values.types import spell

_MISSING = (NoneType, None, msgspec.UnsetType)

Path: TypeAlias = str | tuple[str, ...]
"""A field of an event, dotted where it is nested, or several of them, which make a tuple."""


def key_type_of(event_type: Any, path: Path) -> Any:
    """The type of the key at ``path`` in events of a type, without ``None`` (no key: a bad record).

    Every member of a union of structs must have the field, with the same type. DefinitionError otherwise.
    """
    if isinstance(path, str):
        return _type_at(event_type, path)
    if len(path) < 2:
        raise DefinitionError(
            f"the key of {spell(event_type)} is a tuple of {len(path)} fields",
            hint='Name one field as key="field", several as key=("field", "other").',
        )
    return tuple.__class_getitem__(tuple(_type_at(event_type, part) for part in path))


def stored_path(event_type: Any, path: Path) -> str:
    """The fields of a key by their names in encoded events, which renaming an attribute does not change."""
    return ", ".join(_encoded(event_type, part) for part in ((path,) if isinstance(path, str) else path))


def _encoded(event_type: Any, path: str) -> str:
    names: list[str] = []
    owners = members_of(event_type)
    for attr in path.split("."):
        found = [event_fields(owner)[attr] for owner in owners]
        names.append(found[0].encode_name)
        owners = tuple(member for field in found for member in members_of(field.type))
    return ".".join(names)


def key_getter(path: Path) -> Callable[[Any], Any]:
    """A getter of an event's key. It raises BadRecordError if a value on a dotted path is missing.

    The key itself may be None, which its codec refuses.
    """
    paths = (path,) if isinstance(path, str) else path
    get = attrgetter(*paths)
    if not any("." in part for part in paths):
        return get

    def key_of(event: Any) -> Any:
        try:
            return get(event)
        except AttributeError:
            raise BadRecordError(
                f"the event has no key: {' and '.join(paths)} leads through a missing value",
                reason="missing-key",
                hint="Look at what its producer sends.",
            ) from None

    return key_of


def members_of(declared: Any) -> tuple[Any, ...]:
    """The members of a union without aliases, annotations, None, UNSET and repetitions."""
    return tuple(one for one in _alternatives(declared) if one not in _MISSING)


def may_be_unset(declared: Any) -> bool:
    """Whether a value of the type may be UNSET: an encoded event is then without the field."""
    return msgspec.UnsetType in _alternatives(declared)


def _alternatives(declared: Any) -> tuple[Any, ...]:
    bare = unwrapped(declared)
    if get_origin(bare) in (Union, UnionType):
        return tuple(dict.fromkeys(one for arg in get_args(bare) for one in _alternatives(arg)))
    return (bare,)


def unwrapped(declared: Any) -> Any:
    """A type without the Annotated, NewType or alias around it."""
    while True:
        if get_origin(declared) is Annotated:
            declared = get_args(declared)[0]
        elif (inner := named_type(declared)) is not None:
            declared = inner
        else:
            return declared


def plain_key(declared: Any) -> Any:
    """A type of keys without the Annotated, NewType or alias around it and its parts."""
    bare = unwrapped(declared)
    return (
        tuple.__class_getitem__(tuple(map(plain_key, get_args(bare)))) if get_origin(bare) is tuple else bare
    )


def named_type(declared: Any) -> Any:
    """The type that a NewType or an alias (``type Name = ...``) names; None for any other type."""
    return getattr(declared, "__supertype__", None) or getattr(declared, "__value__", None)


def _type_at(event_type: Any, path: str) -> Any:
    found, _ = types_at(event_type, path, f"the key {path!r} of {spell(event_type)}")
    if len(found) != 1:
        kinds = ", ".join(map(spell, found)) or "None"
        raise DefinitionError(
            f"the key {path!r} of {spell(event_type)} has no single type: {kinds}",
            hint="Give the field one type in all of the topic's events, or a function as key=.",
        )
    return found[0]


def types_at(event_type: Any, path: str, what: str) -> tuple[tuple[Any, ...], bool]:
    """The types of the field at a dotted path, without None, and whether a value before its end may be None.

    ``what`` begins the message of the DefinitionError for a field that does not exist.
    """
    found, optional = members_of(event_type), False
    for at, name in enumerate(path.split(".")):
        owners = found
        alternatives = [one for owner in owners for one in _alternatives(_field(owner, name, what))]
        found = tuple(dict.fromkeys(one for one in alternatives if one not in _MISSING))
        optional = optional or (at < path.count(".") and len(set(alternatives)) > len(found))
    return found, optional


def _field(owner: Any, name: str, what: str) -> Any:
    if kind_of(owner) is None:
        raise DefinitionError(
            f"{what} looks for {name!r} in {spell(owner)}, which has no fields",
            hint="Name a field of a msgspec.Struct, a dataclass or a pydantic model, or give a function of "
            "the event.",
        )
    fields = event_fields(owner)
    if name not in fields:
        raise DefinitionError(
            f"{what}: {spell(owner)} has no field {name!r}",
            hint=did_you_mean(name, fields, f"Its fields are: {', '.join(fields) or 'none'}."),
        )
    return fields[name].type
