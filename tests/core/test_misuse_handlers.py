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
from tests.core.misuse import Arrival, Deck, Departure, Misuse, misuses
from tests.messages import Refused


def process_without_topic(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def process_of_a_name(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process("departures")
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def topic_hidden_by_a_field(d: Deck) -> None:
    departures = d.departures

    class Aircraft(tr.Actor):
        departures: int = 0

        @tr.process(departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def one_topic_named_twice(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures, d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def async_handler(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        async def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def generator(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> Any:
            yield event


def static_handler(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        @staticmethod
        def departed(event: Departure, ctx: tr.Context[str]) -> None: ...


def handler_without_context(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure) -> None: ...


def timer_handler_with_an_event(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_timer("overdue")
        def overdue(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def wrong_event_type(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Arrival, ctx: tr.Context[str]) -> None: ...


def union_that_leaves_one_out(d: Deck) -> None:
    class Aircraft(tr.Actor, order="arrival"):
        @tr.process(d.departures, d.arrivals)
        def moved(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def wrong_key_type(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[int]) -> None: ...


def context_of_another_type(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: str) -> None: ...


def handler_that_returns(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> Departure:
            return event


def two_handlers_of_one_topic(d: Deck) -> None:
    class Aircraft(tr.Actor, order="arrival"):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

        @tr.process(d.departures, d.arrivals)
        def moved(self, event: Departure | Arrival, ctx: tr.Context[str]) -> None: ...


def two_handlers_of_deletions(d: Deck) -> None:
    gates = d.app.table("gates", Departure, key="tail")

    class Aircraft(tr.Actor):
        @tr.on_delete(gates)
        def gone(self, ctx: tr.Context[str]) -> None: ...

        @tr.on_delete(gates)
        def lost(self, ctx: tr.Context[str]) -> None: ...


def deletions_of_a_topic(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_delete(d.departures)
        def gone(self, ctx: tr.Context[str]) -> None: ...


def deletion_with_an_event(d: Deck) -> None:
    gates = d.app.table("gates", Departure, key="tail")

    class Aircraft(tr.Actor):
        @tr.on_delete(gates)
        def gone(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def two_handlers_of_one_timer(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_timer("overdue")
        def first(self, ctx: tr.Context[str]) -> None: ...

        @tr.on_timer("overdue")
        def second(self, ctx: tr.Context[str]) -> None: ...


def timer_family_with_a_colon(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_timer("overdue:JFK")
        def overdue(self, ctx: tr.Context[str]) -> None: ...


def two_handlers_of_one_message(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message
        def first(self, message: Arrival, ctx: tr.Context[str]) -> None: ...

        @tr.on_message(name="second")
        def second(self, message: Arrival, ctx: tr.Context[str]) -> None: ...


def two_messages_of_one_name(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message
        def first(self, message: Arrival, ctx: tr.Context[str]) -> None: ...

        @tr.on_message(name="Arrival")
        def second(self, message: Departure, ctx: tr.Context[str]) -> None: ...


def message_without_type(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message
        def pinged(self, message, ctx: tr.Context[str]) -> None: ...


def message_without_a_class(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message
        def pinged(self, message: list[int], ctx: tr.Context[str]) -> None: ...


def message_that_cannot_be_stored(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message
        def pinged(self, message: complex, ctx: tr.Context[str]) -> None: ...


def one_name_for_two_messages(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message(name="ping")
        def pinged(self, message: Arrival | Departure, ctx: tr.Context[str]) -> None: ...


def two_roles(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.on_message
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def handler_replaced_by_a_plain_method(d: Deck) -> None:
    class Base(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    class Aircraft(Base):
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...


def keys_of_two_types(d: Deck) -> None:
    class Aircraft(tr.Actor, order="arrival"):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context) -> None: ...

        @tr.process(d.numbers)
        def numbered(self, event: Arrival, ctx: tr.Context) -> None: ...


def async_query(d: Deck) -> None:
    class Aircraft(tr.Actor):
        @tr.query
        async def status(self) -> str:
            return ""


def event_type_that_is_nowhere(d: Deck) -> None:
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Unknown, ctx: tr.Context[str]) -> None: ...  # noqa: F821

    d.app.plan()


@pytest.mark.parametrize("misuse", misuses(globals()))
def test_a_misuse_says_what_was_done_and_what_to_do(misuse: Misuse, refused: Refused) -> None:
    with refused():
        misuse(Deck())
