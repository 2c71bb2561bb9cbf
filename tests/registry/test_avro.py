"""Avro by the schema of a type: every event comes back, and what Avro cannot express is refused when it is declared."""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from io import BytesIO
from math import isnan, nan
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core.errors import EventValueError, RegistryError
from tailrace.registry import Registry
from tailrace.registry.avro import avro_schema, reader_of, writer_of

Money = Annotated[Decimal, msgspec.Meta(extra={"precision": 18, "scale": 2})]


class Kind(Enum):
    A = "A"
    B_2 = "B_2"


class Colour(Enum):
    """Its values are no names in Avro."""

    RED = "dark red"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Node(msgspec.Struct, frozen=True, rename="camel"):
    the_name: str
    below: list[Node] = []
    kind: Kind | None = None


class Everything(msgspec.Struct, frozen=True):
    flag: bool
    number: Annotated[int, msgspec.Meta(ge=-(2**63))]
    real: float
    text: str
    data: bytes
    at: datetime
    day: date
    id: UUID
    money: Money
    kind: Kind
    node: Node
    several: list[int | None]
    nested: dict[str, list[Node]]
    maybe: Money | None = None
    other: Kind | None = Kind.A
    count: int | None = 5
    many: tuple[float, ...] = ()


NAMES = st.text(max_size=5)
LONGS = st.integers(-(2**63), 2**63 - 1)
MONEY = st.integers(-(10**17), 10**17).map(lambda cents: Decimal(cents) / 100)
KINDS = st.sampled_from(Kind)
NODES = st.recursive(
    st.builds(Node, NAMES, st.just([]), st.none() | KINDS),
    lambda inner: st.builds(Node, NAMES, st.lists(inner, max_size=2), st.none() | KINDS),
    max_leaves=4,
)
TIMES = st.datetimes(timezones=st.just(UTC))
EVENTS = st.builds(
    Everything, st.booleans(), LONGS, st.floats(allow_nan=False), NAMES, st.binary(max_size=5), TIMES, st.dates(), st.uuids(),
    MONEY, KINDS, NODES,
    st.lists(st.none() | LONGS, max_size=3), st.dictionaries(NAMES, st.lists(NODES, max_size=2), max_size=3),
    st.none() | MONEY, st.none() | KINDS, st.none() | LONGS, st.lists(st.floats(allow_nan=False), max_size=2).map(tuple),
)  # fmt: skip
SCHEMA = avro_schema("it", Everything)
WRITE, READ = writer_of("events", SCHEMA), reader_of(1, SCHEMA, Everything)


@given(EVENTS)
def test_every_event_comes_back_and_its_bytes_are_those_of_its_value(event: Everything) -> None:
    written = WRITE(event)
    assert READ(written) == event
    turned = msgspec.structs.replace(event, nested=dict(reversed(event.nested.items())))
    assert WRITE(turned) == written


@given(EVENTS, st.data())
def test_bytes_that_are_cut_or_longer_are_refused_as_such(event: Everything, data: st.DataObject) -> None:
    written = WRITE(event)
    cut = data.draw(st.integers(0, len(written) - 1))
    for broken in (written[:cut], written + b"\0"):
        with pytest.raises(msgspec.DecodeError):
            READ(broken)


@given(st.binary(max_size=30))
def test_whatever_bytes_are_read_the_errors_are_msgspecs(data: bytes) -> None:
    try:
        assert isinstance(READ(data), Everything)
    except msgspec.MsgspecError:
        pass


def test_a_reader_takes_the_fields_that_it_has_and_its_defaults_for_others() -> None:
    class Old(msgspec.Struct):
        gone: str
        a: int

    class New(msgspec.Struct):
        a: float
        b: list[str] = []

    old = avro_schema("it", Old)
    assert reader_of(1, old, New)(writer_of("t", old)(Old("x", 7))) == New(7.0, [])


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"number": 2**63}, EventValueError, "too large"),
        (
            {"at": datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)},
            EventValueError,
            "2026-01-01 00:00:00 has no zone",
        ),
        ({"money": Decimal("1.005")}, EventValueError, "Scale"),
        *[({"money": Decimal(one)}, EventValueError, f"{one} is no number") for one in ("NaN", "-Infinity")],
        ({"text": 5}, tr.UsageError, "must be string on field text"),
        ({"count": "x"}, EventValueError, "on field count"),
    ],
)
def test_an_event_that_avro_cannot_hold_is_named_when_it_is_written(
    changed: dict[str, Any], error: type[Exception], said: str
) -> None:
    event = msgspec.structs.replace(READ(WRITE(EXAMPLE)), **changed)
    with pytest.raises(error, match=said):
        WRITE(event)


EXAMPLE = Everything(
    True, 1, 1.5, "t", b"d", datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1), UUID(int=1), Decimal("1.50"), Kind.A,
    Node("n"), [1], {"k": []},
)  # fmt: skip


def test_every_nan_has_the_same_bits() -> None:
    (odd,) = struct.unpack(">d", bytes.fromhex("fff8000000000001"))
    one, other = (msgspec.structs.replace(EXAMPLE, real=value, many=(value, 1.0)) for value in (nan, odd))
    assert WRITE(one) == WRITE(other)
    assert isnan(READ(WRITE(other)).real)


