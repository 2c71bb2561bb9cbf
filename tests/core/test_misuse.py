"""A misuse of apps, topics, fields, handlers and ``emits=`` fails when it is declared or planned, and says what to do instead.

The misuses are text, as type checkers would refuse most of them: a name, and code that may use what ``names`` has.
"""

from __future__ import annotations

import re
import textwrap
from datetime import datetime
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.emissions import declared_emissions
from tests.messages import Refused


class Departure(msgspec.Struct, frozen=True):
    tail: str
    at: int
    gate: str | None = None
    delay: float = 0.0


class Arrival(msgspec.Struct, frozen=True):
    tail: str
    number: int


class Seen(msgspec.Struct):
    places: list[str]


class Deck:
    """An app with its topics."""

    def __init__(self) -> None:
        self.app = tr.App("flights")
        self.departures = self.app.topic("departures", Departure, key="tail", event_time="at")
        self.arrivals = self.app.topic("arrivals", Arrival, key="tail")
        self.numbers = self.app.topic("numbers", Arrival, key="number")
        self.plain = self.app.topic("plain", Arrival)
        self.stream = self.app.stream("stream", Departure)

    def actor(self, emits: Any) -> None:
        @self.app.actor(emits=emits)
        class Aircraft(tr.Actor):
            @tr.process(self.departures)
            def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    def function(self, emits: Any) -> None:
        @self.app.process(self.departures, emits=emits)
        def forward(event: Departure, ctx: tr.Context[str]) -> None: ...


CALLS = """
app_name: tr.App("my flights")
no_partitions: tr.App("flights", partitions=0)
app_version: tr.App("flights", version=2)
topic_name: d.app.topic("late departures", Departure, key="tail")
topic_declared_twice: d.app.topic("departures", Departure, key="tail", out_of_order="30m")
topic_named_like_a_stream: d.app.topic("stream", Departure, key="tail")
topic_of_no_struct: d.app.topic("counts", int, key="tail")
union_without_tags: d.app.topic("both", Departure | Arrival, key="tail")
key_that_is_no_field: d.app.topic("more", Departure, key="tial")
key_that_cannot_be_one: d.app.topic("more", Departure, key="delay")
key_function_that_does_not_say: d.app.topic("more", Departure, key=lambda e: e.tail)
key_type_that_contradicts: d.app.topic("more", Departure, key="tail", key_type=int)
key_that_is_a_number: d.app.topic("more", Departure, key=1)
event_time_that_is_no_field: d.app.topic("more", Departure, key="tail", event_time="when")
event_time_that_is_text: d.app.topic("more", Departure, key="tail", event_time="gate")
event_time_inside_a_number: d.app.topic("more", Departure, key="tail", event_time="at.ms")
event_time_that_is_nothing: d.app.topic("more", Departure, key="tail", event_time=None)
disorder_that_is_no_duration: d.app.topic("more", Departure, key="tail", out_of_order="a bit")
disorder_without_end: d.app.topic("more", Departure, key="tail", out_of_order=2**63 - 1)
waiting_without_end: d.app.topic("more", Departure, key="tail", idle_after="300000000d")
time_range_without_end: d.app.topic("more", Departure, key="tail", event_time="at", time_range=(0, 2**61))
time_range_backwards: d.app.topic("more", Departure, key="tail", event_time="at", time_range=(5, 4))
time_range_that_is_an_instant: d.app.topic("more", Departure, key="tail", event_time="at", time_range=1000)
unknown_late: d.app.topic("more", Departure, key="tail", late="ignore")
late_topic_of_another_type: d.app.topic("more", Departure, key="tail", late=d.arrivals)
topic_option_misspelt: d.app.topic("more", Departure, key="tail", out_of_ordr="30m")
topic_on_error_misspelt: d.app.topic("more", Departure, key="tail", on_error="dead_letters")
topic_event_time_misspelt: d.app.topic("more", Departure, key="tail", event_time="dealy")
topic_format: d.app.topic("more", Departure, key="tail", format="avro")
topic_option: d.app.topic("more", Departure, key="tail", lateness="30m")
time_range_without_zone:
    d.app.topic("more", Departure, key="tail", time_range=(datetime(2020, 1, 1), datetime(2021, 1, 1)))
table_without_key: d.app.table("more", Departure)
table_with_repartition: d.app.table("more", Departure, key="tail", repartition=True)
table_option: d.app.table("more", Departure, key="tail", watermarks=False)
table_named_as_a_topic: d.app.table("departures", Departure, key="tail")
repartition_without_key: d.app.topic("more", Departure, repartition=True)
emits_of_another_app: d.function([tr.App("other").topic("elsewhere", Departure, key="tail")])
no_list: d.function(7)
type_of_an_event: d.function([d.arrivals, Departure])
class_options: class Aircraft(tr.Actor, frozen=True): ...
"""

