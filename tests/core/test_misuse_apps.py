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
from tests.core.misuse import Arrival, Deck, Departure, Misuse, Table, check

TABLE = Table()
said = TABLE.said


@said(
    "'my flights' cannot be the name of an app. Use letters, digits, '.', '_' and '-', at most 120 of them."
)
def app_name(d: Deck) -> None:
    tr.App("my flights")


@said("the app 'flights' has partitions=0. Give a number from 1 to 10000.")
def no_partitions(d: Deck) -> None:
    tr.App("flights", partitions=0)


@said("the app 'flights' has version=2. Give a string that is not empty, such as \"1\".")
def app_version(d: Deck) -> None:
    tr.App("flights", version=2)


@said("@app.actor was given Aircraft, which is not an actor. Derive the class from tr.Actor.")
def actor_that_is_none(d: Deck) -> None:
    @d.app.actor
    class Aircraft: ...


@said("Aircraft has no handler. Give it a method with @tr.process(topic) or @tr.on_message.")
def actor_without_handlers(d: Deck) -> None:
    @d.app.actor
    class Aircraft(tr.Actor):
        legs: int = 0


@said(
    "Plane has the name 'Aircraft', which another actor or function of the app 'flights' has. Give one of "
    "them another name=."
)
def two_actors_of_one_name(d: Deck) -> None:
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    @d.app.actor(name="Aircraft")
    class Plane(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said("Aircraft is already the actor 'Aircraft' of this app. Decorate it once.")
def one_actor_twice(d: Deck) -> None:
    @d.app.actor(name="plane")
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft.departed uses 'departures' of type Departure, which was declared in another app. Declare it"
    " in the app 'ships' as well, and use that."
)
def topic_of_another_app(d: Deck) -> None:
    other = tr.App("ships")

    @other.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft.arrived takes 'plain', which has no key, so no instance can be found. Declare the topic with "
    "key=, or take it with an @app.process function that emits to a topic with a key."
)
def actor_of_events_without_key(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.plain)
        def arrived(self, event: Arrival, ctx: tr.Context[bytes]) -> None: ...


@said(
    "the type of the keys of Aircraft is not declared. Declare the context of one of its handlers as "
    "ctx: tr.Context[str], with the type of the key."
)
def actor_whose_key_nobody_says(d: Deck) -> None:
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.on_message
        def pinged(self, message: Arrival, ctx: tr.Context) -> None: ...

    d.app.plan()


@said("clean takes (self, event, ctx), but is called with (event, ctx). Write def clean(event, ctx).")
def function_with_self(d: Deck) -> None:
    @d.app.process(d.departures)
    def clean(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "clean takes Arrival, but 'departures' holds Departure. Declare the event as Departure, or take "
    "another topic."
)
def function_of_another_event(d: Deck) -> None:
    @d.app.process(d.departures)
    def clean(event: Arrival, ctx: tr.Context[str]) -> None: ...


@said(
    "@app.process on clean names no topic. Write @app.process(topic) with the topics and streams that it "
    "takes."
)
def function_without_topic(d: Deck) -> None:
    @d.app.process
    def clean(event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "clean has the name 'clean', which another actor or function of the app 'flights' has. Give one of them"
    " another name=."
)
def function_named_like_an_actor(d: Deck) -> None:
    @d.app.actor(name="clean")
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    @d.app.process(d.departures)
    def clean(event: Departure, ctx: tr.Context[str]) -> None: ...


# --- topics ---


@said(
    "'late departures' cannot be the name of a topic. Use letters, digits, '.', '_' and '-', at most 249 "
    "of them."
)
def topic_name(d: Deck) -> None:
    d.app.topic("late departures", Departure, key="tail")


@said(
    "another topic or stream has the name of the topic 'departures'. Choose another name, or import the one "
    "that is declared."
)
def topic_declared_twice(d: Deck) -> None:
    d.app.topic("departures", Departure, key="tail", out_of_order="30m")


