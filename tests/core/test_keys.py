import datetime as dt
import enum
import struct
from typing import Annotated, Any, Literal, NewType, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core import errors
from tailrace.core.values.key_paths import key_getter, key_type_of
from tailrace.core.values.keys import key_codec_for
from tailrace.core.values.map_keys import map_key_codec_for
from tailrace.testing import Harness
from tests.core.durable import TEXT, Colour, Point, Size, Sort, Typed, naive

T = TypeVar("T")
Tail = NewType("Tail", str)
LONGS = st.one_of(st.integers(-300, 300), st.integers(-(2**63), 2**63 - 1))
UTC_INSTANTS = st.datetimes(timezones=st.just(dt.UTC))

SCALARS = [
    Typed(str, TEXT),
    Typed(bytes, st.binary(max_size=8)),
    Typed(int, LONGS),
    Typed(UUID, st.uuids()),
    Typed(dt.date, st.dates()),
    Typed(Colour, st.sampled_from(Colour)),
    Typed(Size, st.sampled_from(Size)),
    Typed(Sort, st.sampled_from(Sort)),
    Typed(Literal["a", "b"], st.sampled_from(["a", "b"])),
    Typed(Literal[1, 5], st.sampled_from([1, 5])),
]


@st.composite
def keys(draw: st.DrawFn, *, of_a_map: bool) -> Typed:
    scalars = (
        [*SCALARS, Typed(bool, st.booleans()), Typed(dt.datetime, UTC_INSTANTS)] if of_a_map else SCALARS
    )
    kinds = st.sampled_from(scalars)
    if draw(st.booleans()):
        one: Typed = draw(kinds)
        return one
    parts = draw(
        st.lists(kinds.filter(lambda one: of_a_map or one.type is not bytes), min_size=1, max_size=3)
    )
    if of_a_map and draw(st.booleans()):
        parts.append(Typed(tuple[str, int], st.tuples(TEXT, LONGS)))
    declared = tuple.__class_getitem__(tuple(one.type for one in parts))
    return Typed(declared, st.tuples(*(one.values for one in parts)))


def ordering(key: Any) -> Any:
    """What a key is compared by: an enum's member by its value."""
    if isinstance(key, tuple):
        return tuple(map(ordering, key))
    return key.value if isinstance(key, enum.Enum) else key


# --- an actor's key ---


@pytest.mark.parametrize(
    ("declared", "key", "written"),
    [
        (str, "N12é", "N12é".encode()),
        (str, "", b""),
        (bytes, b"\0a", b"\0a"),
        (int, 5, struct.pack(">q", 5)),
        (int, -1, b"\xff" * 8),
        (int, -(2**63), b"\x80" + bytes(7)),
        (UUID, UUID(int=5), b"00000000-0000-0000-0000-000000000005"),
        (dt.date, dt.date(2020, 1, 2), b"2020-01-02"),
        (Colour, Colour.RED, b"red"),
        (Size, Size.LARGE, struct.pack(">q", 9)),
        (Literal["a"], "a", b"a"),
        (Tail, "N1", b"N1"),
        (Annotated[str, msgspec.Meta(min_length=1)], "N1", b"N1"),
        (str | None, "N1", b"N1"),
        (tuple[str, int, Sort], ("é", 1, Sort.A), '["é",1,"a"]'.encode()),
        (
            tuple[dt.date, UUID],
            (dt.date(2020, 1, 2), UUID(int=1)),
            b'["2020-01-02","%s"]' % str(UUID(int=1)).encode(),
        ),
    ],
)
def test_a_key_has_the_bytes_that_other_clients_write(declared: Any, key: Any, written: bytes) -> None:
    codec = key_codec_for(declared)
    assert codec.encode(key) == written
    assert codec.decode(written) == key


