# an actor's empty list is copied for each instance
"""What an app, its actors, their fields and their handlers are declared as."""

from __future__ import annotations

import gc
from datetime import date, timedelta
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.actor import declaration_of
from tailrace.core.declare.handlers import TimerRole
from tailrace.core.engine.failure import explain_attribute_error


class Departure(msgspec.Struct, frozen=True, tag=True):
    tail: str
    at: int = 0


class Diverted(Departure, frozen=True, tag=True):
    to: str = ""


class Arrival(msgspec.Struct, frozen=True, tag=True):
    tail: str


class Ping(msgspec.Struct, frozen=True):
    n: int


app = tr.App("flights", partitions=2, on_error="dead-letter", version="2024-06")
departures = app.topic("departures", Departure, key="tail")
more = app.topic("more", Departure, key="tail")
diverted = app.topic("diverted", Diverted, key="tail", key_type=str)
arrivals = app.topic("arrivals", Arrival, key="tail")
mixed: tr.Topic[Departure | Arrival, str] = app.topic("mixed", Departure | Arrival, key="tail")
stream = app.stream("stream", Departure)
late = app.topic("late", Departure, key="tail")
forwarded = app.topic(
    "forwarded", Departure, key="tail", event_time="at", out_of_order="30m", late=late, repartition=True
)


class Aircraft(tr.Actor):
    LIMIT: ClassVar[int] = 3
    tail: str
    legs: int = tr.field(default=0, name="n")
    places: list[str] = []
    minutes_late: tr.MapState[str, int]
    notes: tr.ListState[str]

    @tr.process(departures)
    def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


class Renamed(Aircraft):
    @tr.process(forwarded)
    def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    @tr.on_timer
    @tr.on_processing_timer("poll")
    def tick(self, ctx: tr.Context[str]) -> None: ...

    @tr.on_message
    def pinged(self, message: Ping, ctx: tr.Context[str]) -> None: ...


def note(event: Departure, ctx: tr.Context[str]) -> None: ...


def made(cls: Any, **fields: Any) -> Any:
    """An instance, as only the framework makes them: a type checker would ask for the collections as well."""
    return cls(**fields)


def handlers(cls: type[Any]) -> dict[str, Any]:
    return {one.method: one for one in declaration_of(cls).handlers}


# --- apps ---


def test_what_is_declared_stays_what_it_is_and_is_planned_by_its_stable_name() -> None:
    assert app.actor(Aircraft) is Aircraft
    assert app.actor(name="plane")(Renamed) is Renamed
    assert app.process(departures, name="again")(note) is note
    assert app.process(forwarded, departures, order="arrival")(note) is note
    plan = app.plan()
    assert app.plan() is plan, "it is made once"
    assert [(one.name, one.cls) for one in plan.actors] == [("Aircraft", Aircraft), ("plane", Renamed)]
    wanted = ("flights", 2, "dead-letter", "2024-06")
    assert (plan.app, plan.partitions, plan.on_error, plan.version) == wanted
    assert (plan.inbox_topic, plan.changelog_topic) == ("flights.inbox", "flights.changelog")
    assert (plan.tape_topic, plan.dead_letters_topic) == ("flights.tape", "flights.dead-letters")
    assert plan.actor_of(Renamed) is plan.actors[1]
    with pytest.raises(tr.UsageError, match=r"Actor .* of the app 'flights'"):
        plan.actor_of(tr.Actor)
    inputs = {one.name: one for one in plan.inputs}
    by_key = "flights.forwarded.by-key"
    assert list(inputs) == ["departures", by_key, "forwarded", "flights.inbox"], "by name, the inbox last"
    assert [[route.name for route in inputs[name].routes] for name in ("departures", by_key)] == [
        ["Aircraft.departed", "again", "note"],
        ["note", "plane.departed"],
    ]
    # A topic that is repartitioned is read through an internal one. Disorder is allowed for where events arrive.
    outer, inner = inputs["forwarded"], inputs[by_key]
    assert inner.key_of is not None
    assert (inner.key_of(Departure("N1")), inner.late, inner.out_of_order_ms) == ("N1", "route", 0)
    assert (inner.watermark, inner.own) == ("upstream", True)
    assert (outer.key_of, outer.late) == (None, "handle")
    assert (outer.watermark, outer.out_of_order_ms) == ("events", 1_800_000)


def test_a_further_declaration_makes_another_plan() -> None:
    other = tr.App("flights")
    first = other.plan()
    assert [one.name for one in first.inputs] == ["flights.inbox"]
    other.stream("clean", Departure)
    assert other.plan() is not first