BODIES_OF_AN_ACTOR = """
actor_of_events_without_key:
    @tr.process(d.plain)
    def arrived(self, event: Arrival, ctx: tr.Context[bytes]) -> None: ...
field_ttl_time_misspelt: legs: int = tr.field(default=0, ttl="1h", ttl_time="procesing")
field_of_a_type_that_cannot_be_stored: places: set[str] = set()
field_that_holds_anything: last: Any = None
map_value_that_cannot_be_stored: places: tr.MapState[str, set[str]]
map_key_without_order: places: tr.MapState[float, int]
list_with_a_time_to_live: log: tr.ListState[str] = tr.field(ttl="1h")
map_without_types: places: tr.MapState
map_with_a_default: places: tr.MapState[str, int] = {}
list_with_a_default_factory: places: tr.ListState[str] = tr.field(default_factory=list)
default_that_instances_would_share: places: list[str] = ["JFK"]
mutable_struct_as_default: seen: Seen = Seen([])
default_and_factory: legs: int = tr.field(default=0, default_factory=int)
mutable_class_attribute: places = []
field_without_type: legs = tr.field(default=0)
reserved_name: _tr_key: int = 0
field_named_like_a_method:
    legs: int
    def legs(self) -> int:
        return 0
two_fields_stored_under_one_name:
    legs: int = 0
    flights: int = tr.field(default=0, name="legs")
empty_stored_name: legs: int = tr.field(default=0, name="")
ttl_that_is_no_duration: legs: int = tr.field(default=0, ttl="soon")
ttl_without_end: legs: int = tr.field(default=0, ttl=2**63 - 1)
ttl_of_zero: legs: int = tr.field(default=0, ttl=0)
ttl_without_default: legs: int = tr.field(ttl="1h")
ttl_by_an_unknown_clock: legs: int = tr.field(default=0, ttl="1h", ttl_time="wall")
annotation_that_is_no_type: legs: tr.Nothing = 0
constructor: def __init__(self) -> None: ...
post_init: def __post_init__(self) -> None: ...
own_setattr: def __setattr__(self, name: str, value: object) -> None: ...
own_slots: __slots__ = ("cache",)
process_without_topic:
    @tr.process
    def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
process_of_a_name:
    @tr.process("departures")
    def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
one_topic_named_twice:
    @tr.process(d.departures, d.departures)
    def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
async_handler:
    @tr.process(d.departures)
    async def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
generator:
    @tr.process(d.departures)
    def departed(self, event: Departure, ctx: tr.Context[str]) -> Any:
        yield event
static_handler:
    @tr.process(d.departures)
    @staticmethod
    def departed(event: Departure, ctx: tr.Context[str]) -> None: ...
handler_without_context:
    @tr.process(d.departures)
    def departed(self, event: Departure) -> None: ...
timer_handler_with_an_event:
    @tr.on_timer("overdue")
    def overdue(self, event: Departure, ctx: tr.Context[str]) -> None: ...
wrong_event_type:
    @tr.process(d.departures)
    def departed(self, event: Arrival, ctx: tr.Context[str]) -> None: ...
wrong_key_type:
    @tr.process(d.departures)
    def departed(self, event: Departure, ctx: tr.Context[int]) -> None: ...
context_of_another_type:
    @tr.process(d.departures)
    def departed(self, event: Departure, ctx: str) -> None: ...
handler_that_returns:
    @tr.process(d.departures)
    def departed(self, event: Departure, ctx: tr.Context[str]) -> Departure:
        return event
deletions_of_a_topic:
    @tr.on_delete(d.departures)
    def gone(self, ctx: tr.Context[str]) -> None: ...
two_handlers_of_one_timer:
    @tr.on_timer("overdue")
    def first(self, ctx: tr.Context[str]) -> None: ...
    @tr.on_timer("overdue")
    def second(self, ctx: tr.Context[str]) -> None: ...
timer_family_with_a_colon:
    @tr.on_timer("overdue:JFK")
    def overdue(self, ctx: tr.Context[str]) -> None: ...
two_handlers_of_one_message:
    @tr.on_message
    def first(self, message: Arrival, ctx: tr.Context[str]) -> None: ...
    @tr.on_message(name="second")
    def second(self, message: Arrival, ctx: tr.Context[str]) -> None: ...
two_messages_of_one_name:
    @tr.on_message
    def first(self, message: Arrival, ctx: tr.Context[str]) -> None: ...
    @tr.on_message(name="Arrival")
    def second(self, message: Departure, ctx: tr.Context[str]) -> None: ...
message_without_type:
    @tr.on_message
    def pinged(self, message, ctx: tr.Context[str]) -> None: ...
message_without_a_class:
    @tr.on_message
    def pinged(self, message: list[int], ctx: tr.Context[str]) -> None: ...
message_that_cannot_be_stored:
    @tr.on_message
    def pinged(self, message: complex, ctx: tr.Context[str]) -> None: ...
one_name_for_two_messages:
    @tr.on_message(name="ping")
    def pinged(self, message: Arrival | Departure, ctx: tr.Context[str]) -> None: ...
two_roles:
    @tr.on_message
    @tr.process(d.departures)
    def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
async_query:
    @tr.query
    async def status(self) -> str:
        return ""
payload_that_its_handler_does_not_take:
    @tr.on_timer("overdue", payload=Arrival)
    def overdue(self, ctx: tr.Context[str]) -> None: ...
"""

