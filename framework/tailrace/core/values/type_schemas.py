"""Types as data: a description of stored values, or of events, that does not need their classes.

A ``TypeSchema`` has exactly the properties that determine the bytes of a type: encoded names instead of
attributes, enum values instead of members, tags instead of classes (``name`` is only for messages).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Flag, FlagBoundary
from functools import reduce
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from tailrace.core.values.defaults import NOT_CERTAIN, VaryingDefaultError, encoded_default
from tailrace.core.values.event_fields import event_fields
from tailrace.core.values.guards import LIMITS, struct_class
from tailrace.core.values.key_paths import may_be_unset

_PLAIN: Final[dict[type[inspect.Type], str]] = {
    inspect.NoneType: "None",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.DateTimeType: "datetime",
    inspect.TimeType: "time",
    inspect.DateType: "date",
    inspect.TimeDeltaType: "timedelta",
    inspect.UUIDType: "UUID",
    inspect.DecimalType: "Decimal",
}
_OF_EVENTS: Final[dict[type[inspect.Type], str]] = {
    inspect.AnyType: "Any",
    inspect.RawType: "Any",
    inspect.ByteArrayType: "bytes",
    inspect.MemoryViewType: "bytes",
}
"""Types that events may have and stored values may not, beside sets, dataclasses and typed dicts."""


# omit_defaults compares by identity. Each default here is the only object of its value, so the bytes are
# certain.
class TypeSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """One type: its ``kind`` and its parts.

    ``kind`` is the name of a plain type, or one of these, which use the fields given: ``enum``, ``literal``
    (values, all str or all int); ``union``, ``list``, ``tuple``, ``tuple...``, ``dict`` (of); ``namedtuple``,
    ``struct`` (name, fields, and ``past``: fields that old rows may still have); ``recursive`` (up: the
    number of enclosing structs between it and the struct that it is). ``limits`` are those of an annotation.
    Only events have ``Any``, ``set`` and ``frozenset`` (of), and structs that ``forbid`` unknown fields; a
    dataclass or a typed dict is a struct there.
    """

    kind: str
    name: str = ""
    of: tuple[TypeSchema, ...] = ()
    values: tuple[str | int, ...] = ()
    fields: tuple[FieldSchema, ...] = ()
    past: tuple[FieldSchema, ...] = ()
    tag_field: str | None = None
    tag: str | int | None = None
    array_like: bool = False
    limits: dict[str, str | int | float | bool] = {}
    up: int = 0
    forbid: bool = False

    @property
    def members(self) -> tuple[TypeSchema, ...]:
        """The members of a union, or the type itself."""
        return self.of if self.kind == "union" else (self,)

    def __str__(self) -> str:
        if self.kind == "union":
            return " | ".join(map(str, self.of))
        if self.kind == "literal":
            return f"Literal[{', '.join(map(repr, self.values))}]"
        if self.kind == "tuple...":
            return f"tuple[{self.of[0]}, ...]"
        if self.of:
            return f"{self.kind}[{', '.join(map(str, self.of))}]"
        limits = ", ".join(f"{name}={value!r}" for name, value in self.limits.items())
        return (self.name or self.kind) + (f"({limits})" if limits else "")


class FieldSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field under its stored name: of a struct, or of an actor, where ``kind`` may be ``map`` or ``list``.

    ``required``: it has no default. ``absent``: some stored rows may not have it; they read the default,
    which cannot be changed any more. Of an event: it may be written without the field. ``default`` is the default as msgpack (see ``defaults``); None if there
    is none or it is not known.
    """

    name: str
    type: TypeSchema
    kind: str = "value"
    key: TypeSchema | None = None
    required: bool = False
    absent: bool = False
    ttl_ms: int | None = None
    ttl_time: str | None = None
    default: bytes | None = None

    def __str__(self) -> str:
        if self.kind == "map":
            return f"MapState[{self.key}, {self.type}]"
        return f"ListState[{self.type}]" if self.kind == "list" else str(self.type)


class ActorSchema(msgspec.Struct, frozen=True):
    """What is stored of an actor. ``past``: fields that are declared no more and that rows may still have.

    ``timers`` are the families that pending timers may be of (see ``declare.schema.timer_family``).
    ``mixed``: rows may be of the form that another declaration has given them. ``inputs``: for each of its
    topics the fields that are the key, "" where a function makes it. ``meaning``: what the parts of a composite field stand
    for, and under "" what an operator of the library does. ``payloads``: of those families whose timers have one. ``migrated``: the mark of its
    migrations, see ``declare.migrations``.
    """

    key: TypeSchema
    fields: tuple[FieldSchema, ...]
    past: tuple[FieldSchema, ...] = ()
    timers: tuple[str, ...] = ()
    mixed: bool = False
    inputs: dict[str, str] = {}
    meaning: dict[str, str] = {}
    payloads: tuple[FieldSchema, ...] = ()
    migrated: str = ""


class _Scope(NamedTuple):
    """Where a type is described: the classes around it, outermost first, and whether it is of an event."""

    around: tuple[type, ...] = ()
    events: bool = False

    def inside(self, cls: type) -> _Scope:
        return _Scope((*self.around, cls), self.events)


def describe_type(declared: Any) -> TypeSchema:
    """The schema of a durable type (one that ``types.check_durable`` accepts)."""
    return _described(inspect.type_info(declared), _Scope())