@given(st.data(), keys(of_a_map=False))
def test_a_key_is_read_back_as_it_was_and_no_two_share_bytes(data: st.DataObject, typed: Typed) -> None:
    codec = key_codec_for(typed.type)
    one, other = data.draw(typed.values), data.draw(typed.values)
    assert codec.decode(codec.encode(one)) == one
    assert type(codec.decode(codec.encode(one))) is type(one)
    assert (codec.encode(one) == codec.encode(other)) == (one == other)


@pytest.mark.parametrize("declared", [str, int, bytes, UUID, Colour, Literal["a"], tuple[str, int]])
@pytest.mark.parametrize("missing", [None, msgspec.UNSET])
def test_a_missing_key_is_called_missing(declared: Any, missing: Any) -> None:
    with pytest.raises(errors.BadRecordError) as caught:
        key_codec_for(declared).encode(missing)
    assert caught.value.reason == "missing-key"


def test_a_key_of_several_fields_is_missing_if_one_of_them_is() -> None:
    with pytest.raises(errors.BadRecordError) as caught:
        key_codec_for(tuple[str, int]).encode(("a", None))
    assert caught.value.reason == "missing-key"


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("declared", "key"),
    [
        *((str, 5), (str, b"a"), (str, Text("a")), (str, Colour.RED), (str, "\ud800"), (bytes, "a")),
        *((bytes, bytearray(b"a")), (int, True), (int, 1.0), (int, Size.SMALL), (int, 2**63)),
        *((int, -(2**63) - 1), (UUID, str(UUID(int=1))), (dt.date, naive(2020, 1, 1)), (Colour, "red")),
        *((Size, 1), (Literal["a"], "b"), (tuple[str, int], ["a", 1]), (tuple[str, int], ("a", 1, 2))),
        *((tuple[str, int], ("a", True)), (tuple[str, int], ("a", [1]))),
        *((tuple[str, int], ("\ud800", 1)), (tuple[int, int], Point(1, 1))),
    ],
)
def test_a_key_of_another_type_is_refused_by_name(declared: Any, key: Any) -> None:
    with pytest.raises(errors.BadRecordError) as caught:
        key_codec_for(declared).encode(key)
    assert caught.value.reason == "bad-key"
    assert repr(key) in str(caught.value)
    assert "Convert it" in caught.value.hint


@pytest.mark.parametrize(
    ("declared", "key", "part"),
    [
        (tuple[str, int], ("a", 2**63), 2**63),
        (tuple[str, int], ("a", -(2**63) - 1), -(2**63) - 1),
        (tuple[Literal["a"], int], ("b", 1), "b"),
    ],
)
def test_each_part_of_a_key_is_as_strict_as_a_key_of_its_own(declared: Any, key: Any, part: Any) -> None:
    with pytest.raises(errors.BadRecordError, match="Convert it") as caught:
        key_codec_for(declared).encode(key)
    assert repr(part) in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "data"),
    [
        *((str, b"\xff"), (int, b"5"), (UUID, b"5"), (UUID, str(UUID(int=10**37)).upper().encode())),
        *((dt.date, b"20200101"), (Colour, b"green"), (Size, bytes(8)), (Literal["a"], b"b")),
        *((tuple[str, int], b'["a", 1]'), (tuple[str, int], b'["a"]')),
        *((tuple[str, int], b'["a",1.0]'), (tuple[str, int], b"nonsense")),
    ],
)
def test_bytes_that_no_key_is_written_as_are_refused(declared: Any, data: bytes) -> None:
    with pytest.raises(errors.BadRecordError) as caught:
        key_codec_for(declared).decode(data)
    assert caught.value.reason == "bad-key"


@pytest.mark.parametrize(
    "declared",
    [
        *(float, bool, dt.datetime, None, Any, object, str | int, list[str]),
        *(tuple[str, ...], tuple[()], tuple[bytes, int], tuple[str, tuple[str, int]]),
        *(tuple[str, float], dict[str, int], enum.Flag("Perms", "READ"), Literal["a", 1]),
    ],
)
def test_a_type_without_one_byte_form_cannot_be_a_key(declared: Any) -> None:
    with pytest.raises(errors.DefinitionError, match="cannot be a key"):
        key_codec_for(declared)


