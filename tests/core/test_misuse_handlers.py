# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportUntypedFunctionDecorator=false, reportAssignmentType=false
# pyright: reportIncompatibleVariableOverride=false, reportIncompatibleMethodOverride=false
# pyright: reportInvalidTypeForm=false, reportRedeclaration=false, reportUndefinedVariable=false
# ruff: noqa: F841  # a topic that a field hides is not used
# Misuse is the subject here, and the checkers would refuse most of it.
"""A misused handler fails when its class is made, and says what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

import tailrace as tr
from tests.core.misuse import Arrival, Deck, Departure, Misuse, Table, check

TABLE = Table()
said = TABLE.said


@said(
    "@tr.process on Aircraft.departed names no topic. Write @tr.process(topic) with the topics and streams "
    "that it takes."
)
def process_without_topic(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "@tr.process was given 'departures', which is not a topic or a stream. Declare it first: topic = "
    "app.topic(name, Event, key=...)."
)
def process_of_a_name(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process("departures")
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "@tr.process was given 0, which is not a topic or a stream. Declare it first: topic = "
    "app.topic(name, Event, key=...). If it is declared, a field of the class with the same name hides it: "
    "rename the field."
)
def topic_hidden_by_a_field(d: Deck) -> None:
    departures = d.departures

    class Aircraft(tr.Actor):
        departures: int = 0

        @tr.process(departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said("@tr.process names the same topic twice. Name each topic once.")
def one_topic_named_twice(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures, d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft.departed is async, but a handler runs to its end without waiting. Write def instead of async "
    "def. A handler must not call other services."
)
def async_handler(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        async def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft.departed is a generator, which would never run. Call ctx.emit(topic, event) instead of yield."
)
def generator(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> Any:
            yield event


@said("Aircraft.departed is a staticmethod, which @tr.process cannot decorate. Make it a plain function.")
def static_handler(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        @staticmethod
        def departed(event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft.departed takes (self, event), but is called with (self, event, ctx). Write def "
    "departed(self, event, ctx)."
)
def handler_without_context(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure) -> None: ...


@said(
    "Aircraft.overdue takes (self, event, ctx), but is called with (self, ctx). Write def overdue(self, ctx)."
)
def timer_handler_with_an_event(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_timer("overdue")
        def overdue(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft.departed takes Arrival, but 'departures' holds Departure. Declare the event as Departure, "
    "or take another topic."
)
def wrong_event_type(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Arrival, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft.moved takes Departure, but 'arrivals' holds Arrival. Declare the event as Departure | "
    "Arrival, or take another topic."
)
def union_that_leaves_one_out(d: Deck) -> None:
    class Aircraft(tr.Actor, order="arrival"):
        @tr.process(d.departures, d.arrivals)
        def moved(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft.departed declares tr.Context[int], but the key of 'departures' is str. Declare ctx: "
    "tr.Context[str]."
)
def wrong_key_type(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[int]) -> None: ...


@said(
    "the parameter 'ctx' of Aircraft.departed is the context, but is declared as str. Declare ctx: "
    "tr.Context[...],"
    " with the key's type in the brackets."
)
def context_of_another_type(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: str) -> None: ...


@said(
    "Aircraft.departed is declared to return Departure, but the return value is not used. Emit it with "
    "ctx.emit(topic, event), and declare -> None."
)
def handler_that_returns(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> Departure:
            return event


@said(
    "Aircraft: the methods 'departed' and 'moved' both take the topic 'departures'. Keep one of them, and"
    " let it do the work of both."
)
def two_handlers_of_one_topic(d: Deck) -> None:
    class Aircraft(tr.Actor, order="arrival"):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

        @tr.process(d.departures, d.arrivals)
        def moved(self, event: Departure | Arrival, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft: the methods 'gone' and 'lost' both take deletions of 'gates'. Keep one of them, and let it do the work of both."
)
def two_handlers_of_deletions(d: Deck) -> None:
    gates = d.app.table("gates", Departure, key="tail")

    class Aircraft(tr.Actor):
        @tr.on_delete(gates)
        def gone(self, ctx: tr.Context[str]) -> None: ...

        @tr.on_delete(gates)
        def lost(self, ctx: tr.Context[str]) -> None: ...


@said(
    "@tr.on_delete names 'departures', which is not a table. Only the keys of a table can be deleted: declare it with app.table."
)
def deletions_of_a_topic(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_delete(d.departures)
        def gone(self, ctx: tr.Context[str]) -> None: ...


@said("Aircraft.gone takes (self, event, ctx), but is called with (self, ctx). Write def gone(self, ctx).")
def deletion_with_an_event(d: Deck) -> None:
    gates = d.app.table("gates", Departure, key="tail")

    class Aircraft(tr.Actor):
        @tr.on_delete(gates)
        def gone(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft: the methods 'first' and 'second' both take event-time timers named 'overdue'. Keep one of "
    "them, and let it do the work of both."
)
def two_handlers_of_one_timer(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_timer("overdue")
        def first(self, ctx: tr.Context[str]) -> None: ...

        @tr.on_timer("overdue")
        def second(self, ctx: tr.Context[str]) -> None: ...


@said(
    "the timers of @tr.on_timer cannot be named 'overdue:JFK'. Give it a name without \":\". A timer set as"
    ' "overdue:JFK" belongs to the family "overdue".'
)
def timer_family_with_a_colon(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_timer("overdue:JFK")
        def overdue(self, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft: the methods 'first' and 'second' both take messages of type Arrival. Keep one of them, and"
    " let it do the work of both."
)
def two_handlers_of_one_message(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message
        def first(self, message: Arrival, ctx: tr.Context[str]) -> None: ...

        @tr.on_message(name="second")
        def second(self, message: Arrival, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft: the methods 'first' and 'second' both take messages named 'Arrival'. Keep one of them, and"
    " let it do the work of both."
)
def two_messages_of_one_name(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message
        def first(self, message: Arrival, ctx: tr.Context[str]) -> None: ...

        @tr.on_message(name="Arrival")
        def second(self, message: Departure, ctx: tr.Context[str]) -> None: ...


@said("Aircraft.pinged does not declare the type of its messages. Annotate 'message' with their type.")
def message_without_type(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message
        def pinged(self, message, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft.pinged takes messages of type list[int]. The type of a message must be a class of its own: "
    "make it a msgspec.Struct."
)
def message_without_a_class(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message
        def pinged(self, message: list[int], ctx: tr.Context[str]) -> None: ...


@said("complex cannot be stored (owner 'Aircraft.pinged', field 'message'). ...")
def message_that_cannot_be_stored(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message
        def pinged(self, message: complex, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft.pinged gives one name to 2 types of message. Leave name= out, or write a method for each type."
)
def one_name_for_two_messages(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message(name="ping")
        def pinged(self, message: Arrival | Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft.departed has two decorators that call it with different arguments. Write a method for each, "
    "and let both call a third one for what they share."
)
def two_roles(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft.departed replaces the handler Base.departed, but is not a handler. Decorate it too, or give "
    "it another name."
)
def handler_replaced_by_a_plain_method(d: Deck) -> None:
    class Base(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    class Aircraft(Base):
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@said(
    "Aircraft would have keys of two types: str ('departures') and int ('numbers'). All inputs of an actor "
    "have keys of one type: re-key one of them with an @app.process function."
)
def keys_of_two_types(d: Deck) -> None:
    class Aircraft(tr.Actor, order="arrival"):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context) -> None: ...

        @tr.process(d.numbers)
        def numbered(self, event: Arrival, ctx: tr.Context) -> None: ...


@said(
    "Aircraft.status is async, but a handler runs to its end without waiting. Write def instead of async "
    "def. A handler must not call other services."
)
def async_query(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.query
        async def status(self) -> str:
            return ""


@said(
    "Aircraft.departed, event: the annotation 'Unknown' cannot be looked up: name 'Unknown' is not "
    "defined. Import or define it at the top of the module, and not only under TYPE_CHECKING."
)
def event_type_that_is_nowhere(d: Deck) -> None:
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Unknown, ctx: tr.Context[str]) -> None: ...  # noqa: F821

    d.app.plan()


@pytest.mark.parametrize(("misuse", "message"), TABLE.rows)
def test_a_misuse_says_what_was_done_and_what_to_do(misuse: Misuse, message: str) -> None:
    check(misuse, message)
