"""Types as data: a description of stored values that does not need their classes.

A ``TypeSchema`` has exactly the properties that determine the bytes of a type: encoded names instead of
attributes, enum values instead of members, tags instead of classes (``name`` is only for messages).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import inspect

from tailrace.core.values.defaults import NOT_CERTAIN, VaryingDefaultError, encoded_default
from tailrace.core.values.guards import LIMITS, struct_class

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


# omit_defaults compares by identity. Each default here is the only object of its value, so the bytes are
# certain.
class TypeSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """One type: its ``kind`` and its parts.

    ``kind`` is the name of a plain type, or one of these, which use the fields given: ``enum``, ``literal``
    (values, all str or all int); ``union``, ``list``, ``tuple``, ``tuple...``, ``dict`` (of); ``namedtuple``,
    ``struct`` (name, fields, and ``past``: fields that old rows may still have); ``recursive`` (up: the
    number of enclosing structs between it and the struct that it is). ``limits`` are those of an annotation.
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
    which cannot be changed any more. ``default`` is the default as msgpack (see ``defaults``); None if there
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
    topics the fields that are the key, "" where a function makes it.
    """

    key: TypeSchema
    fields: tuple[FieldSchema, ...]
    past: tuple[FieldSchema, ...] = ()
    timers: tuple[str, ...] = ()
    mixed: bool = False
    inputs: dict[str, str] = {}


def describe_type(declared: Any) -> TypeSchema:
    """The schema of a durable type (one that ``types.check_durable`` accepts)."""
    return _described(inspect.type_info(declared), ())


def _described(node: inspect.Type, around: tuple[type, ...]) -> TypeSchema:
    limits = {name: value for name in LIMITS if (value := getattr(node, name, None)) is not None}
    plain = _PLAIN.get(type(node))
    if plain is not None:
        return TypeSchema(plain, limits=limits)
    match node:
        case inspect.Metadata():
            return _described(node.type, around)
        case inspect.EnumType():
            return TypeSchema("enum", node.cls.__name__, values=tuple(sorted(one.value for one in node.cls)))
        case inspect.LiteralType():
            return _literal(node.values)
        case inspect.UnionType():
            members = [member for part in node.types for member in _described(part, around).members]
            return TypeSchema("union", of=tuple(members))
        case inspect.ListType():
            return TypeSchema("list", of=_all(around, node.item_type), limits=limits)
        case inspect.VarTupleType():
            return TypeSchema("tuple...", of=_all(around, node.item_type), limits=limits)
        case inspect.TupleType():
            return TypeSchema("tuple", of=_all(around, *node.item_types))
        case inspect.DictType():
            return TypeSchema("dict", of=_all(around, node.key_type, node.value_type), limits=limits)
        case inspect.NamedTupleType():
            return TypeSchema(
                "namedtuple", node.cls.__name__, fields=_fields(node.fields, (*around, node.cls))
            )
        case inspect.StructType():
            return _struct(node, around)
        case _:
            raise TypeError(f"{node} is not a durable type")


def _all(around: tuple[type, ...], *nodes: inspect.Type) -> tuple[TypeSchema, ...]:
    return tuple(_described(node, around) for node in nodes)


def _literal(values: Iterable[Any]) -> TypeSchema:
    """One literal type for each kind of value, since they are read as different types."""
    sorts = [tuple(sorted(value for value in values if type(value) is kind)) for kind in (str, int)]
    parts = [TypeSchema("literal", values=some) for some in sorts if some]
    if None in values:
        parts.append(TypeSchema("None"))
    return parts[0] if len(parts) == 1 else TypeSchema("union", of=tuple(parts))


def _struct(node: inspect.StructType, around: tuple[type, ...]) -> TypeSchema:
    # Compare the full alias: a generic struct may contain itself with another argument.
    if node.cls in around:
        return TypeSchema("recursive", struct_class(node).__name__, up=around[::-1].index(node.cls))
    return TypeSchema(
        "struct",
        struct_class(node).__name__,
        fields=_fields(node.fields, (*around, node.cls)),
        tag_field=node.tag_field,
        tag=node.tag,
        array_like=node.array_like,
    )


def _default(field: inspect.Field) -> bytes | None:
    """The default of a nested struct's field. Its factory may vary: perhaps only producers use it."""
    try:
        return encoded_default(field.default, field.default_factory, field.type)
    except VaryingDefaultError:
        return NOT_CERTAIN


def _fields(fields: Iterable[inspect.Field], around: tuple[type, ...]) -> tuple[FieldSchema, ...]:
    return tuple(
        FieldSchema(
            field.encode_name,
            _described(field.type, around),
            required=field.required,
            # msgspec's inspection shows a default of UNSET as a field that is not required and has no
            # default.
            absent=not field.required and field.default is field.default_factory is msgspec.NODEFAULT,
            default=_default(field),
        )
        for field in fields
    )
