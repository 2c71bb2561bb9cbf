"""What a topic knows of its events: key, event time and codec, given to it or marked on structs and dataclasses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, NewType, TypedDict, TypeVar

import attrs
import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import BadRecordError, DefinitionError, EmittedTypeError
from tailrace.testing import Harness

T = TypeVar("T")


def topic_of(type: Any, **options: Any) -> tr.Topic[Any, Any]:
    return tr.App("events").topic("events", type, **options)


# --- key and event time given to the topic


class Plane(msgspec.Struct, frozen=True):
    tail: str
    built: datetime | None = None


class Departure(msgspec.Struct, frozen=True):
    plane: Plane
    airline: str
    number: int
    at: int
    when: datetime | None = None
    standby: Plane | None = None
    tags: dict[str, int] = {}


EVENT = Departure(Plane("N1"), "TR", 7, 1_000, standby=Plane("N2", datetime(1970, 1, 1, 0, 0, 1, 1_999, UTC)))


def number_of(event: Departure) -> int:
    return event.number


def tail_or_none(event: Departure) -> str | None:
    return event.plane.tail or None


@pytest.mark.parametrize(
    ("key", "key_type", "found", "value", "encoded"),
    [
        (None, None, None, None, None),
        ("airline", None, str, "TR", b"TR"),
        ("plane.tail", None, str, "N1", b"N1"),
        ("number", int, int, 7, b"\0\0\0\0\0\0\0\x07"),
        (("airline", "number"), None, tuple[str, int], ("TR", 7), b'["TR",7]'),
        (number_of, None, int, 7, b"\0\0\0\0\0\0\0\x07"),
        (tail_or_none, None, str, "N1", b"N1"),
        (lambda e: e.airline.lower(), str, str, "tr", b"tr"),
    ],
)
def test_a_key_is_a_field_a_path_several_or_a_function_or_there_is_none(
    key: Any, key_type: Any, found: Any, value: Any, encoded: bytes | None
) -> None:
    topic = topic_of(Departure, key=key, key_type=key_type)
    assert (None if topic.key_of is None else topic.key_of(EVENT)) == value
    assert topic.encode_key(EVENT) == encoded
    assert found is None or topic.key_type == found


WITHOUT = Departure(Plane("N1"), "TR", 7, 0)
"""Has no plane on standby."""


def test_an_event_without_key_is_a_bad_record() -> None:
    with pytest.raises(BadRecordError, match="key"):
        topic_of(Departure, key="standby.tail").encode_key(WITHOUT)


@pytest.mark.parametrize(
    ("source", "time_ms", "event"),
    [
        *(("at", 1_000, EVENT), ("when", None, EVENT)),
        *(("standby.built", 1_001, EVENT), ("standby.built", None, WITHOUT)),
        *(("plane.built", None, EVENT), (lambda e: e.at + 5, 1_005, EVENT)),
        *((lambda e: e.standby.built, 1_001, EVENT), (lambda e: None, None, EVENT)),
    ],
)
def test_event_time_is_a_field_a_path_or_a_function_and_none_where_it_is_missing(
    source: str | Callable[[Departure], int | datetime | None], time_ms: int | None, event: Departure
) -> None:
    topic = topic_of(Departure, key="number", event_time=source)
    assert topic.time_of is not None
    assert (topic.settings.time_kind, topic.time_of(event)) == ("field", time_ms)


@pytest.mark.parametrize("instant", [datetime(2020, 1, 1), "2020-01-01", 1.5, True])  # noqa: DTZ001  # it is the point
def test_an_event_time_that_is_no_instant_makes_a_bad_record(instant: Any) -> None:
    topic = topic_of(Departure, key="number", event_time=lambda _: instant)
    assert topic.time_of is not None
    with pytest.raises(BadRecordError) as caught:
        topic.time_of(EVENT)
    assert caught.value.reason == "bad-time"


def test_what_a_topic_is_not_told_has_a_default() -> None:
    topic = topic_of(Departure, key="number")
    settings = topic.settings
    assert (settings.time_kind, topic.time_of) == ("record", None)
    assert (settings.out_of_order_ms, settings.late, settings.late_topic) == (0, "handle", None)
    assert (settings.idle_after_ms, settings.on_error, settings.repartition) == (60_000, None, False)
    assert datetime.fromtimestamp(settings.time_max_ms / 1000, UTC) == datetime(2200, 1, 1, tzinfo=UTC)
    assert settings.time_min_ms == 0
    arriving = topic_of(Departure, key="number", event_time=tr.ARRIVAL_TIME)
    assert (arriving.settings.time_kind, arriving.time_of) == ("arrival", None)


def test_the_times_that_make_sense_may_be_given_as_datetimes() -> None:
    times = (datetime(2020, 1, 1, tzinfo=UTC), 1_600_000_000_000)
    settings = topic_of(Departure, key="number", time_range=times).settings
    assert (settings.time_min_ms, settings.time_max_ms) == (1_577_836_800_000, 1_600_000_000_000)


def test_a_union_in_which_msgspec_corrupts_memory_is_refused() -> None:
    class Sale(msgspec.Struct):
        shop: str
        amounts: list[tuple[int, int] | Annotated[int, msgspec.Meta(ge=0)]]

    with pytest.raises(DefinitionError, match="msgspec cannot read a union of a tuple"):
        topic_of(Sale, key="shop")


def test_only_events_that_cannot_change_may_be_encoded_later() -> None:
    assert topic_of(Plane, key="tail").immutable
    assert not topic_of(Departure, key="number").immutable


# --- key and event time marked on the type of the events


class Order(msgspec.Struct, tr.Keyed[str], frozen=True):
    shop: tr.Key[str]
    at: tr.EventTime[int]
    cents: int = 0


class Flight(msgspec.Struct, tr.Keyed[tuple[str, int]], frozen=True, rename="camel"):
    note: str
    air_line: Annotated[tr.Key[str], msgspec.Meta(min_length=2)]
    number: Annotated[int, tr.Key]
    left: tr.EventTime[datetime | None] = None


class Later(Order, frozen=True):
    more: int = 0


class Box(msgspec.Struct, Generic[T], frozen=True):
    key: tr.Key[T]
    at: tr.EventTime[int] | None = None


class Circle(msgspec.Struct, frozen=True, tag=True):
    colour: tr.Key[str]


class Square(msgspec.Struct, frozen=True, tag=True):
    colour: tr.Key[str]
    side: int = 0


class Dot(msgspec.Struct, frozen=True, tag=True):
    colour: str


ShopKey = NewType("ShopKey", tr.Key[str])


class Named(msgspec.Struct):
    shop: ShopKey
    at: tr.EventTime[int]


@dataclass(frozen=True, slots=True)
class Place:
    name: str


@dataclass(frozen=True, slots=True)
class Seen(tr.Keyed[tuple[str, int]]):
    ship: tr.Key[str]
    number: tr.Key[int]
    at: tr.EventTime[datetime]
    place: Place | None = None
    knots: float = 0.0
    notes: dict[str, int] = field(default_factory=dict)


SEEN = Seen("Ada", 7, datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC), Place("Oslo"), 1.5, {"b": 1, "a": 2})
SECOND = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("declared", "event", "key_type", "key", "time_ms"),
    [
        (Order, Order("Ada", 5), str, b"Ada", 5),
        (Flight, Flight("-", "TR", 7, SECOND), tuple[str, int], b'["TR",7]', 1_000),
        (Later, Later("Ada", 5), str, b"Ada", 5),
        (Box[int], Box(7, 5), int, b"\0\0\0\0\0\0\0\x07", 5),
        (Circle | Square, Square("red"), str, b"red", None),
        (Named, Named(ShopKey("Ada"), 5), None, b"Ada", 5),
        (Seen, SEEN, tuple[str, int], b'["Ada",7]', 3_000),
    ],
)
def test_a_topic_has_key_and_event_time_of_its_type_of_a_base_or_of_all_members(
    declared: Any, event: Any, key_type: Any, key: bytes, time_ms: int | None
) -> None:
    topic = topic_of(declared)
    assert topic.encode_key(event) == key
    assert key_type is None or topic.key_type == key_type
    assert (None if topic.time_of is None else topic.time_of(event)) == time_ms


def test_members_of_a_union_that_do_not_share_their_marks_are_refused() -> None:
    with pytest.raises(DefinitionError, match=r"key is 'colour' in Circle, not marked in Dot.*key="):
        topic_of(Circle | Dot)
    assert topic_of(Circle | Dot, key="colour").key_type is str


def test_what_a_topic_says_goes_before_what_its_type_says() -> None:
    topic = topic_of(Order, key="cents", key_type=int, event_time=tr.RECORD_TIME)
    assert (topic.key_type, topic.time_of) == (int, None)
    assert topic_of(Order, event_time=tr.ARRIVAL_TIME).settings.key == "shop"
    assert topic_of(Order, key=lambda e: e.shop[:1], key_type=str).settings.event_time == "at"
    assert topic_of(Order, key=None).key_of is None
    assert topic_of(Seen, key="place.name").encode_key(SEEN) == b"Oslo"


class Bare(msgspec.Struct):
    shop: tr.Key  # type: ignore[type-arg]  # what is refused here


class Twice(msgspec.Struct):
    at: tr.EventTime[int]
    on: tr.EventTime[int]


class Wrong(msgspec.Struct, tr.Keyed[int]):
    shop: tr.Key[str]


class Unmarked(msgspec.Struct, tr.Keyed[str]):
    shop: str


@dataclass(frozen=True)
class Boxed(Generic[T]):
    key: tr.Key[T]


@dataclass
class Scaled:
    key: tr.Key[str]
    cents: int
    scale: InitVar[int] = 1

    def __post_init__(self, scale: int) -> None:
        self.cents *= scale


@dataclass
class Wrapped:
    key: tr.Key[str]
    scaled: Scaled


@dataclass
class Unslotted:
    shop: str
    amount: int = 0


@dataclass(slots=True)
class Around:
    plain: Unslotted


Sizes = TypedDict("Sizes", {"größe in cm": int}, total=False)


@dataclass(slots=True)
class Measured:
    key: tr.Key[str]
    sizes: dict[str, list[Sizes]]


@attrs.define
class Attrs:
    key: tr.Key[str]


class AroundAttrs(msgspec.Struct):
    key: tr.Key[str]
    inner: list[Attrs]


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (
            Measured,
            "the topic 'events' cannot hold Sizes: msgspec does not read 'größe in cm'.*msgspec.Struct",
        ),
        (Attrs, "Attrs"),
        (AroundAttrs, r"the topic 'events' cannot hold Attrs, a class of attrs.*@dataclass\(slots=True\)"),
        (Bare, r"Bare\.shop is annotated tailrace\.Key alone.*tr\.Key\[\.\.\.\]"),
        (Twice, "marks at and on as its event time"),
        (Wrong, r"Wrong is tr\.Keyed\[int\], but its key 'shop' is str"),
        (Unmarked, "no field of it is marked as the key"),
        (Boxed[int], "its type"),
        (Seen | Place, r"cannot be distinguished.*struct with a tag"),
        (Unslotted, r"amount has a default and no slot.*slots=True"),
        (Around, r"amount has a default and no slot.*slots=True"),
        (Scaled, r"InitVar.*make it a field, or compute what follows from it"),
        (Wrapped, r"InitVar.*make it a field, or compute what follows from it"),
    ],
)
def test_marks_and_dataclasses_that_cannot_be_true_are_refused_when_the_topic_is_declared(
    declared: Any, said: str
) -> None:
    with pytest.raises(DefinitionError, match=f"(?i){said}"):
        topic_of(declared)
    assert topic_of(Unmarked, key="shop").key_type is str


# --- dataclasses of the standard library: what holds for structs holds for them


@dataclass(frozen=True, slots=True)
class Stop:
    place: str = "Oslo"
    minutes: int = 5


@dataclass(frozen=True, slots=True)
class Trip:
    ship: str
    stops: list[Stop] = field(default_factory=list)
    first: Stop | None = None
    note: str = ""


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_equal_dataclasses_have_equal_bytes_decoded_or_constructed(format: Any) -> None:
    topic = topic_of(Trip, format=format)
    constructed = Trip("Ada", [Stop(minutes=7)], Stop())
    short = {"ship": "Ada", "stops": [{"minutes": 7}], "first": {}}
    decoded = topic.decode((msgspec.json if format == "json" else msgspec.msgpack).encode(short))
    assert decoded == constructed
    assert topic.encode(decoded) == topic.encode(constructed)
    seen = topic_of(Seen, format=format)
    assert seen.decode(seen.encode_emitted(SEEN)) == SEEN
    seen.codec.check(SEEN)


def test_a_struct_with_a_dataclass_in_it_has_equal_bytes_as_well() -> None:
    class Holding(msgspec.Struct):
        stop: Stop

    topic = topic_of(Holding)
    assert topic.encode(topic.decode(b'{"stop":{}}')) == topic.encode(Holding(Stop()))


def test_a_checked_run_finds_what_post_init_changes_again() -> None:
    @dataclass
    class Growing:
        text: str

        def __post_init__(self) -> None:
            self.text += "!"

    with pytest.raises(EmittedTypeError, match="text"):
        topic_of(Growing).codec.check(Growing("a"))


def test_marked_events_and_dataclasses_go_through_a_service_by_key_in_event_time_and_through_its_replay() -> (
    None
):
    app = tr.App("ships")
    seen = app.topic("seen", Seen, out_of_order="1s")
    places = app.topic("places", Place, key="name")

    @app.actor
    class Ship(tr.Actor):
        count: int = 0

        @tr.process(seen)
        def was_seen(self, event: Seen, ctx: tr.Context[tuple[str, int]]) -> None:
            self.count += 1
            assert ctx.event_time == 3_000
            ctx.emit(places, Place(f"{ctx.key[0]} {self.count}"))

    with Harness(app) as h:
        assert h.send(seen, SEEN, SEEN).to(places) == [Place("Ada 1"), Place("Ada 2")]
        h.crash()
        h.replay()
