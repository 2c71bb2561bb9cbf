"""Key and event time declared on the event type: every topic knows them, and what a topic says itself goes
first.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Generic, NewType, TypeVar

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import Harness

T = TypeVar("T")


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


@pytest.fixture
def app() -> tr.App:
    return tr.App("marks")


def test_a_topic_has_key_and_event_time_of_its_type(app: tr.App) -> None:
    topic = app.topic("orders", Order)
    event = Order("Ada", 5)
    assert (topic.key_type, topic.encode_key(event)) == (str, b"Ada")
    assert topic.time_of is not None
    assert topic.time_of(event) == 5


def test_several_marked_fields_make_a_tuple_in_their_order(app: tr.App) -> None:
    topic = app.topic("flights", Flight)
    event = Flight("-", "TR", 7, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    assert (topic.key_type, topic.encode_key(event)) == (tuple[str, int], b'["TR",7]')
    assert topic.time_of is not None
    assert topic.time_of(event) == 1_000


def test_a_subclass_has_the_marks_of_its_base(app: tr.App) -> None:
    topic = app.topic("later", Later)
    assert (topic.settings.key, topic.settings.event_time) == ("shop", "at")


def test_a_generic_type_has_the_key_type_that_it_is_given(app: tr.App) -> None:
    topic = app.topic("boxes", Box[int])
    assert (topic.key_type, topic.settings.event_time) == (int, "at")


def test_a_union_has_the_marks_that_its_members_share(app: tr.App) -> None:
    topic: tr.Topic[Circle | Square, str] = app.topic("shapes", Circle | Square)
    assert (topic.key_type, topic.encode_key(Square("red"))) == (str, b"red")
    with pytest.raises(tr.DefinitionError, match=r"key is 'colour' in Circle, not marked in Dot.*key="):
        app.topic("dots", Circle | Dot)
    assert app.topic("dots", Circle | Dot, key="colour").key_type is str


def test_what_a_topic_says_goes_before_what_its_type_says(app: tr.App) -> None:
    topic = app.topic("numbers", Order, key="cents", key_type=int, event_time=tr.RECORD_TIME)
    assert (topic.key_type, topic.time_of) == (int, None)
    assert app.topic("half", Order, event_time=tr.ARRIVAL_TIME).settings.key == "shop"
    assert app.topic("rest", Order, key=lambda e: e.shop[:1], key_type=str).settings.event_time == "at"


def test_key_none_is_a_topic_without_key(app: tr.App) -> None:
    assert app.topic("loose", Order, key=None).key_of is None


def test_a_mark_without_a_type_is_refused(app: tr.App) -> None:
    class Bare(msgspec.Struct):
        shop: tr.Key  # type: ignore[type-arg]  # what is refused here

    with pytest.raises(
        tr.DefinitionError, match=r"Bare\.shop is annotated tailrace\.Key alone.*tr\.Key\[\.\.\.\]"
    ):
        app.topic("bare", Bare)


def test_two_event_times_are_refused(app: tr.App) -> None:
    class Twice(msgspec.Struct):
        at: tr.EventTime[int]
        on: tr.EventTime[int]

    with pytest.raises(tr.DefinitionError, match="marks at and on as its event time"):
        app.topic("twice", Twice)


def test_what_type_checkers_are_told_of_the_key_is_true(app: tr.App) -> None:
    class Wrong(msgspec.Struct, tr.Keyed[int]):
        shop: tr.Key[str]

    class Unmarked(msgspec.Struct, tr.Keyed[str]):
        shop: str

    with pytest.raises(tr.DefinitionError, match=r"Wrong is tr\.Keyed\[int\], but its key 'shop' is str"):
        app.topic("wrong", Wrong)
    with pytest.raises(tr.DefinitionError, match="no field of it is marked as the key"):
        app.topic("unmarked", Unmarked)
    assert app.topic("said", Unmarked, key="shop").key_type is str


def test_a_marked_topic_feeds_an_actor_by_key_and_in_event_time(app: tr.App) -> None:
    orders = app.topic("orders", Order, out_of_order="1s")

    @app.actor
    class Shop(tr.Actor):
        cents: int = 0

        @tr.process(orders)
        def ordered(self, event: Order, ctx: tr.Context[str]) -> None:
            self.cents += event.cents
            assert ctx.event_time == event.at

    with Harness(app) as h:
        h.send(orders, Order("Ada", 10_000, 5), Order("Bob", 11_000, 7), Order("Ada", 12_000, 9))
        assert [shop.cents for name in ("Ada", "Bob") if (shop := h.state(Shop, name))] == [14, 7]
        h.replay()


ShopKey = NewType("ShopKey", tr.Key[str])


class Named(msgspec.Struct):
    shop: ShopKey
    at: tr.EventTime[int]


def test_marks_are_found_within_a_name_for_a_type(app: tr.App) -> None:
    topic = app.topic("named", Named)
    event = Named(ShopKey("Ada"), 5)
    assert topic.encode_key(event) == b"Ada"
    assert topic.time_of is not None
    assert topic.time_of(event) == 5
