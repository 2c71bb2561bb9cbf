# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportUntypedFunctionDecorator=false, reportAssignmentType=false
# pyright: reportIncompatibleVariableOverride=false, reportIncompatibleMethodOverride=false
# pyright: reportInvalidTypeForm=false, reportRedeclaration=false, reportUndefinedVariable=false
# Misuse is the subject here, and the checkers would refuse most of it.
"""A misused field or class body of an actor fails when the class is made, and says what to do instead."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tests.core.misuse import Deck, Departure, Misuse, misuses
from tests.messages import Refused


class Seen(msgspec.Struct):
    places: list[str]


def field_ttl_time_misspelt(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, ttl="1h", ttl_time="procesing")


def field_of_a_type_that_cannot_be_stored(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: set[str] = set()


def field_that_holds_anything(d: Deck) -> None:
    class Aircraft(tr.Actor):
        last: Any = None


def map_value_that_cannot_be_stored(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: tr.MapState[str, set[str]]


def map_key_without_order(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: tr.MapState[float, int]


def list_with_a_time_to_live(d: Deck) -> None:
    class Aircraft(tr.Actor):
        log: tr.ListState[str] = tr.field(ttl="1h")


def map_without_types(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: tr.MapState


def map_with_a_default(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: tr.MapState[str, int] = {}


def list_with_a_default_factory(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: tr.ListState[str] = tr.field(default_factory=list)


def default_that_instances_would_share(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: list[str] = ["JFK"]


def mutable_struct_as_default(d: Deck) -> None:
    class Aircraft(tr.Actor):
        seen: Seen = Seen([])


def default_and_factory(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, default_factory=int)


def mutable_class_attribute(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places = []


def field_without_type(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs = tr.field(default=0)


def reserved_name(d: Deck) -> None:
    class Aircraft(tr.Actor):
        _tr_key: int = 0


def field_named_like_a_method(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int

        def legs(self) -> int:
            return 0


def field_named_like_an_inherited_method(d: Deck) -> None:
    class Base(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    class Aircraft(Base):
        departed: int = 0


def method_named_like_an_inherited_field(d: Deck) -> None:
    class Base(tr.Actor):
        legs: int = 0

    class Aircraft(Base):
        def legs(self) -> int:
            return 0


def field_that_changes_its_kind(d: Deck) -> None:
    class Base(tr.Actor):
        legs: tr.ListState[int]

    class Aircraft(Base):
        legs: int = 0


def two_fields_stored_under_one_name(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = 0
        flights: int = tr.field(default=0, name="legs")


def empty_stored_name(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, name="")


def ttl_that_is_no_duration(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, ttl="soon")


def ttl_without_end(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, ttl=2**63 - 1)


def ttl_of_zero(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, ttl=0)


def ttl_without_default(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(ttl="1h")


def ttl_by_an_unknown_clock(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, ttl="1h", ttl_time="wall")


def annotation_that_is_no_type(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: tr.Nothing = 0


def field_whose_type_is_nowhere(d: Deck) -> None:
    @d.app.actor
    class Aircraft(tr.Actor):
        last: Unknown | None = None  # noqa: F821

        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    d.app.plan()


# --- classes ---


def constructor(d: Deck) -> None:
    class Aircraft(tr.Actor):
        def __init__(self) -> None: ...


def post_init(d: Deck) -> None:
    class Aircraft(tr.Actor):
        def __post_init__(self) -> None: ...


def own_setattr(d: Deck) -> None:
    class Aircraft(tr.Actor):
        def __setattr__(self, name: str, value: object) -> None: ...


def own_slots(d: Deck) -> None:
    class Aircraft(tr.Actor):
        __slots__ = ("cache",)


def class_options(d: Deck) -> None:
    class Aircraft(tr.Actor, frozen=True): ...


def two_actors_as_bases(d: Deck) -> None:
    class Plane(tr.Actor): ...

    class Ship(tr.Actor): ...

    class Aircraft(Plane, Ship): ...


def mixin_with_a_dict(d: Deck) -> None:
    class Named:
        def named(self) -> str:
            return ""

    class Aircraft(Named, tr.Actor): ...


@pytest.mark.parametrize("misuse", misuses(globals()))
def test_a_misuse_says_what_was_done_and_what_to_do(misuse: Misuse, refused: Refused) -> None:
    with refused():
        misuse(Deck())