def describe_event(declared: Any) -> TypeSchema:
    """The schema of an event type that msgspec decodes. Raises TypeError for one that has custom types."""
    return _described(inspect.type_info(declared), _Scope(events=True))


def _described(node: inspect.Type, scope: _Scope) -> TypeSchema:
    limits = {name: value for name in LIMITS if (value := getattr(node, name, None)) is not None}
    plain = _PLAIN.get(type(node)) or (_OF_EVENTS.get(type(node)) if scope.events else None)
    if plain is not None:
        return TypeSchema(plain, limits=limits)
    match node:
        case inspect.Metadata():
            return _described(node.type, scope)
        case inspect.EnumType() if getattr(node.cls, "_boundary_", None) is FlagBoundary.KEEP:
            return TypeSchema("int", node.cls.__name__)  # an IntFlag may be any int
        case inspect.EnumType():
            values = [one.value for one in node.cls]
            if issubclass(node.cls, Flag):
                values = reduce(lambda some, bit: [*some, *(one | bit for one in some)], values, [0])
            return TypeSchema("enum", node.cls.__name__, values=tuple(sorted(values)))
        case inspect.LiteralType():
            return _literal(node.values)
        case inspect.UnionType():
            members = [member for part in node.types for member in _described(part, scope).members]
            return TypeSchema("union", of=tuple(members))
        case inspect.ListType():
            return TypeSchema("list", of=_all(scope, node.item_type), limits=limits)
        case inspect.VarTupleType():
            return TypeSchema("tuple...", of=_all(scope, node.item_type), limits=limits)
        case inspect.TupleType():
            return TypeSchema("tuple", of=_all(scope, *node.item_types))
        case inspect.DictType():
            return TypeSchema("dict", of=_all(scope, node.key_type, node.value_type), limits=limits)
        case inspect.SetType() | inspect.FrozenSetType() if scope.events:
            kind = "set" if isinstance(node, inspect.SetType) else "frozenset"
            return TypeSchema(kind, of=_all(scope, node.item_type), limits=limits)
        case inspect.NamedTupleType():
            fields = _fields(node.fields, node.cls, scope)
            return TypeSchema("namedtuple", node.cls.__name__, fields=fields)
        case inspect.StructType():
            return _struct(node, scope)
        case inspect.DataclassType() | inspect.TypedDictType() if scope.events:
            return _like_a_struct(node, scope)
        case _:
            raise TypeError(f"{node} is not a {'type of events' if scope.events else 'durable type'}")


def _all(scope: _Scope, *nodes: inspect.Type) -> tuple[TypeSchema, ...]:
    return tuple(_described(node, scope) for node in nodes)


def _literal(values: Iterable[Any]) -> TypeSchema:
    """One literal type for each kind of value, since they are read as different types."""
    sorts = [tuple(sorted(value for value in values if type(value) is kind)) for kind in (str, int)]
    parts = [TypeSchema("literal", values=some) for some in sorts if some]
    if None in values:
        parts.append(TypeSchema("None"))
    return parts[0] if len(parts) == 1 else TypeSchema("union", of=tuple(parts))


def _struct(node: inspect.StructType, scope: _Scope) -> TypeSchema:
    # Compare the full alias: a generic struct may contain itself with another argument.
    if node.cls in scope.around:
        return TypeSchema("recursive", struct_class(node).__name__, up=scope.around[::-1].index(node.cls))
    return TypeSchema(
        "struct",
        struct_class(node).__name__,
        fields=_fields(node.fields, node.cls, scope),
        tag_field=node.tag_field,
        tag=node.tag,
        array_like=node.array_like,
        forbid=scope.events and node.forbid_unknown_fields,
    )


def _like_a_struct(node: inspect.DataclassType | inspect.TypedDictType, scope: _Scope) -> TypeSchema:
    name = getattr(node.cls, "__origin__", node.cls).__name__
    if node.cls in scope.around:
        return TypeSchema("recursive", name, up=scope.around[::-1].index(node.cls))
    return TypeSchema("struct", name, fields=_fields(node.fields, node.cls, scope))


def _default(field: inspect.Field) -> bytes | None:
    """The default of a nested struct's field. Its factory may vary: perhaps only producers use it."""
    try:
        return encoded_default(field.default, field.default_factory, field.type)
    except VaryingDefaultError:
        return NOT_CERTAIN


def _fields(fields: Iterable[inspect.Field], cls: type, scope: _Scope) -> tuple[FieldSchema, ...]:
    inner = scope.inside(cls)
    return tuple(
        FieldSchema(
            field.encode_name,
            _described(field.type, inner),
            required=field.required,
            absent=_may_be_absent(field, cls, events=scope.events),
            default=_default(field),
        )
        for field in fields
    )


def _may_be_absent(field: inspect.Field, cls: type, *, events: bool) -> bool:
    if field.required:
        return False
    # msgspec's inspection shows a default of UNSET as a field that is not required and has no default.
    if field.default is field.default_factory is msgspec.NODEFAULT:
        return True
    if not events:
        return False
    declared = event_fields(cls).get(field.name)
    if declared is not None and may_be_unset(declared.type):
        return True
    config = getattr(getattr(cls, "__origin__", cls), "__struct_config__", None)
    is_omitted = field.default_factory in (msgspec.NODEFAULT, list, dict, set)
    return config is not None and config.omit_defaults and is_omitted
