"""Avro, by fastavro: the schema of a type, and the bytes of events."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from io import BytesIO
from math import nan
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import inspect

from tailrace.core.errors import DefinitionError, EventValueError, UsageError
from tailrace.core.extras import ExtraModule
from tailrace.core.values.types import spell

fastavro: Any = ExtraModule("fastavro", "Topics in Avro", "registry")

_KEPT: Final = (bytes, datetime, date, Decimal, UUID)
"""Types that fastavro writes itself."""
_ERRORS: Final = (ValueError, LookupError, ArithmeticError, AttributeError, EOFError, struct.error)
_CHECKED: Final = ("bytes-decimal", "fixed-decimal", "int-time-millis", "long-time-micros")
_DEEPEST: Final = 64
"""How deep a record may be in records of its own kind."""
_MOST_FREE: Final = 1_000
_MOST_NODES: Final = 200_000
_NOTHING: Final[dict[str, Any]] = {"type": "enum", "symbols": {}, "fields": []}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final[dict[type[inspect.Type], Any]] = {
    inspect.BoolType: "boolean",
    inspect.IntType: "long",
    inspect.FloatType: "double",
    inspect.StrType: "string",
    inspect.BytesType: "bytes",
    inspect.DateTimeType: {"type": "long", "logicalType": "timestamp-micros"},
    inspect.DateType: {"type": "int", "logicalType": "date"},
    inspect.UUIDType: {"type": "string", "logicalType": "uuid"},
}


def reader_of(id_: int, schema: str | None, type: Any) -> Callable[[bytes], Any]:
    """A decoder of records by the schema of their writer; None: they are garbage. It raises what msgspec raises."""
    try:
        fields = [{"name": "event", "type": msgspec.json.decode(schema or "null")}]
        whole = fastavro.parse_schema({"type": "record", "name": "tailrace__event", "fields": fields})
        parsed: dict[str, Any] = {
            **_Strict(whole["__named_schemas"]).of(whole, _DEEPEST),
            "__named_schemas": {},
        }
    except Exception as error:  # noqa: BLE001  # whatever fastavro says of it
        why = str(error) if isinstance(error, _TooLargeError) else "is not in Avro"
        raise msgspec.DecodeError(f"the schema {id_} of the record {why}") from None
    read, convert = fastavro.schemaless_reader, msgspec.convert
    fastavro.read.LOGICAL_READERS |= {f"{one.partition('-')[0]}-tailrace": _checked for one in _CHECKED}

    def decode(data: bytes) -> Any:
        file = BytesIO(data)
        try:
            plain = read(file, parsed, None)["event"]
            if file.read(1):
                raise ValueError("more bytes follow")
        except (*_ERRORS, TypeError) as error:
            raise msgspec.DecodeError(f"these bytes are not of the Avro schema {id_}: {error!r}") from None
        return convert(plain, type)

    return decode


class _TooLargeError(Exception):
    """A schema by which few bytes are values without end."""


class _Strict:
    """Schemas so that fastavro finds nothing at a negative index, and ``_checked`` reads decimals and times.

    What refers to a record by its name gets the record itself, ``_DEEPEST`` times one in the other, and then nothing: fastavro in C
    would go as deep as the bytes say. It would also take any number of items that have no bytes.
    """

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._known: dict[tuple[str, int], Any] = {}
        self._count = 0

    def of(self, node: Any, left: int) -> Any:
        """A schema in which names may be followed ``left`` times."""
        if isinstance(node, list):
            return [*(self.of(one, left) for one in node), *[_NOTHING] * len(node)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # any schema
        if isinstance(node, str):
            if node in self._named and (node, left) not in self._known:
                self._known[node, left] = self.of(self._named[node], left - 1) if left else _NOTHING
            return self._known.get((node, left), node)
        self._count += 1
        parts = ("type", "items", "values")
        found = {part: self.of(one, left) if part in parts else one for part, one in node.items()}
        fields = [self.of(one, left) for one in node.get("fields", [])]
        symbols: list[str] = node.get("symbols", [])
        found |= {"fields": fields, "symbols": dict(enumerate(symbols))}
        free, takes = _bytes_of(found)
        if free > _MOST_FREE or (node["type"] == "array" and not _bytes_of(found["items"])[1]):
            raise _TooLargeError("has too many values that take no bytes")
        if self._count > _MOST_NODES:
            raise _TooLargeError("is too large")
        kind = f"{node['type']}-{node.get('logicalType')}"
        checked = {"logicalType": "tailrace", "of": kind} if kind in _CHECKED else {}
        return {**found, **checked, "tailrace": (free, takes)}


def _bytes_of(node: Any) -> tuple[int, bool]:
    """How many values without bytes a value has, but for those behind a number of bytes, and whether it takes any byte."""
    if isinstance(node, (str, list)):
        return int(node == "null"), node != "null"
    if "tailrace" in node:
        known: tuple[int, bool] = node["tailrace"]
        return known
    if isinstance(node["type"], dict) or node["type"] == "null":
        return _bytes_of(node["type"])
    if node["type"] in ("record", "error"):
        free, takes = zip((1, False), *map(_bytes_of, node["fields"]), strict=True)
        return sum(free), any(takes)
    return (1, False) if node.get("size") == 0 else (0, True)


def _checked(data: Any, schema: Any, _: Any = None) -> Any:
    """A decimal, which fastavro would round, or a time, which it would turn round."""
    digits = 0 if isinstance(data, int) else Decimal(int.from_bytes(data, signed=True)).adjusted() + 1
    if data < 0 if isinstance(data, int) else digits > schema["precision"]:
        raise ValueError("a decimal has too many digits, or a time is negative")
    return fastavro.read.LOGICAL_READERS[schema["of"]](data, schema)


def _digits(value: Any, schema: Any) -> Any:
    """The bytes of a decimal. fastavro does not count the zeros of 1E+20."""
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError(f"{value} is no number")
    if isinstance(value, Decimal) and value and value.adjusted() + schema["scale"] >= schema["precision"]:
        raise ValueError(f"{value} has more digits than the precision")
    return fastavro.write.LOGICAL_WRITERS["bytes-decimal"](value, schema)


def writer_of(topic: str, schema: str) -> Callable[[Any], bytes]:
    """An encoder of events of a type by its ``avro_schema``. Raises EventValueError, and UsageError for a value of another type."""
    fastavro.write.LOGICAL_WRITERS["bytes-tailrace"] = _digits
    own = schema.replace('"logicalType":"decimal"', '"logicalType":"tailrace"')
    parsed, write = fastavro.parse_schema(msgspec.json.decode(own)), fastavro.schemaless_writer
    is_settled = "timestamp" not in schema and "double" not in schema

    def encode(event: Any) -> bytes:
        file = BytesIO()
        try:
            plain = msgspec.to_builtins(event, builtin_types=_KEPT, order="deterministic")
            write(file, parsed, plain if is_settled else _settled(plain), disable_tuple_notation=True)
        except (*_ERRORS, TypeError) as error:
            what = f"an event of type {spell(type(event))} cannot be written in Avro: {error}"
            if isinstance(error, TypeError):
                raise UsageError(f"{what} (topic {topic!r})") from None
            raise EventValueError(what, topic=topic) from None
        return file.getvalue()

    return encode


def _settled(plain: Any) -> Any:
    """The value with the same bits for every NaN. Refuses a datetime without a zone, which would get that of this machine."""
    if isinstance(plain, dict):
        return {name: _settled(one) for name, one in plain.items()}  # pyright: ignore[reportUnknownVariableType]  # any value
    if isinstance(plain, (list, tuple)):
        return [_settled(one) for one in plain]  # pyright: ignore[reportUnknownVariableType]  # any value
    if isinstance(plain, datetime) and plain.tzinfo is None:
        raise ValueError(f"{plain} has no zone")
    return nan if isinstance(plain, float) and plain != plain else plain


def avro_schema(topic: str, declared: Any) -> str:
    """The schema of a struct as JSON. Raises DefinitionError for what Avro cannot express."""
    schema = _Schema(topic).of(inspect.type_info(declared), spell(declared))
    return msgspec.json.encode(schema).decode()


class _Schema:
    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._named: dict[str, Any] = {}
        """The class of each name. A name is written out once."""

    def of(self, node: inspect.Type, at: str, extra: Any = None) -> Any:
        match node:
            case inspect.Metadata():
                return self.of(node.type, at, node.extra)  # pyright: ignore[reportUnknownMemberType]  # any dict
            case inspect.StructType() | inspect.DataclassType() if not getattr(node, "array_like", False):
                name, is_new = self._name(node.cls, at)
                fields = [self._field(one, name) for one in node.fields] if is_new else []
                return {"type": "record", "name": name, "fields": fields} if is_new else name
            case inspect.UnionType(types=(one, inspect.NoneType()) | (inspect.NoneType(), one)):
                return ["null", self.of(one, at, extra)]
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
                return {"type": "array", "items": self.of(node.item_type, at)}
            case inspect.DictType(key_type=inspect.StrType()):
                return {"type": "map", "values": self.of(node.value_type, at)}
            case inspect.EnumType() if all(_NAME.fullmatch(str(one.value)) for one in node.cls):
                name, is_new = self._name(node.cls, at)
                return (
                    {"type": "enum", "name": name, "symbols": [one.value for one in node.cls]}
                    if is_new
                    else name
                )
            case inspect.DecimalType() if extra and {"precision", "scale"} <= extra.keys():
                digits = {name: extra[name] for name in ("precision", "scale")}
                return {"type": "bytes", "logicalType": "decimal", **digits}
            case _ if type(node) in _PLAIN:
                return _PLAIN[type(node)]
            case _:
                raise self._refused(at, f"is of the type {type(node).__name__.removesuffix('Type').lower()}")

    def _field(self, field: inspect.Field, record: str) -> dict[str, Any]:
        at, default = f"{record}.{field.name}", field.default
        if not _NAME.fullmatch(field.encode_name):
            raise self._refused(at, f"has the name {field.encode_name!r}")
        found = {"name": field.encode_name, "type": self.of(field.type, at)}
        if field.required:
            return found
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        default = default.value if isinstance(default, Enum) else default
        if default not in ([], {}, ()) and not isinstance(default, None | bool | int | float | str):
            raise self._refused(at, f"has the default {default!r}")
        if isinstance(found["type"], list) and default is not None:
            found["type"].reverse()  # the default is of the first type
        return {**found, "default": default}

    def _name(self, cls: Any, at: str) -> tuple[str, bool]:
        """The name of a class, and whether it occurs for the first time."""
        name = re.sub(r"\W+", "_", spell(cls).rpartition(".")[2]).strip("_")
        is_new = name not in self._named
        if self._named.setdefault(name, cls) != cls:
            raise self._refused(at, f"has one of two types with the name {name}")
        return name, is_new

    def _refused(self, at: str, why: str) -> DefinitionError:
        what = f"the topic {self._topic!r} is in Avro, and {at} {why}, which Tailrace does not write in Avro"
        hint = "Use structs, T | None, lists, dicts of str, enums of names, datetime, date, UUID, JSON defaults, decimals with their digits: "
        hint += "Annotated[Decimal, msgspec.Meta(extra={'precision': 18, 'scale': 2})]."
        return DefinitionError(what, hint=hint)
