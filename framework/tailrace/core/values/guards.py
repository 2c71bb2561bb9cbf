"""Guards: Python expressions that are true if and only if a value equals its decoded encoding.

Most fields hold an ``int``, a ``str``, a frozen event. For such types a value of the *exact* type is
indistinguishable from its decoded encoding, so a test replaces encoding and decoding. A guard is such a test;
it is compiled into the sealer of an actor (``types.make_sealer``). It must detect values that msgspec would
accept and change later:

===========================  ==========================================================================
a value                      after a restart
===========================  ==========================================================================
``1`` in a ``float`` field   ``1.0``
a NaN with another sign      the canonical NaN, see ``canonical_nan``
a datetime with a zone       in UTC; ``fold`` is lost
``True`` in an ``int`` field refused, the state can no longer be read
an int past 64 bits,         cannot be written
a lone surrogate
an instance of a subclass    one of the declared class, or refused
===========================  ==========================================================================

Types that can be changed in place (lists, dicts, structs that are not frozen), that check more than the type
(``Meta(ge=0)``) or that run code when decoded (``__post_init__``) have no guard, but are encoded and decoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect

from tailrace.core.values.canonical_nan import NAN_BYTES, pack_float

INT_MIN = -(2**63)
INT_MAX = 2**64 - 1

_EXACT: dict[type[inspect.Type], type] = {
    inspect.BoolType: bool,
    inspect.BytesType: bytes,
    inspect.DateType: date,
    inspect.DecimalType: Decimal,
    inspect.TimeDeltaType: timedelta,
    inspect.UUIDType: UUID,
}
LIMITS = ("ge", "gt", "le", "lt", "multiple_of", "pattern", "min_length", "max_length", "tz")
"""Constraints on a type, by the names of msgspec's inspection."""


class NoGuardError(Exception):
    """The type has no guard: its values must go through the codec."""


