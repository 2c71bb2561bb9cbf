"""What is emitted is what its readers get: no number becomes null, no value becomes another
one, in silence.
"""

from __future__ import annotations

import datetime as dt
import enum
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core.errors import DefinitionError, EmittedTypeError, EventValueError, HandlerError, UsageError
from tailrace.testing import Harness

NAN, INF = math.nan, math.inf


class Place(msgspec.Struct, frozen=True):
    lat: float
    heights: list[float] = []


@dataclass(frozen=True)
class Size:
    width: float


class Pair(NamedTuple):
    name: str
    share: float


class Tree(msgspec.Struct, frozen=True):
    weight: float | None = None
    kids: list[Tree] = []


class Circle(msgspec.Struct, frozen=True, tag=True):
    radius: float


class Round(Circle, frozen=True, tag="Circle"):
    """A subclass, which is written like a Circle."""


class Square(msgspec.Struct, frozen=True, tag=True):
    name: str


class Found(msgspec.Struct):
    """A float in every place that has a test of its own."""

    key: str = "a"
    plain: float = 1.0
    optional: float | None = None
    left_out: float | msgspec.UnsetType = msgspec.UNSET
    several: list[float] = []
    holes: list[float | None] = []
    place: Place = Place(1.0)
    places: list[Place] = []
    size: Size = Size(1.0)
    tree: Tree = Tree()


class Other(msgspec.Struct):
    """Floats in the other places: the record is searched."""

    key: str = "a"
    mixed: float | str | None = None
    rates: dict[str, float] = {}
    by_number: dict[int, float] = {}
    pair: Pair = Pair("a", 1.0)
    fixed: tuple[int, float] = (1, 1.0)
    shape: Circle | Square = Square("a")
    table: dict[str, list[float]] = {}
    place: Place = Place(1.0)


class Rated(msgspec.Struct):
    key: str
    by_rate: dict[float, int]


class Loose(msgspec.Struct):
    key: str = "a"
    anything: Any = None


class Plain(msgspec.Struct, frozen=True):
    name: str


class More(Plain, frozen=True):
    area: int = 7


class Typed(msgspec.Struct):
    key: str = "a"
    count: int = 0
    text: str = ""
    when: dt.datetime | None = None
    clock: dt.time | None = None
    price: Decimal | None = None
    maybe: int | None = None
    share: float = 0.0
    sort: Literal["a", "b"] = "a"
    items: tuple[int, ...] = ()
    at: Square = Square("a")
    plain: Plain = Plain("a")


class Large(Square, frozen=True, tag=True):
    area: int = 7


def emitting(type_: Any, make: Callable[[], Any], *, on_error: Any = "stop", format: Any = "json") -> tr.App:
    """For each record of ``asked``, emits what ``make`` gives to ``found``, which ``Taker`` reads."""
    app = tr.App("emitting", partitions=1, on_error=on_error)
    asked = app.topic("asked", Square, key="name")
    found = app.topic("found", type_, key="key", key_type=str, format=format)

    @app.process(asked)
    def ask(event: Square, ctx: tr.Context[str]) -> None:
        ctx.emit(found, make())

    @app.actor
    class Taker(tr.Actor):
        seen: int = 0

        @tr.process(found)
        def take(self, event: Any, ctx: tr.Context[str]) -> None:
            self.seen += 1

    return app


def ask(h: Harness) -> None:
    h.send(h.plan.topics["asked"], Square("a"))


