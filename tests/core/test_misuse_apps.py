# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportUntypedFunctionDecorator=false, reportAssignmentType=false
# pyright: reportIncompatibleVariableOverride=false, reportIncompatibleMethodOverride=false
# pyright: reportInvalidTypeForm=false, reportRedeclaration=false, reportUndefinedVariable=false
# Misuse is the subject here, and the checkers would refuse most of it.
"""A misused app or topic fails when it is declared, and says what to do instead."""

from __future__ import annotations

from datetime import datetime

import pytest

import tailrace as tr
from tests.core.misuse import Arrival, Deck, Departure, Misuse, misuses
from tests.messages import Refused


def app_name(d: Deck) -> None:
    tr.App("my flights")


def no_partitions(d: Deck) -> None:
    tr.App("flights", partitions=0)


def app_version(d: Deck) -> None:
    tr.App("flights", version=2)


def actor_that_is_none(d: Deck) -> None:
    @d.app.actor
    class Aircraft: ...


def actor_without_handlers(d: Deck) -> None:
    @d.app.actor
    class Aircraft(tr.Actor):
        legs: int = 0


def two_actors_of_one_name(d: Deck) -> None:
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    @d.app.actor(name="Aircraft")
    class Plane(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def one_actor_twice(d: Deck) -> None:
    @d.app.actor(name="plane")
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def topic_of_another_app(d: Deck) -> None:
    other = tr.App("ships")

    @other.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def actor_of_events_without_key(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.plain)
        def arrived(self, event: Arrival, ctx: tr.Context[bytes]) -> None: ...


def actor_whose_key_nobody_says(d: Deck) -> None:
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.on_message
        def pinged(self, message: Arrival, ctx: tr.Context) -> None: ...

    d.app.plan()


def function_with_self(d: Deck) -> None:
    @d.app.process(d.departures)
    def clean(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def function_of_another_event(d: Deck) -> None:
    @d.app.process(d.departures)
    def clean(event: Arrival, ctx: tr.Context[str]) -> None: ...


def function_without_topic(d: Deck) -> None:
    @d.app.process
    def clean(event: Departure, ctx: tr.Context[str]) -> None: ...


def function_named_like_an_actor(d: Deck) -> None:
    @d.app.actor(name="clean")
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    @d.app.process(d.departures)
    def clean(event: Departure, ctx: tr.Context[str]) -> None: ...


# --- topics ---


def topic_name(d: Deck) -> None:
    d.app.topic("late departures", Departure, key="tail")


def topic_declared_twice(d: Deck) -> None:
    d.app.topic("departures", Departure, key="tail", out_of_order="30m")


def topic_named_like_a_stream(d: Deck) -> None:
    d.app.topic("stream", Departure, key="tail")


def topic_named_like_the_redriven(d: Deck) -> None:
    d.app.topic("flights.redriven", Departure, key="tail")
    d.app.plan()


def topic_named_like_the_changelog(d: Deck) -> None:
    d.app.topic("flights.changelog", Departure, key="tail")
    d.app.plan()


def topic_of_no_struct(d: Deck) -> None:
    d.app.topic("counts", int, key="tail")


def union_without_tags(d: Deck) -> None:
    d.app.topic("both", Departure | Arrival, key="tail")


def key_that_is_no_field(d: Deck) -> None:
    d.app.topic("more", Departure, key="tial")


def key_that_cannot_be_one(d: Deck) -> None:
    d.app.topic("more", Departure, key="delay")


def key_function_that_does_not_say(d: Deck) -> None:
    d.app.topic("more", Departure, key=lambda e: e.tail)


def key_type_that_contradicts(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", key_type=int)


def key_that_is_a_number(d: Deck) -> None:
    d.app.topic("more", Departure, key=1)


def event_time_that_is_no_field(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="when")


def event_time_that_is_text(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="gate")


def event_time_inside_a_number(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="at.ms")


def event_time_that_is_nothing(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time=None)


def disorder_that_is_no_duration(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", out_of_order="a bit")


def disorder_without_end(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", out_of_order=2**63 - 1)


def waiting_without_end(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", idle_after="300000000d")


def time_range_without_end(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="at", time_range=(0, 2**61))


def time_range_backwards(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="at", time_range=(5, 4))


def time_range_that_is_an_instant(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="at", time_range=1000)


def unknown_late(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", late="ignore")


def late_topic_of_another_type(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", late=d.arrivals)


def topic_option_misspelt(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", out_of_ordr="30m")


def topic_on_error_misspelt(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", on_error="dead_letters")


def topic_event_time_misspelt(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="dealy")


def topic_format(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", format="avro")


def topic_option(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", lateness="30m")


def time_range_without_zone(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", time_range=(datetime(2020, 1, 1), datetime(2021, 1, 1)))  # noqa: DTZ001


def table_without_key(d: Deck) -> None:
    d.app.table("more", Departure)


def table_with_repartition(d: Deck) -> None:
    d.app.table("more", Departure, key="tail", repartition=True)


def table_option(d: Deck) -> None:
    d.app.table("more", Departure, key="tail", watermarks=False)


def table_named_as_a_topic(d: Deck) -> None:
    d.app.table("departures", Departure, key="tail")


def repartition_without_key(d: Deck) -> None:
    d.app.topic("more", Departure, repartition=True)


@pytest.mark.parametrize("misuse", misuses(globals()))
def test_a_misuse_says_what_was_done_and_what_to_do(misuse: Misuse, refused: Refused) -> None:
    with refused():
        misuse(Deck())