# --- a map's keys ---


@given(st.data(), keys(of_a_map=True))
def test_map_keys_are_read_back_and_ordered_as_they_are(data: st.DataObject, typed: Typed) -> None:
    codec = map_key_codec_for(typed.type)
    some = data.draw(st.lists(typed.values, min_size=1, max_size=6))
    for key in some:
        written = codec.encode(key)
        assert codec.decode(written) == key
        assert type(codec.decode(written)) is type(key)
        assert codec.size in (None, len(written))
    by_bytes = [codec.decode(written) for written in sorted(map(codec.encode, some))]
    assert list(map(ordering, by_bytes)) == sorted(map(ordering, some))


@given(
    st.lists(
        st.binary(max_size=4).map(lambda data: data.replace(b"a", b"\0").replace(b"b", b"\xff")), min_size=2
    )
)
def test_zeros_in_a_tuples_text_do_not_disturb_the_order(parts: list[bytes]) -> None:
    codec = map_key_codec_for(tuple[bytes, bytes])
    some = [(one, other) for one in parts[:5] for other in parts[:5]]
    assert [codec.decode(data) for data in sorted(map(codec.encode, some))] == sorted(some)


def test_an_instant_is_one_key_in_any_zone() -> None:
    codec = map_key_codec_for(dt.datetime)
    there = dt.datetime(2020, 7, 1, 2, tzinfo=ZoneInfo("Europe/Paris"))
    here = dt.datetime(2020, 7, 1, 0, 0, tzinfo=dt.UTC)
    assert codec.encode(there) == codec.encode(here)
    assert codec.decode(codec.encode(there)).tzinfo is dt.UTC


@pytest.mark.parametrize(
    ("declared", "key"),
    [
        *((str, 5), (str, None), (str, Text("a")), (str, "\ud800"), (int, True), (int, 1.0)),
        *((int, 2**63), (bool, 1), (dt.datetime, naive(2020, 1, 1))),
        *((dt.date, naive(2020, 1, 1)), (Colour, "red"), (Literal[1, 5], True)),
        *((tuple[str, int], ("a",)), (tuple[str, int], ["a", 1]), (tuple[str, int], ("a", "b"))),
    ],
)
def test_a_map_key_of_another_type_is_refused(declared: Any, key: Any) -> None:
    unfit = key in ("\ud800", 2**63, naive(2020, 1, 1)) and declared is not dt.date
    with pytest.raises(errors.UnfitValueError if unfit else errors.DurableValueError, match="Convert it"):
        map_key_codec_for(declared).encode(key)


@pytest.mark.parametrize(
    ("declared", "data"),
    [
        *((str, b"\xff"), (int, b"5"), (bool, b"\2"), (dt.date, bytes(4)), (UUID, b"a"), (Colour, b"green")),
        (tuple[str, int], b"a\0\0"),
        (tuple[str, int], b"a"),
        (tuple[str, int], b"a\0\xff"),
        (tuple[int], bytes(9)),
    ],
)
def test_bytes_that_no_map_key_is_written_as_are_corrupt(declared: Any, data: bytes) -> None:
    with pytest.raises(errors.CorruptStateError):
        map_key_codec_for(declared).decode(data)


@pytest.mark.parametrize(
    "declared", [float, None, str | None, str | int, Any, tuple[str, ...], Literal["a", 1], Point]
)
def test_a_type_without_order_in_bytes_cannot_be_a_map_key(declared: Any) -> None:
    with pytest.raises(errors.DefinitionError, match="cannot be the key of a map"):
        map_key_codec_for(declared)


# --- where the key is ---


class Plane(msgspec.Struct, frozen=True):
    tail: Tail


