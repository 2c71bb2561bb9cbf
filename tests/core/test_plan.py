# an actor's empty list is copied for each instance
from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

import tailrace as tr
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


def test_the_handlers_of_an_event_run_by_the_name_of_actor_or_function(plan: Plan) -> None:
    assert [route.name for route in plan.inputs[1].routes] == [
        "a-counter.count",
        "b-clean",
        "c-plane.departed",
    ]
    assert [route.target for route in plan.inputs[1].routes] == [plan.actors[0], None, plan.actors[1]]


def test_there_is_no_inbox_where_nobody_takes_messages() -> None:
    app = tr.App("flights")
    app.topic("departures", Departure, key="tail")
    assert (app.plan().inbox_topic, app.plan().inputs) == (None, ())


def test_the_internal_topics_are_named_after_the_app(plan: Plan) -> None:
    assert (plan.inbox_topic, plan.changelog_topic) == ("flights.inbox", "flights.changelog")
    assert (plan.tape_topic, plan.dead_letters_topic) == ("flights.tape", "flights.dead-letters")
    assert plan.outputs == ("arrivals", "departures", "late", "raw")


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