LOST = [
    ("share", Typed(share=NAN)),
    ("share", Typed(share=-INF)),
    ("plain", Found(plain=NAN)),
    ("plain", Found(plain=-INF)),
    ("optional", Found(optional=NAN)),
    ("left_out", Found(left_out=INF)),
    ("mixed", Other(mixed=NAN)),
    ("place.lat", Other(place=Place(NAN))),
    ("several[1]", Found(several=[1.0, NAN])),
    ("several[0]", Found(several=[INF, -INF])),
    ("holes[1]", Found(holes=[None, NAN])),
    ("rates['EUR']", Other(rates={"USD": 1.0, "EUR": NAN})),
    ("by_number[7]", Other(by_number={7: NAN})),
    ("place.lat", Found(place=Place(NAN))),
    ("place.heights[0]", Found(place=Place(1.0, [NAN]))),
    ("places[1].lat", Found(places=[Place(1.0), Place(INF)])),
    ("size.width", Found(size=Size(NAN))),
    ("pair[1]", Other(pair=Pair("a", NAN))),
    ("fixed[1]", Other(fixed=(1, NAN))),
    ("tree.kids[1].weight", Found(tree=Tree(1.0, [Tree(), Tree(NAN)]))),
    ("shape.radius", Other(shape=Circle(NAN))),
    ("shape.radius", Other(shape=Round(NAN))),
    ("table['a'][2]", Other(table={"a": [1.0, 2.0, NAN]})),
    ("anything", Loose(anything=NAN)),
    ("anything['a'][0].lat", Loose(anything={"a": [Place(NAN)]})),
]


@pytest.mark.parametrize(("path", "event"), LOST, ids=[f"{at}-{path}" for at, (path, _) in enumerate(LOST)])
def test_a_number_that_json_does_not_have_is_refused_with_topic_and_field(path: str, event: Any) -> None:
    app = emitting(type(event), lambda: event)
    with Harness(app, checked=False) as h:
        with pytest.raises(HandlerError) as caught:
            ask(h)
        assert isinstance(caught.value.__cause__, EventValueError)
        for said in (f": {path} is ", "'found'", "None", 'format="msgpack"'):
            assert said in str(caught.value.__cause__)
        assert list(h.log.read("found")) == []
        with pytest.raises(EventValueError):
            h.send(h.plan.topics["found"], event)


def jsonable(event: Any) -> bool:
    """Python's own encoder on what the event says: it refuses what JSON has no number for."""
    try:
        json.dumps(msgspec.to_builtins(event, str_keys=True), allow_nan=False)
    except ValueError:
        return False
    return True


RARELY = st.one_of(*[st.floats(allow_nan=False, allow_infinity=False)] * 8, st.floats(), st.integers(-9, 9))
FEW = st.lists(RARELY, max_size=3)
PLACES = st.builds(Place, RARELY, FEW)
TREES = st.recursive(
    st.builds(Tree, st.none() | RARELY), lambda kids: st.builds(Tree, RARELY, st.lists(kids, max_size=2))
)
FOUND = st.builds(
    Found, plain=RARELY, optional=st.none() | RARELY, left_out=st.just(msgspec.UNSET) | RARELY,
    several=FEW, holes=st.lists(st.none() | RARELY, max_size=3), place=PLACES,
    places=st.lists(PLACES, max_size=2), size=st.builds(Size, RARELY), tree=TREES,
)  # fmt: skip
OTHER = st.builds(
    Other,
    mixed=st.none() | RARELY | st.text(max_size=3),
    rates=st.dictionaries(st.text(max_size=2), RARELY, max_size=2),
    by_number=st.dictionaries(st.integers(0, 99), RARELY, max_size=3),
    pair=st.builds(Pair, st.just("a"), RARELY),
    fixed=st.tuples(st.just(1), RARELY),
    place=PLACES,
    shape=st.builds(Circle, RARELY) | st.just(Square("a")),
    table=st.dictionaries(st.text(max_size=2), FEW, max_size=2),
)


@given(FOUND | OTHER)
def test_exactly_the_events_that_json_can_say_are_written_and_come_back(event: Any) -> None:
    topic = tr.App("found").topic("found", type(event), key="key")
    if jsonable(event):
        assert topic.decode(topic.encode(event)) == event
        topic.codec.check(event)
    else:
        with pytest.raises(EventValueError):
            topic.encode(event)