class Scope:
    """The names that the expressions of one compiled function use: constants, temporary names, functions."""

    def __init__(self) -> None:
        self.constants: dict[str, Any] = {
            "utc": UTC,
            "encodable": _encodable,
            "pack_float": pack_float,
            "nan": NAN_BYTES,
        }
        self.functions: list[str] = []
        self._names = 0
        self._open: set[type] = set()

    def constant(self, value: object) -> str:
        """A name for a value that expressions use."""
        name = self.name("c")
        self.constants[name] = value
        return name

    def name(self, prefix: str) -> str:
        """An unused name."""
        self._names += 1
        return f"{prefix}{self._names}"

    def guard(self, node: inspect.Type, first: str, then: str) -> str:
        """A type's guard, for the value that the expression ``first`` gives, and ``then`` names later.

        ``first`` may bind the name (``(v := o.count)``); it is evaluated before any ``then``.
        """
        if any(getattr(node, name, None) is not None for name in LIMITS):
            raise NoGuardError
        exact = _EXACT.get(type(node))
        if exact is not None:
            return f"type({first}) is {self.constant(exact)}"
        match node:
            case inspect.Metadata():
                return self.guard(node.type, first, then)
            case inspect.NoneType():
                return f"{first} is None"
            case inspect.IntType():
                return f"type({first}) is int and {then} <= {INT_MAX} and {then} >= {INT_MIN}"
            case inspect.FloatType():
                return f"type({first}) is float and ({then} == {then} or pack_float({then}) == nan)"
            case inspect.StrType():
                return f"type({first}) is str and ({then}.isascii() or encodable({then}))"
            case inspect.DateTimeType() | inspect.TimeType():
                exact = datetime if isinstance(node, inspect.DateTimeType) else time
                zone = f"({then}.tzinfo is utc or {then}.tzinfo is None)"
                return f"type({first}) is {self.constant(exact)} and {zone} and not {then}.fold"
            case inspect.EnumType():
                return f"type({first}) is {self.constant(node.cls)}"
            case inspect.LiteralType():
                return self._literal(node.values, first, then)
            case inspect.UnionType():
                return self._union(node.types, first, then)
            case inspect.TupleType():
                return self._tuple(tuple, node.item_types, first, then)
            case inspect.NamedTupleType():
                return self._tuple(node.cls, [field.type for field in node.fields], first, then)
            case inspect.VarTupleType():
                return f"type({first}) is tuple and {self._each(node.item_type)}({then})"
            case inspect.StructType():
                return self._struct(node, first, then)
            case _:
                raise NoGuardError

    def outline(self, node: inspect.Type, first: str, then: str) -> str:
        """The guard of the outermost type only, for a value that is encoded anyway.

        It refuses values that msgspec would write without an error: a set, in arbitrary order, where a list
        is declared, or an instance of another struct with the same fields.
        """
        match node:
            case inspect.Metadata():
                return self.outline(node.type, first, then)
            case inspect.UnionType():
                parts = [self.outline(one, then if at else first, then) for at, one in enumerate(node.types)]
                return " or ".join(f"({part})" for part in parts)
            case inspect.ListType():
                return f"type({first}) is list"
            case inspect.DictType():
                return f"type({first}) is dict"
            case inspect.TupleType() | inspect.VarTupleType():
                return f"type({first}) is tuple"
            case inspect.NamedTupleType():
                return f"type({first}) is {self.constant(node.cls)}"
            case inspect.StructType():
                return f"type({first}) is {self.constant(struct_class(node))}"
            case _:
                return self.guard(node, first, then)

    def _literal(self, values: Iterable[Any], first: str, then: str) -> str:
        parts: list[str] = []
        for kind in (NoneType, str, int):
            if some := frozenset(value for value in values if type(value) is kind):
                name, allowed = self.constant(kind), self.constant(some)
                parts.append(f"type({then if parts else first}) is {name} and {then} in {allowed}")
        return " or ".join(parts)

    def _union(self, nodes: Iterable[inspect.Type], first: str, then: str) -> str:
        none_first = sorted(nodes, key=lambda node: not isinstance(node, inspect.NoneType))
        parts = [self.guard(node, then if at else first, then) for at, node in enumerate(none_first)]
        return " or ".join(f"({part})" for part in parts)

    def _tuple(self, cls: type, nodes: Iterable[inspect.Type], first: str, then: str) -> str:
        items = [self._item(node, f"{then}[{at}]") for at, node in enumerate(nodes)]
        length = f"len({then}) == {len(items)}"
        return " and ".join([f"type({first}) is {self.constant(cls)}", length, *items])

    def _struct(self, node: inspect.StructType, first: str, then: str) -> str:
        cls = struct_class(node)
        if cls in self._open or not is_plain_frozen(cls):
            raise NoGuardError
        self._open.add(cls)
        items: list[str] = []
        for field in node.fields:
            item = self._item(field.type, f"{then}.{field.name}")
            # msgspec's inspection leaves UnsetType out of unions; this is how it shows.
            if not field.required and field.default is field.default_factory is msgspec.NODEFAULT:
                item = f"({then}.{field.name} is {self.constant(msgspec.UNSET)} or {item})"
            items.append(item)
        self._open.discard(cls)
        return " and ".join([f"type({first}) is {self.constant(cls)}", *items])

    def _item(self, node: inspect.Type, access: str) -> str:
        name = self.name("t")
        return f"({self.guard(node, f'({name} := {access})', name)})"

    def _each(self, node: inspect.Type) -> str:
        name = self.name("each")
        guard = self.guard(node, "v", "v")
        self.functions.append(
            f"def {name}(items):\n for v in items:\n  if not ({guard}): return False\n return True\n"
        )
        return name


def struct_class(node: inspect.StructType) -> type[msgspec.Struct]:
    """The class of a struct's instances. For a generic struct, ``inspect`` gives an alias of it."""
    return getattr(node.cls, "__origin__", node.cls)


def is_plain_frozen(cls: type[msgspec.Struct]) -> bool:
    """Whether instances have only their fields, and these are never assigned again."""
    config = cls.__struct_config__
    return config.frozen and not config.dict and not hasattr(cls, "__post_init__")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
