"""The Arrow column of each type, and the conversion of values. Tables of Spark and exports are made of such columns.

Types are described by their schemas (``TypeSchema``), so stored values are read without the code that stored
them. Values are in the form that ``plain`` returns: JSON values, bytes, dates, instants and durations.

=========================================  ==================================
bool, int, float, str, bytes, date         the type of that name; int is 64 bits
datetime                                   timestamp, in UTC; without a zone: of no zone
timedelta                                  duration, in microseconds
enum, Literal                              the type of its values
list, tuple[T, ...]                        list
dict                                       map
struct, NamedTuple, tuple of fixed length  struct; a tuple's fields are ``_1``, ``_2``, ...
time, Decimal, UUID                        string: exact, as Python writes it
any other type                             string, as JSON: unions, recursive types, dicts
                                           that may have None as a key
=========================================  ==================================

Every column may be null: None, a missing field, a record without a value. JSON has the form of Spark's
reader: NaN and infinities by name. In JSON, a dict whose keys are None, bool, tuples or of several types is a
list of pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from tailrace.core.values.type_schemas import FieldSchema, TypeSchema
from tailrace.state.snapshots.arrow import pa

Convert = Callable[[Any], Any]

JSON = TypeSchema("json")
"""The schema of what has none: its column is JSON in a string."""

_LAST_MS = ((1 << 63) - 1) // 1000
_KEPT = (bytes, datetime, date, timedelta)
_PLAIN: Mapping[str, str] = {
    "None": "string",
    "bool": "bool",
    "int": "int64",
    "float": "double",
    "str": "string",
    "bytes": "binary",
    "date": "date32",
    "time": "string",
    "timedelta": "duration[us]",
    "UUID": "string",
    "Decimal": "string",
}
"""The names of Arrow types."""
_write_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_NO_NAMES: frozenset[Any] = frozenset((type(None), bool, tuple, list))
"""Of keys that JSON has no name for."""


def micros(time_ms: int | None) -> int | None:
    """Microseconds, as Arrow takes a timestamp; None for a time beyond what it can hold."""
    return None if time_ms is None or abs(time_ms) > _LAST_MS else time_ms * 1000


def plain(value: Any) -> Any:
    """Values as the converters take them: structs are dicts by encoded names, enums their values."""
    return msgspec.to_builtins(value, builtin_types=_KEPT)


def complete(value: Any) -> Any:
    """A value with the defaults that ``plain`` leaves out of a struct with omit_defaults."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        found = {
            name: complete(one) for attr, name in names if (one := getattr(value, attr)) is not msgspec.UNSET
        }
        if config.array_like:
            return [*(() if config.tag is None else (config.tag,)), *found.values()]
        return found if config.tag_field is None else {config.tag_field: config.tag, **found}
    if value.__class__ is dict:
        return {key: complete(one) for key, one in value.items()}
    if value.__class__ in (list, tuple):
        return [complete(one) for one in value]
    return value


class Column(NamedTuple):
    """A column's name and type. ``convert`` makes of a plain value what Arrow takes, if it is not that."""

    name: str
    type: Any
    """A ``pyarrow.DataType``."""
    convert: Convert | None = None

    @property
    def is_json(self) -> bool:
        """Whether its values are JSON text, as no Arrow type fits them."""
        return self.convert is as_json

    def values(self, given: Sequence[Any]) -> Sequence[Any]:
        """The plain values of many rows, converted."""
        convert = self.convert
        return given if convert is None else [None if one is None else convert(one) for one in given]


def column(name: str, schema: TypeSchema) -> Column:
    """The column of values of a type."""
    return Column(name, *_column(schema))


def columns_of(fields: Sequence[FieldSchema]) -> list[Column]:
    """A column for each field, under its stored name."""
    return [column(one.name, one.type) for one in fields]


def _column(schema: TypeSchema) -> tuple[Any, Convert | None]:
    found = _PLAIN.get(schema.kind)
    if found is not None:
        return pa.type_for_alias(found), None
    match schema.kind:
        case "datetime":
            naive = schema.limits.get("tz") is False
            return pa.timestamp("us", None if naive else "UTC"), None
        case "enum" | "literal" if schema.values:
            is_int = type(schema.values[0]) is int
            return (pa.int64() if is_int else pa.string()), None
        case "list" | "tuple...":
            return _array(schema.of[0])
        case "dict" if not any(one.kind == "None" for one in schema.of[0].members):
            return _map(*schema.of)
        case "tuple":
            named = [(f"_{at}", *_column(one)) for at, one in enumerate(schema.of, 1)]
            return _struct(named, [one for one, _, _ in named], by_place=True)
        case "namedtuple":
            named = [(one.name, *_column(one.type)) for one in schema.fields]
            return _struct(named, [one for one, _, _ in named], by_place=True)
        case "struct" if schema.fields:
            named = [(one.name, *_column(one.type)) for one in schema.fields]
            first = [""] if schema.array_like and schema.tag is not None else []
            return _struct(named, [*first, *(one for one, _, _ in named)], by_place=schema.array_like)
        case "union":
            return _union(schema)
        case _:
            return pa.string(), as_json


def as_json(value: Any) -> str:
    """A plain value as JSON text."""
    return _write_json(msgspec.to_builtins(_named(value), str_keys=True))


def _named(value: Any) -> Any:
    """The same with lists of pairs for dicts with keys that have no name in JSON."""
    if value.__class__ is dict:
        kinds = set(map(type, value))
        if len(kinds) > 1 or kinds & _NO_NAMES:
            return [[_named(key), _named(one)] for key, one in value.items()]
        return {key: _named(one) for key, one in value.items()}
    if value.__class__ in (list, tuple):
        return [_named(one) for one in value]
    return value


def _array(of: TypeSchema) -> tuple[Any, Convert | None]:
    type_, convert = _column(of)
    if convert is None:
        return pa.list_(type_), None
    return pa.list_(type_), lambda value: [None if one is None else convert(one) for one in value]


def _map(key: TypeSchema, value: TypeSchema) -> tuple[Any, Convert | None]:
    (key_type, key_convert), (value_type, value_convert) = _column(key), _column(value)
    of_key = key_convert or _same
    of_value = value_convert or _same

    def convert(given: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        return [(of_key(one), None if item is None else of_value(item)) for one, item in given.items()]

    return pa.map_(key_type, value_type), convert


def _struct(
    named: Sequence[tuple[str, Any, Convert | None]], places: Sequence[str], *, by_place: bool
) -> tuple[Any, Convert | None]:
    type_ = pa.struct([(name, one) for name, one, _ in named])
    converts = [(name, convert) for name, _, convert in named if convert is not None]
    if not converts and not by_place:
        return type_, None

    def convert_fields(given: Any) -> dict[str, Any]:
        found = dict(zip(places, given, strict=False)) if by_place else dict(given)
        for name, convert in converts:
            if found.get(name) is not None:
                found[name] = convert(found[name])
        return found

    return type_, convert_fields


def _union(schema: TypeSchema) -> tuple[Any, Convert | None]:
    members = [one for one in schema.of if one.kind != "None"]
    if len(members) == 1:
        return _column(members[0])
    found = [_column(one) for one in members]
    kinds = {str(type_) for type_, _ in found}
    scalar = all(one.kind not in ("struct", "datetime") for one in members)
    if scalar and len(kinds) == 1 and all(convert is None for _, convert in found):
        return found[0]
    return pa.string(), as_json


def _same(value: Any) -> Any:
    return value
