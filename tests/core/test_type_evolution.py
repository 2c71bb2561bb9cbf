import datetime as dt
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.values.type_evolution import Change, evolve_fields, evolve_type
from tailrace.core.values.type_schemas import FieldSchema, TypeSchema, describe_type
from tests.core.durable import INTS, TEXT, Cat, Dog, Typed


class Two(Enum):
    A = "a"
    B = "b"


class Three(Enum):
    A = "a"
    B = "b"
    C = "c"


class Small(IntEnum):
    ONE = 1


class Now(msgspec.Struct):
    x: int


class Wider(msgspec.Struct):
    x: int | None


class Longer(msgspec.Struct):
    x: int
    y: str = ""


class Demanding(msgspec.Struct):
    x: int
    y: str


class Renamed(msgspec.Struct, rename={"other": "x"}):
    other: int


class Empty(msgspec.Struct):
    pass


class Array(msgspec.Struct, array_like=True):
    x: int


class LongArray(Array, array_like=True):
    y: str = ""


class Maybe(msgspec.Struct):
    x: int | msgspec.UnsetType = msgspec.UNSET


class Pair(NamedTuple):
    x: int


class LongPair(NamedTuple):
    x: int
    y: str = ""


class Node(msgspec.Struct):
    next: "Node | None" = None


class Link(msgspec.Struct):
    next: "Link | None" = None
    weight: int = 0


Positive = Annotated[int, msgspec.Meta(ge=0)]
Beyond = Annotated[int, msgspec.Meta(ge=-5)]

CASES: list[tuple[Any, Any, list[Any], str]] = [
    (int, int, [1, 2**64 - 1], ""),
    (int, float, [1, -5], "incompatible"),
    (int, int | None, [1], "widened"),
    (int, int | str, [1], "widened"),
    (int | None, float | None, [1, None], "incompatible"),
    (None, str | None, [None], "widened"),
    (float, int | float, [1.0], "widened"),
    (float, int, [1.0], "incompatible"),
    (float | int, float, [1.0, 1], "incompatible"),
    (int, bool, [1], "incompatible"),
    (bool, int, [True], "incompatible"),
    (int, str, [1], "incompatible"),
    (int | None, int, [None], "incompatible"),
    (int | str, int, ["a"], "incompatible"),
    (str, dt.date | None, ["a"], "incompatible"),
    (dt.date, dt.datetime, [dt.date(2020, 1, 1)], "incompatible"),
    (int, Decimal, [1], "incompatible"),
    (Two, Three, [Two.A], "widened"),
    (Three, Two, [Three.C], "incompatible"),
    (Two, str, [Two.A], "widened"),
    (Two, str | None, [Two.A], "widened"),
    (str, Two, ["z"], "incompatible"),
    (Small, int, [Small.ONE], "widened"),
    (Literal["a"], Literal["a", "b"], ["a"], "widened"),
    (Literal["a", 1, None], Literal["a", "b", 1, 2, None], ["a", 1, None], "widened"),
    (Literal["a", 1], str | int, ["a", 1], "widened"),
    (Literal["a", "b"], Literal["a"], ["b"], "incompatible"),
    (Literal["a", 1], Literal["a"], [1], "incompatible"),
    (Positive, int, [1], "widened"),
    (Positive, Beyond, [1], "widened"),
    (Beyond, Positive, [-5], "incompatible"),
    (int, Positive, [-1], "incompatible"),
    (tuple[int, ...], list[int], [(1, 2)], "incompatible"),
    (list[int], list[str], [[1]], "incompatible"),
    (tuple[int, str], tuple[int | None, str], [(1, "a")], "widened"),
    (tuple[int, str], tuple[int, str, int], [(1, "a")], "incompatible"),
    (dict[str, int], dict[str, int | None], [{"a": 1}], "widened"),
    (dict[Two, int], dict[Three, int], [{Two.A: 1}], "widened"),
    (dict[str, int], dict[int, int], [{"a": 1}], "incompatible"),
    (dict[str, int], Now, [{"a": 1}], "incompatible"),
    (Now, Now, [Now(1)], ""),
    (Now, Renamed, [Now(1)], "widened"),
    (Now, Wider, [Now(1)], "widened"),
    (Now, Longer, [Now(1)], "added"),
    (Now, Demanding, [Now(1)], "incompatible"),
    (Longer, Demanding, [Longer(1, "a")], "widened"),
    (Demanding, Longer, [Demanding(1, "a")], "widened"),
    (Longer, Now, [Longer(1)], "removed"),
    (Now, Empty, [Now(1)], "removed"),
    (Now, Array, [Now(1)], "incompatible"),
    (Now, Cat, [Now(1)], "incompatible"),
    (Now, Maybe, [Now(1)], "widened"),
    (Maybe, Now, [Maybe()], "incompatible"),
    (Now, Now | None, [Now(1)], "widened"),
    (list[Now], list[Longer], [[Now(1)]], "added"),
    (Array, LongArray, [Array(1)], "incompatible"),
    (Pair, LongPair, [Pair(1)], "incompatible"),
    (Cat, Cat | Dog, [Cat(1)], "widened"),
    (Cat | Dog, Cat, [Dog("a")], "incompatible"),
    (Node, Link, [Node(Node())], "added"),
    (Link, Node, [Link(Link())], "removed"),
]