@pytest.mark.parametrize("bits", [0x7FF8 << 48, 0xFFF8 << 48, 0x7FF8DEADBEEF1234, 0x7FF0 << 48, 0x8000 << 48])
def test_messagepack_keeps_every_bit_of_a_number_and_one_form_of_nan(bits: int) -> None:
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    kept = 0x7FF8 << 48 if math.isnan(value) else bits
    topic = tr.App("found").topic("found", Found, key="key", format="msgpack")
    back = topic.decode(topic.encode(Found(plain=value, several=[value])))
    for found in (back.plain, back.several[0]):
        assert struct.unpack("<Q", struct.pack("<d", found))[0] == kept
    topic.codec.check(Found(plain=value, several=[value]))


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_a_dict_may_have_floats_as_keys_and_a_nan_among_them_has_one_form(format: Any) -> None:
    topic = tr.App("rated").topic("rated", Rated, key="key", format=format)
    assert topic.decode(topic.encode(Rated("a", {0.5: 1, 2.0: 2}))) == Rated("a", {0.5: 1, 2.0: 2})
    assert topic.encode(Rated("a", {NAN: 1})) == topic.encode(Rated("a", {-NAN: 1}))


def test_json_keeps_the_sign_of_zero() -> None:
    topic = tr.App("found").topic("found", Found, key="key")
    assert math.copysign(1, topic.decode(topic.encode(Found(plain=-0.0))).plain) == -1


# --- values of another type

BERLIN = ZoneInfo("Europe/Berlin")
WRONG: list[tuple[str, Any]] = [
    ("$.count", {"count": "7"}),
    ("$.count", {"count": True}),
    ("$.count", {"count": 7.0}),
    ("$.text", {"text": 7}),
    ("$.sort", {"sort": "c"}),
    ("maybe is nan", {"maybe": NAN}),
    ("share is 9007199254740993", {"share": 2**53 + 1}),
    ("$.share", {"share": Decimal("1.5")}),
    ("text cannot be written", {"text": "\ud800"}),
    ("$.when", {"when": dt.date(2020, 1, 1)}),
    ("clock is datetime.time(1, 2", {"clock": dt.time(1, 2, tzinfo=BERLIN)}),
    ("when is datetime", {"when": dt.datetime(1890, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=3208)))}),
    ("$.price", {"price": "one"}),
    ("at is Large", {"at": Large("a")}),
    ("plain is More", {"plain": More("b")}),
]


@pytest.mark.parametrize(("said", "fields"), WRONG, ids=[said for said, _ in WRONG])
@pytest.mark.parametrize("on_error", ["stop", "dead-letter", "dead-letter-all"])
def test_a_test_finds_an_event_whose_readers_would_not_get_it(said: str, fields: Any, on_error: Any) -> None:
    if said.startswith("at is"):
        said = "$.at"  # another tag cannot even be decoded
    with (
        Harness(emitting(Typed, lambda: Typed(**fields), on_error=on_error)) as h,
        pytest.raises((EmittedTypeError, HandlerError)) as caught,
    ):
        ask(h)
        # What cannot be encoded at all is found live, too, and is a failure like any other.
        assert on_error != "stop"
        assert [letter.error for letter in h.dead_letters() if said in letter.error]
        raise EmittedTypeError(f"{said} 'found'")
    assert said in str(caught.value)
    assert "'found'" in str(caught.value)


def test_an_int_that_no_float_equals_is_not_written_for_a_plain_float() -> None:
    topic = tr.App("circles").topic("circles", Circle, key=None)
    assert topic.decode(topic.encode(Circle(2**53))).radius == 2**53
    for number in (2**53 + 1, -(2**53) - 1, 10**400):
        with pytest.raises((EventValueError, UsageError)):
            topic.encode(Circle(number))


FINE: list[Any] = [
    {"share": 7},
    {"share": 2**53},
    {"share": 1e300},
    {"share": True + 0},
    {"items": [1, 2]},
    {"when": dt.datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=BERLIN)},
    {"when": dt.datetime(2020, 1, 1)},  # noqa: DTZ001  # it is the point
    {"clock": dt.time(1, 2, tzinfo=dt.UTC)},
    {"price": Decimal("NaN")},
    {"price": Decimal("sNaN")},
    {"price": Decimal("-0.00")},
    {"count": 2**70},
    {"text": "ß\0\u2028"},
]