DECLARATIONS = """
actor_that_is_none:
    @d.app.actor
    class Aircraft: ...
actor_without_handlers:
    @d.app.actor
    class Aircraft(tr.Actor):
        legs: int = 0
two_actors_of_one_name:
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
    @d.app.actor(name="Aircraft")
    class Plane(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
one_actor_twice:
    @d.app.actor(name="plane")
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
topic_of_another_app:
    other = tr.App("ships")
    @other.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
actor_whose_key_nobody_says:
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.on_message
        def pinged(self, message: Arrival, ctx: tr.Context) -> None: ...
    d.app.plan()
function_with_self:
    @d.app.process(d.departures)
    def clean(self, event: Departure, ctx: tr.Context[str]) -> None: ...
function_of_another_event:
    @d.app.process(d.departures)
    def clean(event: Arrival, ctx: tr.Context[str]) -> None: ...
function_without_topic:
    @d.app.process
    def clean(event: Departure, ctx: tr.Context[str]) -> None: ...
function_named_like_an_actor:
    @d.app.actor(name="clean")
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
    @d.app.process(d.departures)
    def clean(event: Departure, ctx: tr.Context[str]) -> None: ...
topic_named_like_the_redriven:
    d.app.topic("flights.redriven", Departure, key="tail")
    d.app.plan()
topic_named_like_the_changelog:
    d.app.topic("flights.changelog", Departure, key="tail")
    d.app.plan()
actor_by_a_wrong_name:
    d.actor([])
    d.function(["Plane"])
    d.app.plan()
actor_of_no_app:
    class Gate(tr.Actor):
        @tr.on_message
        def opened(self, message: Departure, ctx: tr.Context[str]) -> None: ...
    d.actor([Gate])
    d.app.plan()
actor_without_messages_by_its_name:
    d.actor(["Aircraft"])
    d.app.plan()
field_named_like_an_inherited_method:
    class Base(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
    class Aircraft(Base):
        departed: int = 0
method_named_like_an_inherited_field:
    class Base(tr.Actor):
        legs: int = 0
    class Aircraft(Base):
        def legs(self) -> int:
            return 0
field_that_changes_its_kind:
    class Base(tr.Actor):
        legs: tr.ListState[int]
    class Aircraft(Base):
        legs: int = 0
field_whose_type_is_nowhere:
    @d.app.actor
    class Aircraft(tr.Actor):
        last: Unknown | None = None
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
    d.app.plan()
two_actors_as_bases:
    class Plane(tr.Actor): ...
    class Ship(tr.Actor): ...
    class Aircraft(Plane, Ship): ...
mixin_with_a_dict:
    class Named:
        def named(self) -> str:
            return ""
    class Aircraft(Named, tr.Actor): ...
topic_hidden_by_a_field:
    departures = d.departures
    class Aircraft(tr.Actor):
        departures: int = 0
        @tr.process(departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
union_that_leaves_one_out:
    class Aircraft(tr.Actor, order="arrival"):
        @tr.process(d.departures, d.arrivals)
        def moved(self, event: Departure, ctx: tr.Context[str]) -> None: ...
two_handlers_of_one_topic:
    class Aircraft(tr.Actor, order="arrival"):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
        @tr.process(d.departures, d.arrivals)
        def moved(self, event: Departure | Arrival, ctx: tr.Context[str]) -> None: ...
two_handlers_of_deletions:
    gates = d.app.table("gates", Departure, key="tail")
    class Aircraft(tr.Actor):
        @tr.on_delete(gates)
        def gone(self, ctx: tr.Context[str]) -> None: ...
        @tr.on_delete(gates)
        def lost(self, ctx: tr.Context[str]) -> None: ...
deletion_with_an_event:
    gates = d.app.table("gates", Departure, key="tail")
    class Aircraft(tr.Actor):
        @tr.on_delete(gates)
        def gone(self, event: Departure, ctx: tr.Context[str]) -> None: ...
handler_replaced_by_a_plain_method:
    class Base(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
    class Aircraft(Base):
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
keys_of_two_types:
    class Aircraft(tr.Actor, order="arrival"):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context) -> None: ...
        @tr.process(d.numbers)
        def numbered(self, event: Arrival, ctx: tr.Context) -> None: ...
event_type_that_is_nowhere:
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Unknown, ctx: tr.Context[str]) -> None: ...
    d.app.plan()
payload_of_another_type:
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
        @tr.on_timer("overdue", payload=Arrival)
        def overdue(self, payload: int, ctx: tr.Context[str]) -> None: ...
    d.app.plan()
payload_that_holds_anything:
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
        @tr.on_timer("overdue", payload=object)
        def overdue(self, payload: object, ctx: tr.Context[str]) -> None: ...
    d.app.plan()
default_of_another_type:
    @d.app.actor
    class Aircraft(tr.Actor):
        share: float = tr.field(default="none", ttl="1s")
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...
    d.app.plan()
two_inputs_in_no_order:
    @d.app.actor
    class Aircraft(tr.Actor):
        @tr.process(d.departures, d.arrivals)
        def moved(self, event: Departure | Arrival, ctx: tr.Context[str]) -> None: ...
    d.app.plan()
"""