def evolved(stored: Any, declared: Any) -> tuple[TypeSchema, list[Change]]:
    changes: list[Change] = []
    return evolve_type("x", describe_type(stored), describe_type(declared), changes), changes


@pytest.mark.parametrize(("stored", "declared", "values", "verdict"), CASES)
def test_the_verdict_is_what_decoding_shows(
    stored: Any, declared: Any, values: list[Any], verdict: str
) -> None:
    _, changes = evolved(stored, declared)
    kinds = {change.kind for change in changes}
    assert verdict in kinds if verdict else not kinds
    if verdict != "incompatible":
        assert "incompatible" not in kinds
        for value in values:
            msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=declared)
    for change in changes:
        if change.kind == "incompatible":
            assert change.field.startswith("x")
            assert change.stored or change.declared
            assert change.hint


@pytest.mark.parametrize("declared", [case[0] for case in CASES])
def test_a_schema_survives_being_stored(declared: Any) -> None:
    schema = describe_type(declared)
    data = msgspec.json.encode(schema)
    assert msgspec.json.decode(data, type=TypeSchema) == schema
    assert not evolved(declared, declared)[1]


# --- chains of versions ---


def _nest(name: str, fields: list[tuple[str, Any] | tuple[str, Any, Any]], **options: Any) -> Typed:
    cls = msgspec.defstruct(name, fields, **options)
    strategies = {"x": INTS, "y": TEXT, "z": st.one_of(st.none(), TEXT)}
    own = {field[0]: strategies[field[0]] for field in fields}
    return Typed(cls, st.builds(cls, **own))


POOL = [
    Typed(int, st.integers(-5, 5)),
    Typed(float, st.floats(allow_nan=False)),
    Typed(int | None, st.one_of(st.none(), INTS)),
    Typed(float | str, st.one_of(st.floats(allow_nan=False), TEXT)),
    Typed(str, TEXT),
    Typed(Two, st.sampled_from(Two)),
    Typed(Three, st.sampled_from(Three)),
    Typed(Literal["a"], st.just("a")),
    Typed(list[int], st.lists(INTS, max_size=2)),
    Typed(tuple[float, ...], st.lists(st.floats(allow_nan=False), max_size=2).map(tuple)),
    Typed(dict[str, int], st.dictionaries(TEXT, INTS, max_size=2)),
    _nest("V0", [("x", int)]),
    _nest("V1", [("x", int), ("y", str, "")]),
    _nest("V2", [("x", int), ("y", str)]),
    _nest("V3", [("y", str, "")]),
    _nest("V4", [("x", int, 0), ("z", str | None, None)]),
    _nest("V6", [("x", int)], array_like=True),
    _nest("V7", [("x", int), ("y", str, "")], array_like=True),
    _nest("V8", [("x", int)], tag="v"),
]
DEFAULTED = st.booleans()


@st.composite
def versions(draw: st.DrawFn) -> tuple[type[msgspec.Struct], st.SearchStrategy[Any]]:
    """A struct with some of three fields, each of a type of the pool, with a default or without."""
    fields: list[Any] = []
    values: dict[str, st.SearchStrategy[Any]] = {}
    for name in draw(st.sets(st.sampled_from("abc"), min_size=1)):
        typed = draw(st.sampled_from(POOL))
        values[name] = typed.values
        fields.append((name, typed.type, draw(typed.values)) if draw(DEFAULTED) else (name, typed.type))
    cls = msgspec.defstruct("Version", [_own(field) for field in fields], kw_only=True)
    return cls, st.builds(cls, **values)


def _own(field: tuple[Any, ...]) -> tuple[Any, ...]:
    """A field whose default msgspec takes: a value that can be changed has to come from a factory."""
    if len(field) == 2:
        return field
    name, declared, default = field
    return name, declared, msgspec.field(default_factory=lambda: default)


def _fields(cls: type[msgspec.Struct]) -> tuple[FieldSchema, ...]:
    return describe_type(cls).fields


@given(st.data())
def test_whatever_was_ever_stored_decodes_as_any_version_that_was_let_through(data: st.DataObject) -> None:
    cls, values = data.draw(versions())
    fields: tuple[FieldSchema, ...] = _fields(cls)
    past: tuple[FieldSchema, ...] = ()
    written = [msgspec.msgpack.encode(data.draw(values)) for _ in range(2)]
    accepted = 0
    for _ in range(12):
        cls, values = data.draw(versions())
        changes: list[Change] = []
        merged = evolve_fields("", (fields, past), _fields(cls), changes)
        if any(change.kind == "incompatible" for change in changes):
            continue
        accepted += 1
        fields, past = merged
        for row in written:
            msgspec.msgpack.decode(row, type=cls)
        written += [msgspec.msgpack.encode(data.draw(values)) for _ in range(2)]
