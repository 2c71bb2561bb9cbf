from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pytest

from tailrace.core.errors import UsageError
from tailrace.core.values.stored_types import stored_type
from tailrace.core.values.type_schemas import describe_type
from tailrace.spark.columns import arrow_schema, batch, column, restorer, struct_type
from tailrace.state.columns import plain


class Color(Enum):
    RED = "r"
    BLUE = "b"


class Point(NamedTuple):
    x: int
    y: float


class Leaf(msgspec.Struct, tag="leaf", array_like=True):
    at: time
    color: Color


class Stone(msgspec.Struct, tag="stone"):
    weight: float


class Twig(msgspec.Struct, tag="twig"):
    leaves: list[Leaf]


class Parcel(msgspec.Struct, tag="parcel"):
    inside: bytes
    sent: datetime | None = None
    weights: dict[int, float] = {}


class Tree(msgspec.Struct, rename="camel"):
    first_leaf: Leaf | None
    twigs: dict[date, Twig]
    left: Tree | None = None
    spare: int | msgspec.UnsetType = msgspec.UNSET


LEAF = Leaf(time(1, 2, 3), Color.BLUE)
NOON = datetime(2013, 5, 17, 12, 0, 0, 123456, tzinfo=UTC)
VALUES: list[tuple[Any, Any]] = [
    (int | None, [1, None, -(1 << 63)]),
    (bool, [True, False]),
    (float, [1.5, float("inf")]),
    (int | float, [1, 2.5]),
    (str, ["", "ä\0"]),
    (bytes, [b"", b"\0\xff"]),
    (datetime, [NOON]),
    (date, [date(1, 1, 1), date(9999, 12, 31)]),
    (time, [time(23, 59, 59, 999999)]),
    (timedelta, [timedelta(days=-3, microseconds=1)]),
    (Decimal, [Decimal("1.50"), Decimal("-0")]),
    (UUID, [UUID(int=7)]),
    (Color, [Color.RED]),
    (Literal[1, 2], [1, 2]),
    (Literal["a", "b"] | None, ["b", None]),
    (int | str, [1, "1"]),
    (list[int], [[], [1, 2]]),
    (list[tuple[int, str]], [[(1, "a")], []]),
    (tuple[Point, ...], [(Point(1, 2.5), Point(3, 0.0))]),
    (dict[int, list[Point | None]], [{1: [Point(1, 1.0), None], 2: []}, {}]),
    (dict[tuple[int, str], Color], [{(1, "a"): Color.RED}]),
    (Leaf, [LEAF]),
    (Stone | Twig | None, [Stone(1.5), Twig([LEAF]), None]),
    (bytes | int, [b"\0\xff", 1]),
    (datetime | int, [NOON, 5]),
    (
        Parcel | Stone | None,
        [Parcel(b"\xff", NOON, {2: 0.5, 1: float("inf")}), Parcel(b""), Stone(1.5), None],
    ),
    (list[Parcel | int], [[Parcel(b"x"), 3], []]),
    (float | str | None, [float("inf"), "Infinity", None]),
    (dict[str, int] | int, [{"b": 1, "a": 2}, 3]),
    (Tree, [Tree(LEAF, {date(2013, 1, 1): Twig([LEAF, LEAF])}, Tree(None, {})), Tree(None, {}, None, 5)]),
]


@pytest.mark.parametrize(("type_", "values"), VALUES, ids=[str(type_) for type_, _ in VALUES])
def test_a_value_survives_its_column_and_back(type_, values):
    schema = describe_type(type_)
    one = column("value", schema)
    made = batch(arrow_schema(struct_type([one])), [one], [plain(values)])
    try:
        restore = restorer(schema)
    except UsageError:
        assert "string" in one.type.simpleString()  # JSON, there or within
        return
    shown = [None if value is None else restore(value) for value in made.column("value").to_pylist()]
    found = [msgspec.convert(one, type_, builtin_types=(bytes, datetime, date, timedelta)) for one in shown]
    assert found == values
    assert list(map(type, found)) == list(map(type, values))


@pytest.mark.parametrize(("type_", "values"), VALUES, ids=[str(type_) for type_, _ in VALUES])
def test_what_was_stored_is_read_without_the_code_that_stored_it(type_, values):
    read = stored_type(describe_type(type_))
    for value in values:
        found = msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=read)
        assert plain(found) == plain(value)


def test_what_is_no_number_is_told_by_name_in_json():
    schema = describe_type(float | str | None)
    assert column("value", schema).values([float("nan"), "NaN"]) == ["NaN", '"NaN"']


def test_the_order_of_a_dict_is_kept_in_json():
    assert column("value", describe_type(dict[str, int] | int)).values([{"b": 1, "a": 2}]) == [
        '{"b":1,"a":2}'
    ]


@pytest.mark.parametrize(
    ("type_", "value", "shown"),
    [
        (dict[str | None, int], {None: 1, "a": 2}, '[[null,1],["a",2]]'),
        (dict[tuple[int, str], int] | int, {(1, "a"): 2}, '[[[1,"a"],2]]'),
        (dict[bool, int] | int, {True: 2}, "[[true,2]]"),
        (dict[int | str, int] | bool, {1: 1, "1": 2}, '[[1,1],["1",2]]'),
        (dict[bytes, date] | int, {b"x": date(2013, 1, 1)}, '{"eA==":"2013-01-01"}'),
    ],
)
def test_a_dict_that_neither_a_map_nor_an_object_can_hold_does_not_hide_the_table(type_, value, shown):
    one = column("value", describe_type(type_))
    made = batch(arrow_schema(struct_type([one])), [one], [plain([value])])
    assert made.column("value").to_pylist() == [shown]
