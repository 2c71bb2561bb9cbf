"""Hypothesis strategies for durable types and values of them, shared by the tests of codec,
seal and schema.
"""

import datetime as dt
import enum
from collections.abc import Callable
from decimal import Decimal
from types import NoneType
from typing import Any, Literal, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from hypothesis import strategies as st


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 9


class Sort(enum.Enum):
    A = "a"
    B = "b"


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Frozen(msgspec.Struct, frozen=True):
    name: str
    at: int = 0
    share: float = 0.0


class Loose(msgspec.Struct):
    name: str
    notes: list[str] = []


class Cat(msgspec.Struct, frozen=True, tag=True):
    lives: int


class Dog(msgspec.Struct, frozen=True, tag=True):
    name: str | msgspec.UnsetType = msgspec.UNSET


class Typed(NamedTuple):
    """A type and a strategy for values that belong to it."""

    type: Any
    values: st.SearchStrategy[Any]


naive = dt.datetime
"""For instants that are meant to have no zone."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INTS = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**64 - 1))
ZONES: Any = st.sampled_from([None, dt.UTC, ZoneInfo("Europe/Paris"), dt.timezone(dt.timedelta(hours=-5))])
INSTANTS = st.datetimes(naive(1, 1, 3), naive(9999, 12, 29), timezones=ZONES)
MOMENTS = st.one_of(INSTANTS, INSTANTS.map(lambda at: at.replace(fold=1)))

SCALARS = [
    Typed(NoneType, st.none()),
    Typed(bool, st.booleans()),
    Typed(int, INTS),
    Typed(float, st.floats()),
    Typed(str, TEXT),
    Typed(bytes, st.binary(max_size=8)),
    Typed(dt.datetime, MOMENTS),
    Typed(dt.date, st.dates()),
    Typed(dt.time, st.times(timezones=st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=2))]))),
    Typed(dt.timedelta, st.timedeltas()),
    Typed(Decimal, st.decimals()),
    Typed(UUID, st.uuids()),
    Typed(Colour, st.sampled_from(Colour)),
    Typed(Size, st.sampled_from(Size)),
    Typed(Sort, st.sampled_from(Sort)),
    Typed(Literal["a", "b", 3, None], st.sampled_from(["a", "b", 3, None])),
]
STRUCTS = [
    Typed(Point, st.builds(Point, INTS, st.floats())),
    Typed(Frozen, st.builds(Frozen, TEXT, INTS, st.floats())),
    Typed(Loose, st.builds(Loose, TEXT, st.lists(TEXT, max_size=2))),
    Typed(Cat | Dog, st.one_of(st.builds(Cat, INTS), st.builds(Dog, TEXT), st.builds(Dog))),
]
KEYS = [typed for typed in SCALARS if typed.type in (str, int, bytes, dt.date, UUID, Colour, Size)]


def _lists(of: Typed) -> Typed:
    return Typed(list.__class_getitem__(of.type), st.lists(of.values, max_size=3))


def _tuples(of: Typed) -> Typed:
    return Typed(tuple.__class_getitem__((of.type, ...)), st.lists(of.values, max_size=3).map(tuple))


def _pairs(of: Typed) -> Typed:
    return Typed(tuple.__class_getitem__((int, of.type)), st.tuples(INTS, of.values))


def _dicts(of: Typed) -> Typed:
    key = KEYS[len(str(of.type)) % len(KEYS)]
    return Typed(
        dict.__class_getitem__((key.type, of.type)), st.dictionaries(key.values, of.values, max_size=3)
    )


def _optional(of: Typed) -> Typed:
    return Typed(of.type | None, st.one_of(st.none(), of.values))


def _structs(of: Typed, *, frozen: bool) -> Typed:
    cls = msgspec.defstruct("Nest", [("value", of.type), ("count", int, 0)], frozen=frozen)
    return Typed(cls, st.builds(cls, of.values, INTS))


WRAPPERS: list[Callable[[Typed], Typed]] = [
    _lists,
    _tuples,
    _pairs,
    _dicts,
    _optional,
    lambda of: _structs(of, frozen=True),
    lambda of: _structs(of, frozen=False),
]


@st.composite
def durable_types(draw: st.DrawFn) -> Typed:
    """A type, up to three deep, with its values."""
    typed: Typed = draw(st.sampled_from(SCALARS + STRUCTS))
    for wrap in draw(st.lists(st.sampled_from(WRAPPERS), max_size=2)):
        typed = wrap(typed)
    if draw(st.booleans()) and typed.type in (int, float, Frozen):
        other = draw(st.sampled_from([one for one in SCALARS if one.type in (str, bytes, UUID)]))
        typed = Typed(typed.type | other.type, st.one_of(typed.values, other.values))
    return typed


@st.composite
def durable_values(draw: st.DrawFn) -> tuple[Any, Any]:
    """A type and a value of it."""
    typed = draw(durable_types())
    return typed.type, draw(typed.values)


def same(one: Any, other: Any) -> bool:
    """Whether no handler could tell two values apart: the types, the order of dicts, the sign of zero, the
    zone.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, msgspec.Struct):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dt.datetime | dt.time):
        return repr(one) == repr(other) and one.fold == other.fold
    return repr(one) == repr(other)
