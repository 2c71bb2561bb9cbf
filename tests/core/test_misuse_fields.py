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
from tests.core.misuse import Deck, Departure, Misuse, Table, check

TABLE = Table()
said = TABLE.said


class Seen(msgspec.Struct):
    places: list[str]


@said(
    "Aircraft.legs has ttl_time='procesing'. Did you mean 'processing'? Write ttl_time=\"event\" or "
    '"processing".'
)
def field_ttl_time_misspelt(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, ttl="1h", ttl_time="procesing")


@said("set[str] cannot be stored (owner 'Aircraft', field 'places'). ...")
def field_of_a_type_that_cannot_be_stored(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: set[str] = set()


@said("Any cannot be stored (owner 'Aircraft', field 'last'). ...")
def field_that_holds_anything(d: Deck) -> None:
    class Aircraft(tr.Actor):
        last: Any = None


@said("set[str] cannot be stored (owner 'Aircraft', field 'places'). ...")
def map_value_that_cannot_be_stored(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: tr.MapState[str, set[str]]


@said("float cannot be the key of a map (owner 'Aircraft', field 'places'). ...")
def map_key_without_order(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: tr.MapState[float, int]


@said(
    "Aircraft.log is a ListState with a time to live, but items in the middle of a list cannot expire. Use a "
    "MapState with times as keys, or pop items from the start of the list."
)
def list_with_a_time_to_live(d: Deck) -> None:
    class Aircraft(tr.Actor):
        log: tr.ListState[str] = tr.field(ttl="1h")


@said("Aircraft.places is annotated without the types that it holds. Annotate it like tr.MapState[str, int].")
def map_without_types(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: tr.MapState


@said("Aircraft.places is a MapState with a default. Remove the default: the collection begins empty.")
def map_with_a_default(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: tr.MapState[str, int] = {}


@said("Aircraft.places is a ListState with a default. Remove the default: the collection begins empty.")
def list_with_a_default_factory(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: tr.ListState[str] = tr.field(default_factory=list)


@said(
    "Aircraft.places has the default ['JFK'], which all instances would share. Write "
    "tr.field(default_factory=lambda: ['JFK'])."
)
def default_that_instances_would_share(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places: list[str] = ["JFK"]


@said(
    "Aircraft.seen has the default Seen(places=[]), which all instances would share. Write "
    "tr.field(default_factory=lambda: Seen(places=[]))."
)
def mutable_struct_as_default(d: Deck) -> None:
    class Aircraft(tr.Actor):
        seen: Seen = Seen([])


@said("Aircraft.legs has a default and a default_factory. Keep one of them.")
def default_and_factory(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, default_factory=int)


@said(
    "Aircraft.places is a class attribute that all instances would share, not a durable field. Annotate "
    "it (places: list[...] = ...), or make a constant of it: a tuple."
)
def mutable_class_attribute(d: Deck) -> None:
    class Aircraft(tr.Actor):
        places = []


@said("Aircraft.legs has no type. Write legs: type = tr.field(...).")
def field_without_type(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs = tr.field(default=0)


@said(
    "Aircraft._tr_key: names that begin with '_tr_' or '__' are reserved for the framework. Rename the field."
)
def reserved_name(d: Deck) -> None:
    class Aircraft(tr.Actor):
        _tr_key: int = 0


@said("Aircraft.legs is a field and a method. Rename one of them.")
def field_named_like_a_method(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int

        def legs(self) -> int:
            return 0


@said("Aircraft.departed is a field and a method. Rename one of them.")
def field_named_like_an_inherited_method(d: Deck) -> None:
    class Base(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    class Aircraft(Base):
        departed: int = 0


@said(
    "Aircraft.legs hides a field of Base. Annotate it to give it another default (legs: type = ...), or "
    "rename it."
)
def method_named_like_an_inherited_field(d: Deck) -> None:
    class Base(tr.Actor):
        legs: int = 0

    class Aircraft(Base):
        def legs(self) -> int:
            return 0


@said("Aircraft.legs is a plain field, but a ListState in Base. Rename it.")
def field_that_changes_its_kind(d: Deck) -> None:
    class Base(tr.Actor):
        legs: tr.ListState[int]

    class Aircraft(Base):
        legs: int = 0


@said(
    "Aircraft.flights and Aircraft.legs are both stored as 'legs'. Give one of them another "
    "tr.field(name=...)."
)
def two_fields_stored_under_one_name(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = 0
        flights: int = tr.field(default=0, name="legs")


@said(
    "Aircraft.legs has name='', which is not a valid name. Give it another name=: not empty, without a null "
    "character, and not beginning with '_tr_'."
)
def empty_stored_name(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, name="")


@said(
    'Aircraft.legs has a wrong ttl: \'soon\' is not a duration. Write for example "500ms", "1s", "30m", '
    '"1h30m", "7d", a timedelta, or an int of milliseconds.'
)
def ttl_that_is_no_duration(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, ttl="soon")


@said(
    "Aircraft.legs has a wrong ttl: the duration 9223372036854775807 is longer than 100000d, the longest "
    "there is "
    "(about 270 years). Give a shorter one, and check its unit: an int is milliseconds."
)
def ttl_without_end(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, ttl=2**63 - 1)


@said("Aircraft.legs has a ttl of zero. Give a longer ttl, or leave it out.")
def ttl_of_zero(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, ttl=0)


@said("Aircraft.legs has a time to live but no default. Give it a default: its value after it has expired.")
def ttl_without_default(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(ttl="1h")


@said('Aircraft.legs has ttl_time=\'wall\'. Write ttl_time="event" or "processing".')
def ttl_by_an_unknown_clock(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: int = tr.field(default=0, ttl="1h", ttl_time="wall")


@said(
    "Aircraft.legs: the annotation 'tr.Nothing' is not a type: module 'tailrace' has no attribute "
    "'Nothing'. Annotate it with a type."
)
def annotation_that_is_no_type(d: Deck) -> None:
    class Aircraft(tr.Actor):
        legs: tr.Nothing = 0


@said(
    "Aircraft.last: the annotation 'Unknown | None' cannot be looked up: name 'Unknown' is not defined. "
    "Import or define it at the top of the module, and not only under TYPE_CHECKING."
)
def field_whose_type_is_nowhere(d: Deck) -> None:
    @d.app.actor
    class Aircraft(tr.Actor):
        last: Unknown | None = None  # noqa: F821

        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    d.app.plan()


# --- classes ---


@said(
    "Aircraft defines __init__, which an actor cannot have. Give fields defaults, or "
    "tr.field(default_factory=...): the framework creates instances, and loads them without calling a "
    "constructor."
)
def constructor(d: Deck) -> None:
    class Aircraft(tr.Actor):
        def __init__(self) -> None: ...


@said(
    "Aircraft defines __post_init__, which an actor cannot have. No method runs when an instance is loaded. "
    "Set fields in the first event's handler."
)
def post_init(d: Deck) -> None:
    class Aircraft(tr.Actor):
        def __post_init__(self) -> None: ...


@said(
    "Aircraft defines __setattr__, which an actor cannot have. Write a method that sets the field, and "
    "call that."
)
def own_setattr(d: Deck) -> None:
    class Aircraft(tr.Actor):
        def __setattr__(self, name: str, value: object) -> None: ...


@said(
    "Aircraft defines __slots__, which an actor cannot have. Declare a durable field instead: name: type "
    "= default."
)
def own_slots(d: Deck) -> None:
    class Aircraft(tr.Actor):
        __slots__ = ("cache",)


@said(
    "Aircraft is declared with frozen=True. Leave it out: the only class option is order=. The stable name "
    "is given to @app.actor(name=...)."
)
def class_options(d: Deck) -> None:
    class Aircraft(tr.Actor, frozen=True): ...


@said(
    "Aircraft has 2 actors as bases: Plane, Ship. Keep one. Share methods through a plain class with "
    "__slots__ = ()."
)
def two_actors_as_bases(d: Deck) -> None:
    class Plane(tr.Actor): ...

    class Ship(tr.Actor): ...

    class Aircraft(Plane, Ship): ...


@said(
    "Aircraft inherits from Named, whose instances have a __dict__, which is not stored. Add __slots__ = ()"
    " to Named."
)
def mixin_with_a_dict(d: Deck) -> None:
    class Named:
        def named(self) -> str:
            return ""

    class Aircraft(Named, tr.Actor): ...


@pytest.mark.parametrize(("misuse", "message"), TABLE.rows)
def test_a_misuse_says_what_was_done_and_what_to_do(misuse: Misuse, message: str) -> None:
    check(misuse, message)
