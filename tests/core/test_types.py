import collections
import dataclasses
import datetime as dt
import enum
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NewType, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.errors import DefinitionError, DurableTypeError, DurableValueError, UnfitValueError
from tailrace.core.values import types
from tailrace.core.values.codec import ValueCodec
from tests.core.durable import (
    SCALARS,
    Cat,
    Colour,
    Dog,
    Frozen,
    Loose,
    Point,
    Size,
    Sort,
    Typed,
    durable_types,
    durable_values,
    naive,
    same,
)

T = TypeVar("T")
Tail = NewType("Tail", str)
Positive = Annotated[int, msgspec.Meta(ge=0)]
Code = Annotated[str, msgspec.Meta(pattern="[A-Z]+")]
PARIS = ZoneInfo("Europe/Paris")


class Node(msgspec.Struct, frozen=True):
    next: "Node | None" = None


class Box(msgspec.Struct, Generic[T], frozen=True):
    value: T


class Bag(msgspec.Struct):
    things: Any


class Frugal(msgspec.Struct, omit_defaults=True):
    name: str = "unknown"


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class Counted(msgspec.Struct, frozen=True):
    count: int

    def __post_init__(self) -> None:
        pass


class Roomy(msgspec.Struct, frozen=True, dict=True):
    count: int


class Perms(enum.Flag):
    READ = 1


class Odd(enum.Enum):
    HALF = 0.5


class Text(str):
    __slots__ = ()


class Movie(TypedDict):
    name: str


@dataclasses.dataclass
class Data:
    name: str


class Plain:
    pass


class Holder:
    """What stands in for an actor's instance."""

    value: Any


def sealed(declared: Any, value: Any) -> Any:
    holder = Holder()
    holder.value = value
    types.make_sealer([("value", declared)])(holder)
    return holder.value


# --- which types are durable ---


@given(durable_types())
def test_what_the_other_tests_draw_is_durable(typed: Typed) -> None:
    types.check_durable(typed.type, owner="Aircraft", field="value")


@pytest.mark.parametrize(
    "declared",
    [
        *(Tail, Positive, Box[int], Node, dict[tuple[str, int], Point]),
        *(list[Frozen | None], Cat | Dog, dict[Sort, None]),
    ],
)
def test_aliases_generics_and_recursive_structs_are_durable(declared: Any) -> None:
    types.check_durable(declared, owner="Aircraft", field="value")


@pytest.mark.parametrize(
    ("declared", "hint"),
    [
        (Any, "Declare what it holds"),
        (object, "msgspec.Struct"),
        (list, "Declare what it holds"),
        (Box, "Declare what it holds"),
        (set[int], "dict[K, None]"),
        (frozenset[str], "tr.MapState[K, None]"),
        (list[set[int]], "dict[K, None]"),
        (Plain, "msgspec.Struct"),
        (Data, "msgspec.Struct"),
        (Movie, "msgspec.Struct"),
        (collections.OrderedDict, "msgspec.Struct"),
        (bytearray, "Use bytes"),
        (memoryview, "Use bytes"),
        (msgspec.Raw, "bytes"),
        (msgspec.msgpack.Ext, "msgspec.Struct"),
        (Perms, "one bool per flag"),
        (Odd, "msgspec can decode"),
        (dict[float, int], "Decimal"),
        (dict[Frozen, int], "tuple"),
        (str | bytes, "msgspec can decode"),
        (Frozen | Loose, "msgspec can decode"),
        (Bag, "Declare what it holds"),
        (list[Bag], "Declare what it holds"),
        (Frugal, "remove the option"),
        (dict[str, Frugal | None], "remove the option"),
        (Strict, "remove the option"),
        (complex, "msgspec.Struct"),
        ("Unknown", "with names"),
        (tuple[int, float] | Positive, "check them in the handler"),
        (
            list[dict[str, Annotated[str, msgspec.Meta(max_length=3)] | tuple[int, str]]],
            "check them in the handler",
        ),
        (list[int] | Code, "into a msgspec.Struct"),
        (Code | dict[str, int] | None, "into a msgspec.Struct"),
    ],
)
def test_another_type_is_refused_with_class_field_type_and_hint(declared: Any, hint: str) -> None:
    with pytest.raises(DurableTypeError) as caught:
        types.check_durable(declared, owner="Aircraft", field="last")
    text = str(caught.value)
    assert "'Aircraft'" in text
    assert "'last'" in text
    assert types.spell(declared) in text
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        (list[int] | Positive, [[1], 1]),
        (tuple[int, ...] | Annotated[str, msgspec.Meta(max_length=3)], [(1,), "ab"]),
        (
            tuple[int, float] | Annotated[dt.datetime, msgspec.Meta(tz=True)],
            [(1, 1.0), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
        ),
        (Box[tuple[int, float]] | Code, [Box((1, 1.0)), "AB"]),
    ],
)
def test_a_union_with_limits_that_is_not_refused_is_read(declared: Any, values: list[Any]) -> None:
    types.check_durable(declared, owner="Aircraft", field="last")
    for _ in range(100):
        assert [ValueCodec[Any](declared).settle(value)[1] for value in values] == values