class Departed(msgspec.Struct, tag=True):
    plane: Plane
    number: int
    airline: str
    gate: str


class Arrived(msgspec.Struct, tag=True):
    plane: Plane | None
    number: int | None
    airline: str | msgspec.UnsetType = msgspec.UNSET
    gate: int = 0


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("airline", str),
        ("number", int),
        ("plane.tail", str),
        (("airline", "number"), tuple[str, int]),
        (("plane.tail", "number", "airline"), tuple[str, int, str]),
    ],
)
def test_the_type_of_a_key_is_that_of_its_field_in_every_member(path: Any, found: Any) -> None:
    assert key_type_of(Departed | Arrived, path) == found


@pytest.mark.parametrize(
    ("path", "said"),
    [
        *(("airlin", "Did you mean 'airline'"), ("gate", "no single type: str, int")),
        ("number.digits", "in int, which has no fields"),
        *(("plane.wing", "Plane has no field 'wing'"), (("airline",), "1 fields"), ((), "0 fields")),
    ],
)
def test_a_key_that_is_not_there_is_refused_at_definition(path: Any, said: str) -> None:
    with pytest.raises(errors.DefinitionError, match=said):
        key_type_of(Departed | Arrived, path)


@pytest.mark.parametrize("event_type", [dict[str, str], Any, bytes])
def test_the_key_of_an_event_that_is_no_struct_needs_a_function(event_type: Any) -> None:
    with pytest.raises(errors.DefinitionError, match="a function of the event"):
        key_type_of(event_type, "tail")


@pytest.mark.parametrize("path", ["plane.tail", ("number", "plane.tail")])
def test_a_key_behind_something_missing_is_missing(path: Any) -> None:
    with pytest.raises(errors.BadRecordError) as caught:
        key_getter(path)(Arrived(None, 1))
    assert caught.value.reason == "missing-key"


class Sold(msgspec.Struct, frozen=True):
    tail: tr.Key[Tail]
    number: int


@pytest.mark.parametrize("declared", [Tail, str, Annotated[Tail, "an id"], Annotated[str, "an id"]])
@pytest.mark.parametrize("by_stream", [False, True])
def test_a_context_may_name_the_key_as_the_event_does(declared: Any, by_stream: bool) -> None:
    app = tr.App("keys", partitions=1)
    sold = app.topic("sold", Sold)
    again = app.stream("again", Sold, key_type=declared)

    def take(self: Any, event: Sold, ctx: Any) -> None:
        self.count += 1

    def pass_on(event: Sold, ctx: Any) -> None:
        ctx.emit(again, event)

    for function in (take, pass_on):
        function.__annotations__ |= {"event": Sold, "ctx": tr.Context[declared]}
    app.process(sold, emits=(again,))(pass_on)

    @app.actor
    class Counts(tr.Actor):
        count: int = 0
        take_ = tr.process(again if by_stream else sold)(take)

    sums = app.window("sums", again, tr.windows.tumbling(10), tr.agg.count())
    app.join("both", sold, sums, within=5)
    with Harness(app) as h:
        h.send(sold, Sold(Tail("a"), 1), Sold(Tail("b"), 2), Sold(Tail("a"), 3))
        h.end_of_input()
        state: Any = h.state(Counts, "a")
        assert state.count == 2


def test_a_context_that_names_parts_of_a_key_by_other_types_is_refused() -> None:
    app = tr.App("keys", partitions=1)
    pairs: Any = app.stream("pairs", Sold, key_type=tuple[Tail, int])

    def take(event: Sold, ctx: tr.Context[tuple[str, int]]) -> None: ...

    app.process(pairs)(take)

    def wrong(event: Sold, ctx: tr.Context[tuple[int, int]]) -> None: ...

    with pytest.raises(errors.DefinitionError, match=r"Context\[tuple\[int, int\]\]"):
        app.process(pairs)(wrong)