@pytest.mark.parametrize("value", [("a", "b"), ("null", "x"), ("array", "x"), (), None])
def test_a_tuple_in_a_union_is_no_choice_of_its_branch(value: tuple[str, ...] | None) -> None:
    event = msgspec.defstruct(
        "Event", [("one", tuple[str, ...] | None), ("by_name", dict[str, tuple[str, ...] | None])]
    )
    schema = avro_schema("t", event)
    sent = event(value, {"k": value})
    assert reader_of(1, schema, event)(writer_of("t", schema)(sent)) == sent


@pytest.mark.parametrize("value", ["1E+20", "1E+99999", "10000"])
def test_a_decimal_with_more_digits_than_its_precision_is_not_written(value: str) -> None:
    """The zeros of its exponent count. Zero itself has none."""
    six = Annotated[Decimal, msgspec.Meta(extra={"precision": 6, "scale": 2})]
    event = msgspec.defstruct("Event", [("x", Optional[six])])  # noqa: UP045  # pyright knows no | there
    schema = avro_schema("t", event)
    write, read = writer_of("t", schema), reader_of(1, schema, event)
    with pytest.raises(EventValueError, match="has more digits than the precision"):
        write(event(Decimal(value)))
    for fits in ("9999.99", "-9999.99", "1E+3", "0E+20"):
        assert read(write(event(Decimal(fits)))) == event(Decimal(fits))


def logical(plain: Any, name: str, **more: Any) -> dict[str, Any]:
    return {**(plain if isinstance(plain, dict) else {"type": plain}), "logicalType": name, **more}


FIXED = {"type": "fixed", "name": "Five", "size": 5}
ENUM = {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("schema", "type_", "fits", "value", "broken"),
    [
        (
            logical("bytes", "decimal", precision=4, scale=2),
            Decimal,
            b"\x04\x27\x0f",
            Decimal("99.99"),
            b"\x04\x27\x10",
        ),
        (
            logical(FIXED, "decimal", precision=4),
            Decimal,
            b"\xff\xff\xff\xd8\xf1",
            Decimal(-9999),
            b"\xff\xff\xff\xd8\xf0",
        ),
        (logical("int", "time-millis"), time, b"\x02", time(microsecond=1000), b"\x01"),
        (logical("long", "time-micros"), time, b"\x02", time(microsecond=1), b"\x01"),
        (logical("long", "time-millis"), int, b"\x01", -1, b""),  # the specification has it on int alone
        (ENUM, str, b"\x02", "B", b"\x01"),
        (ENUM, str, b"\x00", "A", b"\x03"),
        (["null", "string"], str | None, b"\x02\x02a", "a", b"\x01\x02a"),
        (["null", "string"], str | None, b"\x00", None, b"\x03"),
        (["null", "string"], str | None, b"\x00", None, b"\x04\x00"),
        (["null", ENUM], str | None, b"\x02\x02", "B", b"\x02\x01"),
        ({"type": "map", "values": ENUM}, dict[str, str], b"\x02\x02k\x02\x00", {"k": "B"}, b"\x02\x02k\x01\x00"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["alone", "field", "again"])
def test_bytes_that_do_not_fit_their_schema_are_refused(
    schema: Any, type_: Any, fits: bytes, value: Any, broken: bytes, form: str
) -> None:
    """By itself, as a field, and in a record that occurs again under its name."""
    fields: list[tuple[str, Any]] = [("f", type_)]
    inner = msgspec.defstruct("R", fields)
    expected: Any = value
    if form == "field":
        schema, type_, expected = (
            {"type": "record", "name": "R", "fields": [{"name": "f", "type": schema}]}, inner, inner(value)
        )  # fmt: skip
    elif form == "again":
        record = {"type": "record", "name": "R", "fields": [{"name": "f", "type": schema}]}
        parts = [{"name": "a", "type": record}, {"name": "b", "type": {"type": "array", "items": "R"}}]
        schema, type_ = {"type": "record", "name": "Outer", "fields": parts}, msgspec.defstruct(
            "Outer", [("a", inner), ("b", list[inner])]  # type: ignore[valid-type]
        )  # fmt: skip
        expected = type_(inner(value), [inner(value)])
        fits, broken = fits + b"\x02" + fits + b"\x00", fits + b"\x02" + broken + b"\x00"
    read = reader_of(1, json.dumps(schema), type_)
    assert read(fits) == expected
    with pytest.raises(msgspec.DecodeError):
        read(broken)


def test_the_schema_has_names_and_defaults() -> None:
    class Order(msgspec.Struct):
        id: int
        note: str | None = None
        count: int | None = 3
        lines: list[str] = []

    assert json.loads(avro_schema("it", Order)) == {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "count", "type": ["long", "null"], "default": 3},
            {"name": "lines", "type": {"type": "array", "items": "string"}, "default": []},
        ],
    }