def test_a_type_is_spelled_as_it_is_written() -> None:
    declared = (int, dict[str, int], Frozen | None, Literal["a", 1], Any, None)
    said = ["int", "dict[str, int]", "Frozen | None", "Literal['a', 1]", "Any", "None"]
    assert [types.spell(one) for one in declared] == said


class Tagged(msgspec.Struct):
    tags: set[str]


@pytest.mark.parametrize("declared", [Frozen, Bag, Data, Movie, dict[str, Any], Node, Cat | Dog])
def test_an_event_may_be_of_types_that_are_not_durable(declared: Any) -> None:
    types.check_emitted(declared, topic="overdue")


@pytest.mark.parametrize("declared", [Tagged, list[Tagged], frozenset[int], Frugal, dict[str, Frugal | None]])
def test_an_event_whose_bytes_depend_on_the_process_cannot_be_emitted(declared: Any) -> None:
    with pytest.raises(DefinitionError, match="'overdue'") as caught:
        types.check_emitted(declared, topic="overdue")
    assert caught.value.hint


# --- fixed points and immutable types ---


@pytest.mark.parametrize(
    ("declared", "fixed", "immutable"),
    [
        *((typed.type, True, True) for typed in SCALARS),
        (Tail, True, True),
        (Positive, False, True),
        (int | None, True, True),
        (Frozen, True, True),
        (Frozen | None, True, True),
        (Cat | Dog, True, True),
        (Point, True, True),
        (Box[int], True, True),
        (Box[list[int]], False, False),
        (tuple[int, ...], True, True),
        (tuple[int, list[int]], False, False),
        (Node, False, True),
        (Counted, False, False),
        (Roomy, False, False),
        (Loose, False, False),
        (Loose | None, False, False),
        (list[int], False, False),
        (dict[str, int], False, False),
        (set[int], False, False),
        (frozenset[int], False, False),
        (Any, False, False),
        (Bag, False, False),
    ],
)
def test_scalars_and_frozen_structs_of_them_need_no_encoding(
    declared: Any, fixed: bool, immutable: bool
) -> None:
    assert (types.is_fixed_point(declared), types.is_immutable(declared)) == (fixed, immutable)


# --- the seal ---


@given(durable_values())
def test_a_value_of_its_type_passes_and_a_fixed_one_is_what_a_restart_reads(typed: tuple[Any, Any]) -> None:
    declared, value = typed
    kept = sealed(declared, value)
    codec = ValueCodec[Any](declared)
    if types.is_fixed_point(declared):
        assert same(kept, codec.decode(codec.encode(kept)))
    else:
        assert same(codec.settle(kept)[1], codec.settle(value)[1])


ONE: list[Any] = [1.0]
STRANGE = [
    *(1, 0, True, 2**64, -(2**63) - 1, 1.0, 2.5, float("nan"), 2**53 + 1, 10**400),
    *("a", "red", "\ud800", "2020-01-01", "P1D", "", Text("a"), b"a", bytearray(b"a")),
    *(naive(2020, 1, 1), dt.datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=PARIS), dt.date(2020, 1, 1)),
    *(dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=9))), dt.time(2, fold=1), dt.timedelta(1)),
    *(Decimal("1.5"), UUID(int=1), Colour.RED, Size.SMALL, Sort.A, Perms.READ, None, msgspec.UNSET, Plain()),
    *((), (1, 2), (1, 2.0), [1, 2], [], {}, {"name": "a"}),
    *({1, 2}, Point(1, 1), Point(*ONE), Frozen("a", share=1)),
    *(Frozen(*ONE), Loose("a"), Cat(1), Cat(True), Dog()),
    *(Dog("a"), Node(Node()), Box(1), Roomy(1), Counted(1)),
]


@given(durable_types(), st.sampled_from(STRANGE))
def test_whatever_a_handler_leaves_is_refused_or_becomes_what_a_restart_reads(
    typed: Typed, value: Any
) -> None:
    try:
        kept = sealed(typed.type, value)
    except (DurableValueError, UnfitValueError):
        return
    codec = ValueCodec[Any](typed.type)
    if types.is_fixed_point(typed.type):
        assert same(kept, codec.decode(codec.encode(kept)))
        assert type(kept) is type(value) or kept == value or isinstance(value, list | tuple)