def listed(table: str) -> dict[str, str]:
    found = re.findall(r"^(\w+):(.*(?:\n .*)*)", table, re.MULTILINE)
    return {name: textwrap.dedent(code.removeprefix("\n")).strip() for name, code in found}


MISUSES = {
    **listed(CALLS),
    **{
        name: "class Aircraft(tr.Actor):\n" + textwrap.indent(body, "    ")
        for name, body in listed(BODIES_OF_AN_ACTOR).items()
    },
    **listed(DECLARATIONS),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_misuse_says_what_was_done_and_what_to_do(misuse: str, refused: Refused) -> None:
    names = {"Any": Any, "datetime": datetime, "tr": tr, "d": Deck(), "__name__": __name__}
    names |= {one.__name__: one for one in (Departure, Arrival, Seen)}
    with refused():
        exec(MISUSES[misuse], names)


def test_what_emits_lists_is_kept_by_the_stable_name() -> None:
    d = Deck()

    @d.app.process(d.departures, name="to-gates", emits=(d.arrivals, d.stream, "gate"))
    def forward(event: Departure, ctx: tr.Context[str]) -> None: ...

    @d.app.actor(name="gate", emits=[])
    class Gate(tr.Actor):
        @tr.on_message
        def opened(self, message: Departure, ctx: tr.Context[str]) -> None: ...

    d.app.plan()
    assert d.app.emits == {"to-gates": (d.arrivals, d.stream, "gate"), "gate": ()}
    found = declared_emissions(d.app)
    assert found["to-gates"].edges == {d.arrivals, d.stream}
    assert found["to-gates"].actors == {Gate}
    assert found["gate"].edges == frozenset()
    assert declared_emissions(d.app.renamed("other")).keys() == found.keys()


def test_a_failed_declaration_leaves_nothing_behind() -> None:
    d = Deck()
    with pytest.raises(tr.DefinitionError):
        d.app.topic("more", Departure, key="tial")
    with pytest.raises(tr.DefinitionError):

        @d.app.process(d.departures, emits=[d.arrivals])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the misuse
        def forward(event: int, ctx: tr.Context[str]) -> None: ...

    assert (d.app.emits, "more" in d.app.plan().topics) == ({}, False)
