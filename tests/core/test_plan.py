# an actor's empty list is copied for each instance
from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import Plan


class Departure(msgspec.Struct, frozen=True):
    tail: str
    at: int = 0


class Arrival(msgspec.Struct, frozen=True):
    tail: str
    crew: list[str] = []


class Ping(msgspec.Struct, frozen=True):
    n: int


def flights(*, repartition: bool = False) -> tr.App:
    app = tr.App("flights", partitions=2, on_error="dead-letter")
    late = app.topic("late", Departure, key="tail", key_type=str)
    departures = app.topic(
        "departures",
        Departure,
        key="tail",
        key_type=str,
        event_time="at",
        out_of_order="30m",
        late=late,
        on_error="stop",
        repartition=repartition,
    )
    arrivals = app.topic("arrivals", Arrival, key="tail", key_type=str, watermark=False)
    raw = app.topic("raw", Arrival)
    clean = app.stream("clean", Departure)
    app.stream("by-crew", Arrival)

    @app.process(departures, name="b-clean")
    def cleaned(event: Departure, ctx: tr.Context[str]) -> None: ...

    @app.process(raw)
    def keyed(event: Arrival, ctx: tr.Context[bytes | None]) -> None: ...

    @app.actor(name="c-plane")
    class Aircraft(tr.Actor, order="arrival"):
        legs: int = 0
        captain: str
        seen: list[Arrival] = []
        late: float = tr.field(default=0.0, ttl="1h")
        per_airport: tr.MapState[str, int]
        crews: tr.MapState[int, Arrival] = tr.field(ttl="2h", ttl_time="processing", name="people")
        log: tr.ListState[str]

        @tr.process(departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

        @tr.process(arrivals, clean)
        def moved(self, event: Arrival | Departure, ctx: tr.Context[str]) -> None: ...

        @tr.on_timer("overdue")
        def overdue(self, ctx: tr.Context[str]) -> None: ...

        @tr.on_timer
        @tr.on_processing_timer("poll")
        def tick(self, ctx: tr.Context[str]) -> None: ...

        @tr.on_message
        def pinged(self, message: Ping | Departure, ctx: tr.Context[str]) -> None: ...

        @tr.query
        def status(self) -> int:
            return self.legs

    @app.actor(name="a-counter")
    class Counter(tr.Actor):
        n: int = 0

        @tr.process(departures)
        def count(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    return app


@pytest.fixture
def plan() -> Plan:
    return flights().plan()


def test_inputs_are_the_topics_that_are_taken_by_name_and_the_inbox_last(plan: Plan) -> None:
    assert [one.name for one in plan.inputs] == ["arrivals", "departures", "raw", "flights.inbox"]
    assert [one.index for one in plan.inputs] == [0, 1, 2, 3]
    assert [one.is_inbox for one in plan.inputs] == [False, False, False, True]


def test_the_handlers_of_an_event_run_by_the_name_of_actor_or_function(plan: Plan) -> None:
    assert [route.name for route in plan.inputs[1].routes] == [
        "a-counter.count",
        "b-clean",
        "c-plane.departed",
    ]
    assert [route.target for route in plan.inputs[1].routes] == [plan.actors[0], None, plan.actors[1]]


def test_an_input_carries_what_its_topic_was_declared_with(plan: Plan) -> None:
    arrivals, departures, raw, inbox = plan.inputs
    assert departures.topic is plan.topics["departures"]
    assert (departures.time_kind, departures.out_of_order_ms, departures.watermark) == (
        "field",
        1_800_000,
        "events",
    )
    assert (departures.late, departures.late_topic, departures.on_error) == (
        "route",
        plan.topics["late"],
        "stop",
    )
    assert departures.time_of is not None
    assert departures.time_of(Departure("N1", 5)) == 5
    assert (arrivals.watermark, arrivals.on_error, arrivals.time_kind) == ("none", "dead-letter", "record")
    assert (raw.key_of, raw.key_codec.encode(b"N1")) == (None, b"N1")
    assert (inbox.watermark, inbox.topic, inbox.on_error) == ("none", None, "dead-letter")


def test_there_is_no_inbox_where_nobody_takes_messages() -> None:
    app = tr.App("flights")
    app.topic("departures", Departure, key="tail")
    assert (app.plan().inbox_topic, app.plan().inputs) == (None, ())


def test_streams_are_numbered_by_name_and_know_who_takes_them(plan: Plan) -> None:
    assert [(one.name, one.index) for one in plan.streams] == [("by-crew", 0), ("clean", 1)]
    assert [[route.name for route in routes] for routes in plan.routes_of_stream] == [[], ["c-plane.moved"]]


def test_the_internal_topics_are_named_after_the_app(plan: Plan) -> None:
    assert (plan.inbox_topic, plan.changelog_topic) == ("flights.inbox", "flights.changelog")
    assert (plan.tape_topic, plan.dead_letters_topic) == ("flights.tape", "flights.dead-letters")
    assert plan.outputs == ("arrivals", "departures", "late", "raw")


def test_timers_are_found_by_domain_and_family(plan: Plan) -> None:
    actor = plan.actors[1]
    assert {family: route.name for family, route in actor.event_timers.items()} == {
        "overdue": "c-plane.overdue",
        "": "c-plane.tick",
    }
    assert {family: route.name for family, route in actor.processing_timers.items()} == {
        "poll": "c-plane.tick"
    }


def test_messages_are_known_by_name_and_by_type(plan: Plan) -> None:
    actor = plan.actors[1]
    assert dict(actor.message_names) == {Ping: "Ping", Departure: "Departure"}
    ping = actor.messages["Ping"]
    assert (ping.route.name, ping.decode(ping.encode(Ping(3)))) == ("c-plane.pinged", Ping(3))
    with pytest.raises(msgspec.ValidationError):
        ping.decode(actor.messages["Departure"].encode(Departure("N1")))


def test_a_new_instance_has_its_defaults_and_nothing_else(plan: Plan) -> None:
    actor = plan.actors[1]
    one, other = actor.new(), actor.new()
    assert (actor.required, one.legs, one.seen) == (("captain",), 0, [])
    assert not hasattr(one, "captain")
    one.seen.append(Arrival("N1"))
    assert other.seen == []
    with pytest.raises(AttributeError):
        actor.encode(one)


def test_an_instance_comes_back_as_it_was_stored(plan: Plan) -> None:
    actor = plan.actors[1]
    one = actor.new()
    one.captain, one.seen = "Ann", [Arrival("N1", ["Bo"])]
    back = actor.decode(actor.encode(one))
    assert (back.captain, back.seen, back.legs) == ("Ann", [Arrival("N1", ["Bo"])], 0)
    assert actor.encode(back) == actor.encode(one)


def test_what_is_stored_is_found_by_name_whatever_the_order_of_fields(plan: Plan) -> None:
    assert plan.actors[1].decode(b"\x83\xa5extra\x01\xa7captain\xa3Ann\xa4legs\x02").legs == 2


def test_an_actor_whose_values_are_all_immutable_need_not_be_decoded_anew(plan: Plan) -> None:
    assert [actor.fixed for actor in plan.actors] == [True, False]


def test_the_seal_refuses_a_value_of_another_type(plan: Plan) -> None:
    one = plan.actors[0].new()
    assert plan.actors[0].seal is not None
    plan.actors[0].seal(one)
    one.n = "three"
    with pytest.raises(tr.DurableValueError, match="'n'"):
        plan.actors[0].seal(one)


def test_maps_and_lists_carry_their_codecs_and_lives(plan: Plan) -> None:
    per_airport, crews = plan.actors[1].maps
    assert (per_airport.attr, per_airport.name, per_airport.ttl_ms) == ("per_airport", "per_airport", None)
    assert (per_airport.immutable, crews.immutable) == (True, False)
    assert (crews.attr, crews.name) == ("crews", "people")
    assert (crews.ttl_ms, crews.ttl_domain) == (7_200_000, rows.PROCESSING_TIME)
    assert crews.key_codec.decode(crews.key_codec.encode(-5)) == -5
    assert crews.decode(crews.encode(Arrival("N1"))) == Arrival("N1")
    (log,) = plan.actors[1].lists
    assert (log.attr, log.immutable, log.decode(log.encode("x"))) == ("log", True, "x")


def test_fields_with_a_time_to_live_are_numbered(plan: Plan) -> None:
    (late,) = plan.actors[1].ttls
    assert (late.attr, late.name, late.ttl_ms, late.domain) == ("late", "late", 3_600_000, rows.EVENT_TIME)


def test_an_actor_s_plan_is_found_by_its_class(plan: Plan) -> None:
    assert plan.actor_of(plan.actors[1].cls) is plan.actors[1]
    with pytest.raises(tr.UsageError, match=r"Actor .* of the app 'flights'"):
        plan.actor_of(tr.Actor)


def test_the_key_of_an_actor_without_topics_is_what_its_context_says() -> None:
    app = tr.App("flights")

    @app.actor
    class Gate(tr.Actor):
        @tr.on_message
        def pinged(self, message: Ping, ctx: tr.Context[int]) -> None: ...

    assert app.plan().actors[0].key_codec.encode(1) == b"\0\0\0\0\0\0\0\x01"


# --- repartitioning ---


def test_a_repartitioned_topic_is_read_through_an_internal_one_keyed_as_declared() -> None:
    plan = flights(repartition=True).plan()
    by_name = {one.name: one for one in plan.inputs}
    outer, inner = by_name["departures"], by_name["flights.departures.by-key"]
    assert [route.name for route in inner.routes] == ["a-counter.count", "b-clean", "c-plane.departed"]
    assert inner.key_of is not None
    assert (inner.key_of(Departure("N1")), inner.late, inner.out_of_order_ms) == ("N1", "route", 0)
    assert (outer.key_of, outer.repartitioned, outer.late) == (None, True, "handle")
    # The disorder is allowed for where events arrive; from there on the watermark is the forwarder's.
    assert (outer.watermark, outer.out_of_order_ms) == ("events", 1_800_000)
    assert (inner.watermark, inner.own) == ("upstream", True)
    assert inner.name in plan.outputs
    assert [one.index for one in plan.inputs] == list(range(len(plan.inputs)))


def test_a_repartitioned_topic_forwards_each_event_as_it_is() -> None:
    plan = flights(repartition=True).plan()
    (route,) = next(one for one in plan.inputs if one.repartitioned).routes
    emitted: list[Any] = []

    class Recorder:
        def _pass_on(self, *what: Any) -> None:
            emitted.append(what)

    route.call(Departure("N1"), Recorder())
    assert emitted == [(plan.topics["flights.departures.by-key"], Departure("N1"))]


# --- the same everywhere ---


def all_salts(plan: Plan) -> list[int]:
    routes = [route for one in plan.inputs for route in one.routes]
    routes += [route for routes in plan.routes_of_stream for route in routes]
    for actor in plan.actors:
        routes += [*actor.event_timers.values(), *actor.processing_timers.values()]
        routes += [message.route for message in actor.messages.values()]
    return [route.salt for route in routes]


def test_every_route_has_a_salt_of_its_own(plan: Plan) -> None:
    salts = all_salts(plan)
    assert len(set(salts)) == len(salts)
    assert all(0 <= salt < 1 << 64 for salt in salts)


def test_a_salt_is_the_same_whatever_the_hash_seed_and_the_name_of_the_method() -> None:
    program = (
        "import tailrace as tr, msgspec\n"
        "class Ping(msgspec.Struct): k: str\n"
        "app = tr.App('a'); t = app.topic('t', Ping, key='k')\n"
        "def declare(method):\n"
        "    def handle(self, event: Ping, ctx: tr.Context[str]) -> None: ...\n"
        "    return type(tr.Actor)('A', (tr.Actor,), {method: tr.process(t)(handle)})\n"
        "import sys\n"
        "app.actor(declare(sys.argv[1]))\n"
        "print(app.plan().inputs[0].routes[0].salt)\n"
    )

    def salt(seed: str, method: str) -> bytes:
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        return subprocess.run(
            [sys.executable, "-c", program, method], env=environment, check=True, capture_output=True
        ).stdout

    assert salt("1", "handle") == salt("2", "handled") != b""
