"""Events as dataclasses of the standard library: what holds for structs holds for them."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import DefinitionError, EmittedTypeError
from tailrace.testing import Harness

T = TypeVar("T")


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


@dataclass(frozen=True)
class Box(Generic[T]):
    key: tr.Key[T]


@dataclass
class Tags:
    tags: set[str]


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


def topic_of(type: Any, **options: Any) -> tr.Topic[Any, Any]:
    return tr.App("dataclasses").topic("events", type, **options)


EVENT = Seen("Ada", 7, datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC), Place("Oslo"), 1.5, {"b": 1, "a": 2})


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_key_event_time_and_fields_are_those_of_the_dataclass(format: str) -> None:
    topic = topic_of(Seen, format=format)
    assert (topic.key_type, topic.encode_key(EVENT)) == (tuple[str, int], b'["Ada",7]')
    assert topic.time_of is not None
    assert topic.time_of(EVENT) == 3_000
    assert topic.decode(topic.encode_emitted(EVENT)) == EVENT
    topic.codec.check(EVENT)


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
def test_equal_events_have_equal_bytes_decoded_or_constructed(format: str) -> None:
    topic = topic_of(Trip, format=format)
    constructed = Trip("Ada", [Stop(minutes=7)], Stop())
    short = {"ship": "Ada", "stops": [{"minutes": 7}], "first": {}}
    decoded = topic.decode((msgspec.json if format == "json" else msgspec.msgpack).encode(short))
    assert decoded == constructed
    assert topic.encode(decoded) == topic.encode(constructed)


def test_a_struct_with_a_dataclass_in_it_has_equal_bytes_as_well() -> None:
    class Around(msgspec.Struct):
        stop: Stop

    topic = topic_of(Around)
    assert topic.encode(topic.decode(b'{"stop":{}}')) == topic.encode(Around(Stop()))


def test_the_key_of_a_generic_dataclass_needs_a_function() -> None:
    with pytest.raises(tr.DefinitionError, match="its type"):
        topic_of(Box[int])


def test_a_checked_run_finds_what_post_init_changes_again() -> None:
    @dataclass
    class Growing:
        text: str

        def __post_init__(self) -> None:
            self.text += "!"

    with pytest.raises(EmittedTypeError, match="text"):
        topic_of(Growing).codec.check(Growing("a"))


def test_dataclasses_in_a_union_cannot_be_told_apart() -> None:
    with pytest.raises(tr.DefinitionError, match=r"cannot be distinguished.*struct with a tag"):
        topic_of(Seen | Tags)


def test_dataclasses_go_through_a_service_and_its_replay() -> None:
    app = tr.App("ships")
    seen = app.topic("seen", Seen)
    places = app.topic("places", Place, key="name")

    @app.actor
    class Ship(tr.Actor):
        count: int = 0

        @tr.process(seen)
        def was_seen(self, event: Seen, ctx: tr.Context[tuple[str, int]]) -> None:
            self.count += 1
            ctx.emit(places, Place(f"{ctx.key[0]} {self.count}"))

    with Harness(app) as h:
        assert h.send(seen, EVENT, EVENT).to(places) == [Place("Ada 1"), Place("Ada 2")]
        h.crash()
        h.replay()


@dataclass
class Plain:
    shop: str
    amount: int = 0


@dataclass(slots=True)
class Around:
    plain: Plain


@pytest.mark.parametrize("type", [Plain, Around])
def test_a_default_without_a_slot_is_refused_when_the_topic_is_declared(type: Any) -> None:
    with pytest.raises(DefinitionError, match=r"amount has a default and no slot.*slots=True"):
        topic_of(type)


@pytest.mark.parametrize("type", [Scaled, Wrapped])
def test_an_init_var_which_no_record_holds_is_refused_when_the_topic_is_declared(type: Any) -> None:
    with pytest.raises(DefinitionError, match="InitVar") as caught:
        topic_of(type)
    assert "make it a field, or compute what follows from it" in caught.value.hint