def test_the_key_of_an_actor_without_topics_is_what_its_context_says() -> None:
    other = tr.App("flights")

    @other.actor
    class Gate(tr.Actor):
        @tr.on_message
        def pinged(self, message: Ping, ctx: tr.Context[int]) -> None: ...

    assert other.plan().actors[0].key_codec.encode(1) == b"\0\0\0\0\0\0\0\x01"


# --- fields ---


def test_a_ttl_is_any_duration_and_counts_event_time_unless_told() -> None:
    class Session(tr.Actor):
        user: str = tr.field(default="", ttl="1h30m")
        clicks: int = tr.field(default=0, ttl=timedelta(seconds=2), ttl_time="processing")
        pages: tr.MapState[str, int] = tr.field(ttl=500)
        log: tr.MapState[int, str] = tr.field(ttl="1d", ttl_time="processing")
        kept: int = 0

    assert [(one.attr, one.ttl_ms, one.ttl_domain) for one in declaration_of(Session).fields] == [
        ("user", 5_400_000, rows.EVENT_TIME),
        ("clicks", 2_000, rows.PROCESSING_TIME),
        ("pages", 500, rows.EVENT_TIME),
        ("log", 86_400_000, rows.PROCESSING_TIME),
        ("kept", None, rows.EVENT_TIME),
    ]


def test_a_renamed_attribute_keeps_its_stored_name_with_a_default_or_without() -> None:
    class Session(tr.Actor):
        who: str = tr.field(name="user")
        visited: tr.MapState[str, int] = tr.field(name="pages")
        legs: int = tr.field(default=0, name="n")

    found = [(one.name, one.required) for one in declaration_of(Session).fields]
    assert found[::2] == [("user", True), ("n", False)]
    assert found[1][0] == "pages"
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made(Session, who="x"))) == {"user": "x", "n": 0}
    assert msgspec.msgpack.Decoder(Session).decode(b"\x81\xa4user\xa1x").who == "x"


def test_a_mutable_default_is_a_new_one_for_each_instance_and_a_frozen_struct_may_be_one() -> None:
    class Session(tr.Actor):
        pages: list[str] = tr.field(default_factory=lambda: ["home"])
        last: Ping = Ping(0)

    for cls, attr, default in ((Session, "pages", ["home"]), (Renamed, "places", [])):
        one, other = (made(cls, **({} if cls is Session else {"tail": "N1"})) for _ in range(2))
        getattr(one, attr).append("cart")
        assert getattr(other, attr) == default
        assert not gc.is_tracked(other), "instances are not tracked by the garbage collector"
    assert made(Session).last == Ping(0)


@given(
    default=st.recursive(st.integers() | st.text(), lambda inner: st.tuples(inner, inner) | st.lists(inner))
)
def test_whatever_instances_would_share_is_refused(default: Any) -> None:
    def holds_a_list(value: Any) -> bool:
        return isinstance(value, list) or (isinstance(value, tuple) and any(map(holds_a_list, value)))

    def declare() -> None:
        class Session(tr.Actor):
            value: int | str | tuple[int | str, ...] | None = default

    if holds_a_list(default) and default != []:
        with pytest.raises(tr.DefinitionError, match="all instances would share"):
            declare()
    else:
        declare()


def test_collections_of_an_instance_that_nobody_runs_are_refused_with_the_mend() -> None:
    one = made(Aircraft, tail="N1")
    for attr in ("minutes_late", "notes"):
        with pytest.raises(tr.UsageError, match=rf"Aircraft.{attr} .* with the harness"):
            getattr(one, attr)
        with pytest.raises(tr.UsageError, match=rf"Aircraft.{attr} was assigned to"):
            setattr(one, attr, {})


# --- inheritance ---


class Vehicle(tr.Actor):
    owner: str = "nobody"
    odometer: tr.MapState[str, int]
    trips: int = tr.field(default=0, ttl="1h")

    @tr.on_timer("service")
    def service(self, ctx: tr.Context[str]) -> None: ...


class Counting:
    __slots__ = ()

    @tr.on_timer("count")
    def count(self, ctx: tr.Context[str]) -> None: ...


class Truck(Counting, Vehicle):
    load: int = tr.field(default=0, ttl="2h")
    stops: tr.MapState[str, int]
    owner: str = "us"

    @tr.process(departures)
    def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


class FakeParts:
    def __init__(self) -> None:
        self.written: list[int] = []

    def map(self, index: int) -> str:
        return f"map {index}"

    def ttl_written(self, index: int) -> None:
        self.written.append(index)