@pytest.mark.parametrize(
    ("declared", "value", "kept"),
    [
        (float, 1, 1.0),
        (float | None, 1, 1.0),
        (float, Size.LARGE, 9.0),
        (int, Size.LARGE, 9),
        (str, Colour.RED, "red"),
        (Size, 1, Size.SMALL),
        (Decimal, 2, Decimal(2)),
        (dt.datetime, dt.datetime(2020, 7, 1, tzinfo=PARIS), dt.datetime(2020, 6, 30, 22, tzinfo=dt.UTC)),
        (dt.datetime, naive(2020, 7, 1, fold=1), naive(2020, 7, 1)),
        (
            dt.datetime,
            dt.datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=PARIS),
            dt.datetime(2020, 10, 25, 1, 30, tzinfo=dt.UTC),
        ),
        (Frozen, Frozen("a", share=1), Frozen("a", share=1.0)),
        (tuple[float, ...], [1, 2], (1.0, 2.0)),
        (dict[str, int], collections.Counter("aab"), {"a": 2, "b": 1}),
        (list[int], (1, 2), [1, 2]),
    ],
)
def test_what_loses_nothing_is_converted(declared: Any, value: Any, kept: Any) -> None:
    plain = ValueCodec[Any](declared)
    assert not same(value, plain.decode(plain.encode(value))), "without the seal a restart would be noticed"
    assert same(sealed(declared, value), kept)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        *((int, True), (int, 1.0), (int, 2**64), (float, True), (float, 2**53 + 1), (float, Decimal(1))),
        *((bool, 1), (str, "\ud800"), (str, Text("a")), (str, UUID(int=1)), (str, None), (Decimal, 0.1)),
        *((dt.date, naive(2020, 1, 1)), (Frozen, Loose("a")), (Frozen, {"name": "a"})),
        *((Frozen, Frozen("\ud800")), (Loose, Frozen("a")), (list[int], {1, 2})),
        *((list[str] | None, frozenset("ab")), (Positive, -1), (Literal["a"], "b")),
    ],
)
def test_anything_else_is_refused_with_class_field_value_and_hint(declared: Any, value: Any) -> None:
    # A value that may come from an event is no mistake of the code.
    unfit = value in (2**64, 2**53 + 1, "\ud800", Frozen("\ud800"), -1)
    with pytest.raises(UnfitValueError if unfit else DurableValueError) as caught:
        sealed(declared, value)
    text = str(caught.value)
    assert (caught.value.owner, caught.value.field) == ("Holder", "value")
    assert types.spell(declared) in text
    assert repr(value)[:20] in text
    assert "Convert it" in text


def test_an_unset_field_is_named() -> None:
    class Aircraft(msgspec.Struct):
        legs: int
        tail: str
        notes: list[str]

    seal = types.make_sealer(list(Aircraft.__annotations__.items()))
    for name in Aircraft.__struct_fields__:
        instance = Aircraft(1, "N1", [])
        seal(instance)
        delattr(instance, name)
        with pytest.raises(DurableValueError, match="default") as caught:
            seal(instance)
        assert (caught.value.owner, caught.value.field) == (Aircraft.__qualname__, name)


def test_an_actor_without_fields_has_nothing_to_seal() -> None:
    types.make_sealer([])(Holder())


@given(durable_types(), st.sampled_from(STRANGE))
def test_a_map_value_is_sealed_like_a_field(typed: Typed, value: Any) -> None:
    check = types.normaliser(typed.type, owner="Aircraft", field="notes")
    try:
        kept = sealed(typed.type, value)
    except (DurableValueError, UnfitValueError) as error:
        with pytest.raises(type(error), match="'Aircraft', field 'notes'"):
            check(value)
    else:
        assert same(check(value), kept)


def test_a_settled_value_is_returned_itself() -> None:
    last = Frozen("a" * 100, 10**9, 2.5)
    assert types.normaliser(Frozen)(last) is last
    assert sealed(Frozen | None, last) is last


# --- explaining ---


class Aircraft(msgspec.Struct, rename="camel"):
    tail_no: str = ""
    legs: list[int] = []
    by_day: dict[str, float] = {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("legs", [1, "2"]), ("legs", [2**64]), ("by_day", {"a": None})),
        *(("by_day", {1: 2.0}), ("tail_no", Plain()), ("tail_no", "\ud800")),
    ],
)
def test_an_encoding_error_is_explained_by_class_and_field(field: str, value: Any) -> None:
    instance = Aircraft()
    setattr(instance, field, value)
    with pytest.raises(types.CODEC_ERRORS) as caught:
        ValueCodec[Any](Aircraft).settle(instance)
    error = types.explain(caught.value, Aircraft, instance)
    assert (error.owner, error.field) == ("Aircraft", field)
    assert "declare" in error.hint


def test_a_list_that_holds_itself_is_explained() -> None:
    legs: list[Any] = []
    legs.append(legs)
    instance = Aircraft(legs=legs)
    with pytest.raises(RecursionError) as caught:
        ValueCodec[Any](Aircraft).settle(instance)
    assert types.explain(caught.value, Aircraft, instance).field == "legs"


def test_an_unset_field_is_explained() -> None:
    instance = Aircraft()
    del instance.legs
    with pytest.raises(AttributeError) as caught:
        ValueCodec[Any](Aircraft).settle(instance)
    error = types.explain(caught.value, Aircraft, instance)
    assert isinstance(error, DurableValueError)
    assert error.field == "legs"