@said("another topic or stream has the name of the topic 'stream'. Choose another ...")
def topic_named_like_a_stream(d: Deck) -> None:
    d.app.topic("stream", Departure, key="tail")


@said("the topic 'flights.redriven' has the name of an internal topic of its app. Rename it.")
def topic_named_like_the_redriven(d: Deck) -> None:
    d.app.topic("flights.redriven", Departure, key="tail")
    d.app.plan()


@said("the topic 'flights.changelog' has the name of an internal topic of its app. Rename it.")
def topic_named_like_the_changelog(d: Deck) -> None:
    d.app.topic("flights.changelog", Departure, key="tail")
    d.app.plan()


@said(
    "the topic 'counts' is to hold int, which is not an event type. Declare events as msgspec.Struct "
    "classes, dataclasses or "
    "pydantic models, several as a union of tagged structs."
)
def topic_of_no_struct(d: Deck) -> None:
    d.app.topic("counts", int, key="tail")


@said(
    "the topic 'both' holds Departure | Arrival, which cannot be distinguished. Make each a struct with a "
    "tag: class "
    "A(msgspec.Struct, tag=True)."
)
def union_without_tags(d: Deck) -> None:
    d.app.topic("both", Departure | Arrival, key="tail")


@said(
    "the topic 'more': the key 'tial' of Departure: Departure has no field 'tial'. "
    "Did you mean 'tail'? Its fields are: tail, at, gate, delay."
)
def key_that_is_no_field(d: Deck) -> None:
    d.app.topic("more", Departure, key="tial")


@said("the topic 'more': float cannot be a key. Use an int, a str or a Decimal's text.")
def key_that_cannot_be_one(d: Deck) -> None:
    d.app.topic("more", Departure, key="delay")


@said(
    "the topic 'more': its key is a function without an annotated return type. Annotate the return type,"
    " or add key_type=, such as key_type=str."
)
def key_function_that_does_not_say(d: Deck) -> None:
    d.app.topic("more", Departure, key=lambda e: e.tail)


