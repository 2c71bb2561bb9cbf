"""Types rebuilt from their schemas, to decode stored bytes without the code that wrote them.

A field that a value does not have gets its default, as the code would read it. A recursive type is decoded as
``Any`` where it contains itself. Constraints of annotations are not checked again: stored values have passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Literal, Union
from uuid import UUID

import msgspec

from tailrace.core.values.type_schemas import FieldSchema, TypeSchema

_PLAIN: dict[str, Any] = {
    "None": None,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "datetime": datetime,
    "time": time,
    "date": date,
    "timedelta": timedelta,
    "UUID": UUID,
    "Decimal": Decimal,
}

# A type checker lets only what it can read itself stand in their brackets.
_literal: Any = Literal
_union: Any = Union


def stored_type(schema: TypeSchema) -> Any:
    """A type that decodes values written as the type that the schema describes."""
    if schema.kind in _PLAIN:
        return _PLAIN[schema.kind]
    match schema.kind:
        case "enum" | "literal" if schema.values:
            return _literal[schema.values]
        case "list":
            return list.__class_getitem__(stored_type(schema.of[0]))
        case "tuple...":
            return tuple.__class_getitem__((stored_type(schema.of[0]), ...))
        case "tuple":
            return tuple.__class_getitem__(tuple(map(stored_type, schema.of)))
        case "namedtuple":
            return tuple.__class_getitem__(tuple(stored_type(one.type) for one in schema.fields))
        case "dict":
            return dict.__class_getitem__(tuple(map(stored_type, schema.of)))
        case "union":
            return _union[tuple(_member(one) for one in schema.of)]
        case "struct":
            return stored_struct(schema.fields, schema)
        case _:
            return Any


def stored_struct(fields: Sequence[FieldSchema], schema: TypeSchema | None = None) -> Any:
    """A struct of these fields, by stored name. A field without a default that a row lacks is unset."""
    known = schema or TypeSchema("struct")
    named = [(f"field_{at}", one) for at, one in enumerate(fields)]
    return msgspec.defstruct(
        known.name if known.name.isidentifier() else "Stored",
        [(attr, stored_type(one.type) | msgspec.UnsetType, _default(one)) for attr, one in named],
        rename={attr: one.name for attr, one in named},
        tag=known.tag,
        tag_field=known.tag_field,
        array_like=known.array_like,
    )


def _default(field: FieldSchema) -> Any:
    if not field.default:
        return msgspec.UNSET
    decode = partial(msgspec.msgpack.Decoder[Any](stored_type(field.type)).decode, field.default)
    return msgspec.field(default_factory=decode)


def _member(schema: TypeSchema) -> Any:
    found = stored_type(schema)
    return type(None) if found is None else found
