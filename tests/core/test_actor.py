# an actor's empty list is copied for each instance
from __future__ import annotations

import gc
from typing import Any, ClassVar

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.actor import declaration_of
from tailrace.core.engine.failure import explain_attribute_error


class Departure(msgspec.Struct, frozen=True):
    tail: str
    at: int


app = tr.App("flights")
departures = app.topic("departures", Departure, key="tail")


class Aircraft(tr.Actor):
    LIMIT: ClassVar[int] = 3
    airborne: Departure | None = None
    tail: str
    legs: int = tr.field(default=0, name="n")
    places: list[str] = []
    minutes_late: tr.MapState[str, int]
    notes: tr.ListState[str]

    @tr.process(departures)
    def departed(self, event: Departure, ctx: tr.Context[str]) -> None:
        self.legs += 1

    def double(self) -> int:
        return self.legs * 2


def test_an_empty_mutable_default_is_a_new_one_for_each_instance() -> None:
    one, other = new(), new()
    one.places.append("JFK")
    assert other.places == []


def test_instances_are_not_tracked_by_the_garbage_collector() -> None:
    assert not gc.is_tracked(new())


def test_collections_of_an_instance_without_parts_are_refused_with_the_mend() -> None:
    with pytest.raises(tr.UsageError, match=r"Aircraft.minutes_late .* with the harness"):
        new().minutes_late
    with pytest.raises(tr.UsageError, match=r"Aircraft.notes .* with the harness"):
        new().notes


def test_a_collection_cannot_be_assigned_to() -> None:
    with pytest.raises(tr.UsageError, match=r"Aircraft.minutes_late was assigned to"):
        new().minutes_late = {}


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


def test_an_actor_inherits_fields_collections_and_handlers() -> None:
    truck = made(Truck)
    truck._tr_parts = FakeParts()
    assert (truck.owner, truck.odometer, truck.stops) == ("us", "map 0", "map 1")
    assert [one.method for one in declaration_of(Truck).handlers] == ["count", "departed", "service"]


def test_a_base_keeps_its_own_fields_and_defaults() -> None:
    vehicle = made(Vehicle)
    assert vehicle.owner == "nobody"
    assert [one.attr for one in declaration_of(Vehicle).fields] == ["owner", "odometer", "trips"]


def test_an_overridden_handler_replaces_the_one_of_the_base() -> None:
    class Quiet(Truck):
        @tr.process(departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    (handler,) = [one for one in declaration_of(Quiet).handlers if one.method == "departed"]
    assert handler.where == "Quiet.departed"


# --- annotations ---


def test_annotations_may_name_what_is_local_to_the_function_around() -> None:
    class Gate(msgspec.Struct):
        name: str

    class Local(tr.Actor):
        gate: Gate | None = None
        gates: tr.MapState[str, Gate]

    decoded = msgspec.msgpack.Decoder(Local).decode(b"\x81\xa4gate\x81\xa4name\xa2A1")
    assert decoded.gate == Gate("A1")
    assert [one.annotation for one in declaration_of(Local).fields] == [Gate | None, tr.MapState[str, Gate]]


class Early(tr.Actor):
    later: Later | None = None
    laters: tr.MapState[str, Later]

    @tr.process(departures)
    def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


class EarlyToo(Early):
    more: int = 0


class Later(msgspec.Struct):
    name: str


def test_annotations_may_name_what_is_defined_further_down() -> None:
    assert not declaration_of(EarlyToo).resolved
    late = tr.App("late")
    topic = late.topic("departures", Departure, key="tail")

    @late.actor
    class Mine(EarlyToo):
        @tr.process(topic)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    (plan,) = late.plan().actors
    assert plan.decode(b"\x81\xa5later\x81\xa4name\xa2A1").later == Later("A1")
    assert plan.maps[0].decode(b"\x81\xa4name\xa2A1") == Later("A1")


# --- attributes that are not there ---


class Wrong(tr.Actor):
    legs: int = 0
    tail: str

    def read(self) -> None:
        self.leg  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

    def read_unset(self) -> None:
        self.tail

    def someone_elses(self) -> None:
        "".nothing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("method", "explained"),
    [
        (
            "read",
            (
                "Wrong has no durable field 'leg'. Did you mean 'legs'? Declare it in the class: leg: type = "
                "default."
            ),
        ),
        (
            "read_unset",
            (
                "Wrong.tail was read before it had a value. "
                "Give the field a default, or set it in every handler that may be a key's first."
            ),
        ),
        ("someone_elses", None),
    ],
)
def test_an_attribute_error_is_explained_with_the_mend(method: str, explained: str | None) -> None:
    one = Wrong(tail="N1")
    del one.tail
    with pytest.raises(AttributeError) as caught:
        getattr(one, method)()
    assert explain_attribute_error(caught.value) == explained


class FakeParts:
    def __init__(self) -> None:
        self.written: list[int] = []

    def map(self, index: int) -> str:
        return f"map {index}"

    def list(self, index: int) -> str:
        return f"list {index}"

    def ttl_written(self, index: int) -> None:
        self.written.append(index)


def made(cls: Any, **fields: Any) -> Any:
    """An instance, as only the framework makes them: a type checker would ask for the collections as well."""
    return cls(**fields)


def new() -> Any:
    return made(Aircraft, tail="N1")
