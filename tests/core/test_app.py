from __future__ import annotations

import msgspec

import tailrace as tr


class Departure(msgspec.Struct, frozen=True):
    tail: str


def test_the_stable_name_of_an_actor_is_its_class_s_or_its_own() -> None:
    app = tr.App("flights")
    departures = app.topic("departures", Departure, key="tail")

    class Aircraft(tr.Actor):
        @tr.process(departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    class Renamed(Aircraft): ...

    assert app.actor(Aircraft) is Aircraft
    assert app.actor(name="plane")(Renamed) is Renamed
    assert [(one.name, one.cls) for one in app.plan().actors] == [("Aircraft", Aircraft), ("plane", Renamed)]


def test_a_stateless_function_stays_what_it_is() -> None:
    app = tr.App("flights")
    departures = app.topic("departures", Departure, key="tail")
    seen: list[Departure] = []

    def note(event: Departure, ctx: tr.Context[str]) -> None:
        seen.append(event)

    assert app.process(departures)(note) is note
    assert app.process(departures, name="again")(note) is note
    assert [route.name for route in app.plan().inputs[0].routes] == ["again", "note"]


def test_a_plan_is_made_once_and_again_after_a_further_declaration() -> None:
    app = tr.App("flights")
    app.topic("departures", Departure, key="tail")
    first = app.plan()
    assert app.plan() is first
    app.stream("clean", Departure)
    assert app.plan() is not first


def test_the_plan_says_what_the_app_was_told() -> None:
    plan = tr.App("flights", partitions=8, on_error="dead-letter", version="2024-06").plan()
    assert (plan.app, plan.partitions, plan.on_error, plan.version) == (
        "flights",
        8,
        "dead-letter",
        "2024-06",
    )