def test_an_actor_inherits_fields_collections_and_handlers_and_its_base_keeps_its_own() -> None:
    class Quiet(Truck):
        @tr.process(departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    truck = made(Truck)
    truck._tr_parts = parts = FakeParts()
    assert (truck.owner, truck.odometer, truck.stops) == ("us", "map 0", "map 1")
    truck.load, truck.trips, truck.owner = 5, 6, "them"
    assert (truck.load, truck.trips, parts.written) == (5, 6, [1, 0])
    assert [*handlers(Truck)] == ["count", "departed", "service"]
    assert handlers(Quiet)["departed"].where == "Quiet.departed"
    assert made(Vehicle).owner == "nobody"
    assert [one.attr for one in declaration_of(Vehicle).fields] == ["owner", "odometer", "trips"]


# --- handlers ---


def test_a_handler_may_take_several_topics_stacked_or_listed_and_be_declared_wider() -> None:
    class Several(tr.Actor, order="arrival"):
        @tr.process(departures, arrivals)
        def listed(self, event: Departure | Arrival, ctx: tr.Context[str]) -> None: ...

        @tr.process(stream)
        @tr.process(more)
        def stacked(self, event: msgspec.Struct, ctx: tr.Context[str]) -> None: ...

        @tr.process(mixed)
        def union(self, event: Arrival | Departure, ctx: tr.Context[str]) -> None: ...

        @tr.process(diverted)
        def base(self, event: Departure, ctx: tr.Context[str]) -> None: ...

        @tr.process(late)
        def anything(self, event: object, ctx: tr.Context) -> None: ...

        @tr.process(forwarded)
        def bare(self, event, ctx): ...  # annotations may be left out

    assert handlers(Several)["listed"].edges == (departures, arrivals)
    assert set(handlers(Several)["stacked"].edges) == {stream, more}
    assert declaration_of(Several).resolved


def test_a_handler_may_take_several_families_of_timers_or_types_of_messages() -> None:
    class Several(tr.Actor):
        @tr.on_timer("overdue")
        @tr.on_timer("lost")
        @tr.on_timer
        def fired(self, ctx: tr.Context[str]) -> None: ...

        @tr.on_processing_timer("overdue")
        def clock(self, ctx: tr.Context[str]) -> None: ...

        @tr.on_message
        def pinged(self, message: Ping | Departure, ctx: tr.Context[str]) -> None: ...

        @tr.on_message(name="note")
        def noted(self, message: str, ctx: tr.Context[str]) -> None: ...

    found = handlers(Several)
    assert set(found["fired"].roles) == {
        TimerRole(rows.EVENT_TIME, family) for family in ("overdue", "lost", "")
    }
    assert found["clock"].roles == (TimerRole(rows.PROCESSING_TIME, "overdue"),)
    assert (found["pinged"].message_types, found["noted"].message_types) == ((Ping, Departure), (str,))


# --- annotations ---


def test_a_field_does_not_hide_the_type_that_it_is_named_after() -> None:
    class Flight(tr.Actor):
        date: date | None = None

    (field,) = declaration_of(Flight).fields
    assert field.annotation == date | None


class Early(tr.Actor):
    later: Later | None = None
    laters: tr.MapState[str, Later]

    @tr.process(departures)
    def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


class Later(msgspec.Struct):
    name: str


def test_annotations_may_name_what_is_local_to_the_function_around_or_defined_further_down() -> None:
    class Gate(msgspec.Struct):
        name: str

    class Local(tr.Actor):
        gate: Gate | None = None
        gates: tr.MapState[str, Gate]

    assert msgspec.msgpack.Decoder(Local).decode(b"\x81\xa4gate\x81\xa4name\xa2A1").gate == Gate("A1")
    assert [one.annotation for one in declaration_of(Local).fields] == [Gate | None, tr.MapState[str, Gate]]
    assert not declaration_of(Early).resolved
    other = tr.App("late")
    topic = other.topic("departures", Departure, key="tail")

    @other.actor
    class Mine(Early):
        @tr.process(topic)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    (plan,) = other.plan().actors
    assert plan.decode(b"\x81\xa5later\x81\xa4name\xa2A1").later == Later("A1")
    assert plan.maps[0].decode(b"\x81\xa4name\xa2A1") == Later("A1")


# --- attributes that are not there ---


class Wrong(tr.Actor):
    legs: int = 0
    tail: str


DID_YOU_MEAN = (
    "Wrong has no durable field 'leg'. Did you mean 'legs'? Declare it in the class: leg: type = default."
)
NO_VALUE = (
    "Wrong.tail was read before it had a value. Give the field a default, or set it in every handler that may "
    "be a key's first."
)


@pytest.mark.parametrize(("attr", "explained"), [("leg", DID_YOU_MEAN), ("tail", NO_VALUE), (None, None)])
def test_an_attribute_error_is_explained_with_the_mend(attr: str | None, explained: str | None) -> None:
    one = Wrong(tail="N1")
    del one.tail
    with pytest.raises(AttributeError) as caught:
        getattr("" if attr is None else one, attr or "nothing")
    assert explain_attribute_error(caught.value) == explained