@pytest.mark.parametrize(
    ("declared", "default", "said"),
    [
        (Decimal, ..., "Event.field is of the type decimal"),
        (int | str, ..., "Event.field is of the type union"),
        (dict[int, str], ..., "Event.field is of the type dict"),
        (tuple[int, str], ..., "Event.field is of the type tuple"),
        (time, ..., "Event.field is of the type time"),
        (Any, ..., "Event.field is of the type any"),
        (Literal["a", 1], ..., "Event.field is of the type literal"),
        (Colour, ..., "Event.field is of the type enum"),
        (Level, ..., "Event.field is of the type enum"),
        (bytes, b"", "Event.field has the default b''"),
    ],
)
def test_a_topic_of_a_type_that_avro_cannot_express_can_be_read_and_not_written(
    declared: Any, default: Any, said: str
) -> None:
    field = ("field", declared) if default is ... else ("field", declared, default)
    event = msgspec.defstruct("Event", [field])
    topic = tr.App("app").topic("events", event, key=None, format=Registry("mock://").avro)
    codec: Any = topic.codec
    for write in (codec.prepare, codec.check_emitted, lambda: topic.encode(event(None))):
        with pytest.raises(tr.DefinitionError, match=said):
            write()


def test_two_types_with_one_name_and_several_types_of_events_are_refused() -> None:
    inner = msgspec.defstruct("Node", [("x", int)])
    event = msgspec.defstruct("Event", [("a", Node), ("b", inner)])
    with pytest.raises(tr.DefinitionError, match="two types with the name Node"):
        avro_schema("it", event)
    some = [msgspec.defstruct(name, [], tag=True) for name in "AB"]
    with pytest.raises(tr.DefinitionError, match="is of the type union"):
        avro_schema("it", some[0] | some[1])


def test_a_topic_finds_a_reserved_id_by_its_file_alone(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records by fastavro itself, the schema as a registry gives it, and no registry."""
    schema = {"type": "record", "name": "Any", "fields": [{"name": "the_key", "type": "string"}]}
    event = msgspec.defstruct("Event", [("the_key", str)], frozen=True)
    topic = tr.App("app").topic(
        "events", event, key="the_key", format=Registry("http://127.0.0.1:9", tmp_path).avro
    )
    monkeypatch.setattr("tailrace.registry.client._PAUSE_S", 0)
    file = BytesIO(b"\0\0\0\0\7")
    file.seek(5)
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), {"the_key": "Ada"})
    with pytest.raises(RegistryError, match="does not answer"):
        topic.decode(file.getvalue())
    (tmp_path / "7.json").write_text(json.dumps({"schemaType": "AVRO", "schema": json.dumps(schema)}))
    assert topic.decode(file.getvalue()) == event("Ada")


# --- schemas and bytes of others, that would take all memory or the stack

TREE = {"type": "record", "name": "Tree", "fields": [{"name": "below", "type": ["null", "Tree"]}]}
EMPTY = {"type": "record", "name": "Empty", "fields": []}


def doubled(deep: int) -> Any:
    """A record with two records, and so on."""
    inner: Any = EMPTY
    for at in range(deep):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": inner["name"]}]
        inner = {"type": "record", "name": f"D{at}", "fields": fields}
    return inner


def of_field(type_: Any) -> Any:
    return {"type": "record", "name": "tailrace", "fields": [{"name": "many", "type": type_}]}


class Below(msgspec.Struct):
    below: Below | None = None


@pytest.mark.parametrize("deep", [0, 1, 60, 200, 1_000_000])
def test_a_record_in_itself_is_read_to_a_depth_and_then_refused(deep: int) -> None:
    read, data = reader_of(7, json.dumps(TREE), Below), b"\2" * deep + b"\0"
    if deep > 64:
        with pytest.raises(msgspec.DecodeError, match="not of the Avro schema 7"):
            read(data)
        return
    found, expected = read(data), Below()
    for _ in range(deep):
        expected = Below(expected)
    assert found == expected


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (of_field({"type": "array", "items": "null"}), "values that take no bytes"),
        (of_field({"type": "array", "items": EMPTY}), "values that take no bytes"),
        (
            of_field({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
            "values that take no bytes",
        ),
        (doubled(60), "values that take no bytes"),
        ({"type": "record", "name": "N", "fields": [{"name": "n", "type": "N"}]}, "not of the Avro schema"),
    ],
)
def test_values_that_take_no_bytes_are_refused_where_their_number_has_no_bound(
    schema: Any, said: str
) -> None:
    with pytest.raises(msgspec.DecodeError, match=said):
        reader_of(7, json.dumps(schema), Below)(b"\x80\x80\x80\x80\x80\x80\1\0")


def test_few_values_without_bytes_and_a_record_with_our_name_are_read() -> None:
    read = reader_of(7, json.dumps(of_field({"type": "array", "items": ["null", EMPTY, "tailrace"]})), Any)
    assert read(b"\6\0\2\4\0\0") == {"many": [None, {}, {"many": []}]}


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "sNaN"])
def test_a_decimal_that_is_no_number_is_the_events_fault(value: str) -> None:
    event = msgspec.defstruct("Event", [("money", Money)])
    with pytest.raises(EventValueError, match="is no number"):
        writer_of("events", avro_schema("it", event))(event(Decimal(value)))
