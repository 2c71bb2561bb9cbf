from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core.errors import BadRecordError, DefinitionError


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
        ("airline", None, str, "TR", b"TR"),
        ("plane.tail", None, str, "N1", b"N1"),
        ("number", int, int, 7, b"\0\0\0\0\0\0\0\x07"),
        (("airline", "number"), None, tuple[str, int], ("TR", 7), b'["TR",7]'),
        (number_of, None, int, 7, b"\0\0\0\0\0\0\0\x07"),
        (tail_or_none, None, str, "N1", b"N1"),
        (lambda e: e.airline.lower(), str, str, "tr", b"tr"),
    ],
)
def test_a_key_is_a_field_a_path_several_or_a_function(
    key: Any, key_type: Any, found: Any, value: Any, encoded: bytes
) -> None:
    topic = tr.App("flights").topic("departures", Departure, key=key, key_type=key_type)
    assert topic.key_of is not None
    assert (topic.key_type, topic.key_of(EVENT), topic.encode_key(EVENT)) == (found, value, encoded)


def test_a_topic_without_key_writes_none() -> None:
    topic = tr.App("flights").topic("departures", Departure)
    assert (topic.key_of, topic.encode_key(EVENT)) == (None, None)


def test_an_event_without_key_is_a_bad_record() -> None:
    topic = tr.App("flights").topic("departures", Departure, key="standby.tail")
    with pytest.raises(BadRecordError, match="key"):
        topic.encode_key(Departure(Plane("N1"), "TR", 7, 0))


@pytest.mark.parametrize(
    ("source", "time_ms"),
    [
        ("at", 1_000),
        ("when", None),
        ("standby.built", 1_001),
        ("plane.built", None),
        (lambda e: e.at + 5, 1_005),
        (lambda e: e.standby.built, 1_001),
        (lambda e: None, None),
    ],
)
def test_event_time_is_a_field_a_path_or_a_function_and_none_where_it_is_missing(
    source: str | Callable[[Departure], int | datetime | None], time_ms: int | None
) -> None:
    topic = tr.App("flights").topic("departures", Departure, key="number", event_time=source)
    assert topic.time_of is not None
    assert (topic.settings.time_kind, topic.time_of(EVENT)) == ("field", time_ms)


def test_event_time_behind_something_missing_is_missing() -> None:
    topic = tr.App("flights").topic("departures", Departure, key="number", event_time="standby.built")
    assert topic.time_of is not None
    assert topic.time_of(Departure(Plane("N1"), "TR", 7, 0)) is None


@given(st.datetimes(timezones=st.timezones()))
def test_a_datetime_is_rounded_down_to_a_millisecond_exactly(when: datetime) -> None:
    topic = tr.App("flights").topic("departures", Departure, key="number", event_time="when")
    assert topic.time_of is not None
    time_ms = topic.time_of(msgspec.structs.replace(EVENT, when=when))
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    assert time_ms == (since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds) // 1000


@pytest.mark.parametrize("instant", [datetime(2020, 1, 1), "2020-01-01", 1.5, True])  # noqa: DTZ001  # it is the point
def test_an_event_time_that_is_no_instant_makes_a_bad_record(instant: Any) -> None:
    topic = tr.App("flights").topic("departures", Departure, key="number", event_time=lambda _: instant)
    assert topic.time_of is not None
    with pytest.raises(BadRecordError) as caught:
        topic.time_of(EVENT)
    assert caught.value.reason == "bad-time"


def test_a_time_that_is_not_in_the_event_has_no_reader() -> None:
    app = tr.App("flights")
    recorded = app.topic("recorded", Departure, key="number")
    arriving = app.topic("arriving", Departure, key="number", event_time=tr.ARRIVAL_TIME)
    assert (recorded.settings.time_kind, recorded.time_of) == ("record", None)
    assert (arriving.settings.time_kind, arriving.time_of) == ("arrival", None)


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_equal_events_are_written_alike(format: Any) -> None:
    topic = tr.App("flights").topic("departures", Departure, key="number", format=format)
    one = msgspec.structs.replace(EVENT, tags={"a": 1, "b": 2})
    other = msgspec.structs.replace(EVENT, tags={"b": 2, "a": 1})
    assert topic.encode(one) == topic.encode(other)


def test_decoding_is_strict() -> None:
    topic = tr.App("flights").topic("planes", Plane, key="tail")
    with pytest.raises(msgspec.ValidationError):
        topic.decode(b'{"tail": 7}')


def test_a_union_of_tagged_structs_is_one_topic() -> None:
    class Circle(msgspec.Struct, frozen=True, tag=True):
        colour: str

    class Square(msgspec.Struct, frozen=True, tag=True):
        colour: str

    topic: tr.Topic[Circle | Square, str] = tr.App("shapes").topic("shapes", Circle | Square, key="colour")
    assert topic.types == {Circle, Square}
    assert topic.decode(topic.encode(Square("blue"))) == Square("blue")
    with pytest.raises(msgspec.ValidationError):
        topic.decode(b'{"type": "Triangle", "colour": "red"}')


def test_a_union_in_which_msgspec_corrupts_memory_is_refused() -> None:
    class Sale(msgspec.Struct):
        shop: str
        amounts: list[tuple[int, int] | Annotated[int, msgspec.Meta(ge=0)]]

    with pytest.raises(DefinitionError, match="msgspec cannot read a union of a tuple"):
        tr.App("shop").topic("sales", Sale, key="shop")


def test_only_events_that_cannot_change_may_be_encoded_later() -> None:
    app = tr.App("flights")
    assert app.topic("planes", Plane, key="tail").immutable
    assert not app.topic("departures", Departure, key="number").immutable


def test_what_a_topic_is_not_told_has_a_default() -> None:
    settings = tr.App("flights").topic("departures", Departure, key="number").settings
    assert (settings.out_of_order_ms, settings.late, settings.late_topic) == (0, "handle", None)
    assert (settings.idle_after_ms, settings.on_error, settings.repartition) == (60_000, None, False)
    assert datetime.fromtimestamp(settings.time_max_ms / 1000, UTC) == datetime(2200, 1, 1, tzinfo=UTC)
    assert settings.time_min_ms == 0


def test_the_times_that_make_sense_may_be_given_as_datetimes() -> None:
    times = (datetime(2020, 1, 1, tzinfo=UTC), 1_600_000_000_000)
    settings = tr.App("flights").topic("departures", Departure, key="number", time_range=times).settings
    assert (settings.time_min_ms, settings.time_max_ms) == (1_577_836_800_000, 1_600_000_000_000)