@pytest.mark.parametrize("fields", FINE, ids=map(str, range(len(FINE))))
def test_what_says_the_same_in_another_way_is_no_mistake(fields: Any) -> None:
    with Harness(emitting(Typed, lambda: Typed(**fields))) as h:
        ask(h)
        (record,) = h.log.read("found")
        assert msgspec.json.decode(record.value or b"", type=Typed).key == "a"
        h.replay()


def test_a_live_service_writes_a_wrong_type_and_its_reader_refuses_the_record() -> None:
    topic = tr.App("typed").topic("typed", Typed, key="key")
    with pytest.raises(msgspec.ValidationError, match=r"\$\.count"):
        topic.decode(topic.encode(Typed(count="7")))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # it is the point


def test_a_message_is_looked_at_like_an_event() -> None:
    app = tr.App("messages", partitions=1)
    asked = app.topic("asked", Square, key="name")

    @app.actor
    class Taker(tr.Actor):
        seen: int = 0

        @tr.process(asked)
        def ask(self, event: Square, ctx: tr.Context[str]) -> None:
            ctx.send(Taker, "b", Typed(count="7"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # it is the point

        @tr.on_message
        def take(self, message: Typed, ctx: tr.Context[str]) -> None:
            self.seen += 1

    with Harness(app) as h, pytest.raises(EmittedTypeError, match=r"Typed to Taker.*\$\.count"):
        h.send(asked, Square("a"))


# --- keys of dicts


class Numbered(msgspec.Struct):
    key: str
    by_int: dict[int, str] = {}
    by_day: dict[dt.date, list[Place]] = {}
    by_size: dict[Decimal, dict[bytes, int]] = {}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Coloured(msgspec.Struct):
    key: str
    by_colour: dict[Colour, int] = {}


NUMBERED = Numbered(
    "a",
    {10: "x", 9: "y", -1: ""},
    {dt.date(2020, 1, 2): [Place(1.0)], dt.date(2020, 1, 1): []},
    {Decimal("1.10"): {b"\xff": 1, b"a": 2}},
)


@pytest.mark.parametrize("format", ["json", "msgpack"])
@pytest.mark.parametrize("event", [NUMBERED, Coloured("a", {Colour.RED: 1, Colour.BLUE: 2})])
def test_a_dict_with_keys_that_are_not_text_is_written_alike_whatever_its_order_and_comes_back(
    event: Any, format: Any
) -> None:
    seen: list[Any] = []
    with Harness(emitting(type(event), lambda: event, format=format)) as h:
        topic = h.plan.topics["found"]
        ask(h)
        (record,) = h.log.read("found")
        seen.append(topic.decode(record.value or b""))
        h.replay()
    assert seen == [event]
    turned = msgspec.structs.replace(
        event,
        **{
            name: dict(reversed(value.items()))
            for name, value in msgspec.structs.asdict(event).items()
            if isinstance(value, dict)
        },
    )
    assert topic.encode(turned) == topic.encode(event)


class Ambiguous(msgspec.Struct):
    key: str
    names: dict[int | str, int] = {}


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_keys_that_would_be_one_key_as_text_are_refused(format: Any) -> None:
    app = emitting(Ambiguous, lambda: Ambiguous("a", {1: 1, "1": 2}), format=format)
    with Harness(app) as h, pytest.raises((DefinitionError, HandlerError), match="keys of several types"):
        ask(h)


# --- the time of a record


def test_a_time_is_given_by_its_name() -> None:
    app = tr.App("emitting", partitions=1)
    asked = app.topic("asked", Square, key="name")
    found = app.topic("found", Square, key="name")

    @app.process(asked)
    def forward(event: Square, ctx: tr.Context[str]) -> None:
        ctx.emit(found, event, 5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # it is the point

    with Harness(app) as h, pytest.raises(HandlerError, match=r"third positional argument, 5.*at="):
        h.send(asked, Square("a"))