@said("the topic 'more': key_type is int, but key='tail' is str. Write key_type=str, or leave it out.")
def key_type_that_contradicts(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", key_type=int)


@said(
    "the topic 'more': key=1 is not a field. Give the name of a field, a tuple of names, or a function of the "
    "event."
)
def key_that_is_a_number(d: Deck) -> None:
    d.app.topic("more", Departure, key=1)


@said(
    "the topic 'more': the event time 'when' of Departure: Departure has no field 'when'. Its fields are: "
    "tail, ..."
)
def event_time_that_is_no_field(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="when")


@said(
    "the topic 'more': the event time 'gate' of Departure is of type str. Name an int of milliseconds since "
    "1970 ..."
)
def event_time_that_is_text(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="gate")


@said(
    "the topic 'more': the event time 'at.ms' of Departure looks for 'ms' in int, which has no fields. Name "
    "..."
)
def event_time_inside_a_number(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="at.ms")


@said(
    "the topic 'more' has event_time=None. Name a field, give a function of the event, or tr.RECORD_TIME "
    "or tr.ARRIVAL_TIME."
)
def event_time_that_is_nothing(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time=None)


@said(
    "the topic 'more' has a wrong out_of_order: 'a bit' is not a duration. Write for example \"500ms\", "
    '"1s", "30m", "1h30m", "7d", a timedelta, or an int of milliseconds.'
)
def disorder_that_is_no_duration(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", out_of_order="a bit")


@said(
    "the topic 'more' has a wrong out_of_order: the duration 9223372036854775807 is longer than 100000d, the "
    "longest "
    "there is (about 270 years). Give a shorter one, and check its unit: an int is milliseconds."
)
def disorder_without_end(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", out_of_order=2**63 - 1)


@said("the topic 'more' has a wrong idle_after: the duration '300000000d' is longer than 100000d, ...")
def waiting_without_end(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", idle_after="300000000d")


@said(
    "the topic 'more' has a wrong time_range: the instant 2305843009213693952 ms is out of range: instants "
    "are less than "
    "2**61 ms from 1970. Give milliseconds since 1970 in UTC, and check for another unit."
)
def time_range_without_end(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="at", time_range=(0, 2**61))


@said(
    "the topic 'more' has a time_range from 5 to 4 ms, which is empty. Give the first instant, then the last."
)
def time_range_backwards(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="at", time_range=(5, 4))


@said("the topic 'more' has time_range=1000. Give the first and the last instant: (0, 7_258_118_400_000).")
def time_range_that_is_an_instant(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="at", time_range=1000)


@said(
    "the topic 'more' has late='ignore'. Write one of 'handle', 'drop', or give another topic of the same "
    "type."
)
def unknown_late(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", late="ignore")


@said(
    "the topic 'more' sends its late events to 'arrivals', which holds Arrival. Declare a topic of "
    "Departure for them."
)
def late_topic_of_another_type(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", late=d.arrivals)


@said(
    "the topic 'more' has no option 'out_of_ordr'. Did you mean 'out_of_order'? The options are: key, "
    "key_type, ..."
)
def topic_option_misspelt(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", out_of_ordr="30m")


@said("the topic 'more' has on_error='dead_letters'. Did you mean 'dead-letter'? Write one of ...")
def topic_on_error_misspelt(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", on_error="dead_letters")


@said(
    "the topic 'more': the event time 'dealy' of Departure: Departure has no field 'dealy'. Did you mean "
    "'delay'? ..."
)
def topic_event_time_misspelt(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", event_time="dealy")


@said("the topic 'more' has format='avro'. Write one of 'json', 'msgpack'.")
def topic_format(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", format="avro")


@said(
    "the topic 'more' has no option 'lateness'. Did you mean 'late'? The options are: key, key_type, "
    "event_time, "
    "out_of_order, watermark, idle_after, ahead_of_clock, on_error, format, time_range, late, repartition, broadcast."
)
def topic_option(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", lateness="30m")


@said(
    "the topic 'more' has a wrong time_range: the datetime datetime.datetime(2020, 1, 1, 0, 0) has no "
    "time zone. Give it a time zone, for example datetime(..., tzinfo=UTC) or datetime.now(UTC)."
)
def time_range_without_zone(d: Deck) -> None:
    d.app.topic("more", Departure, key="tail", time_range=(datetime(2020, 1, 1), datetime(2021, 1, 1)))  # noqa: DTZ001


@said(
    "the table 'more' has no key, and would keep the last event of each. Mark it on the event type (tr.Key[...]), or add "
    "key=."
)
def table_without_key(d: Deck) -> None:
    d.app.table("more", Departure)


@said(
    "the table 'more' has repartition=, which a table cannot have. Late values count, too (see ctx.is_late). ..."
)
def table_with_repartition(d: Deck) -> None:
    d.app.table("more", Departure, key="tail", repartition=True)


@said(
    "the table 'more' has no option 'watermarks'. Did you mean 'watermark'? The options are: key, key_type, event_time, ..."
)
def table_option(d: Deck) -> None:
    d.app.table("more", Departure, key="tail", watermarks=False)


@said(
    "another topic or stream has the name of the table 'departures'. Choose another name, or import the one that is declared."
)
def table_named_as_a_topic(d: Deck) -> None:
    d.app.table("departures", Departure, key="tail")


@said("the topic 'more' has repartition=True but no key. Add key=.")
def repartition_without_key(d: Deck) -> None:
    d.app.topic("more", Departure, repartition=True)


@pytest.mark.parametrize(("misuse", "message"), TABLE.rows)
def test_a_misuse_says_what_was_done_and_what_to_do(misuse: Misuse, message: str) -> None:
    check(misuse, message)
