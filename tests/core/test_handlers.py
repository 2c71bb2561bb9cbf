from __future__ import annotations

from typing import Any

import msgspec

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.actor import declaration_of
from tailrace.core.declare.handlers import TimerRole


class Departure(msgspec.Struct, frozen=True, tag=True):
    tail: str


class Diverted(Departure, frozen=True, tag=True):
    to: str


class Arrival(msgspec.Struct, frozen=True, tag=True):
    tail: str


class Ping(msgspec.Struct, frozen=True):
    n: int


app = tr.App("flights")
departures = app.topic("departures", Departure, key="tail")
more = app.topic("more", Departure, key="tail")
diverted = app.topic("diverted", Diverted, key="tail", key_type=str)
arrivals = app.topic("arrivals", Arrival, key="tail")
mixed: tr.Topic[Departure | Arrival, str] = app.topic("mixed", Departure | Arrival, key="tail")
stream = app.stream("stream", Departure)


def handlers(cls: type[Any]) -> dict[str, Any]:
    return {one.method: one for one in declaration_of(cls).handlers}


def test_a_handler_may_take_several_topics_stacked_or_listed() -> None:
    class Aircraft(tr.Actor, order="arrival"):
        @tr.process(departures, arrivals)
        def listed(self, event: Departure | Arrival, ctx: tr.Context[str]) -> None: ...

        @tr.process(stream)
        @tr.process(more)
        def stacked(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    assert handlers(Aircraft)["listed"].edges == (departures, arrivals)
    assert set(handlers(Aircraft)["stacked"].edges) == {stream, more}


def test_a_handler_may_be_declared_wider_than_its_topics() -> None:
    class Aircraft(tr.Actor, order="arrival"):
        @tr.process(mixed)
        def union(self, event: Arrival | Departure, ctx: tr.Context[str]) -> None: ...

        @tr.process(diverted)
        def base(self, event: Departure, ctx: tr.Context[str]) -> None: ...

        @tr.process(departures)
        def any_struct(self, event: msgspec.Struct, ctx: tr.Context[str]) -> None: ...

        @tr.process(arrivals)
        def anything(self, event: object, ctx: tr.Context) -> None: ...

    assert declaration_of(Aircraft).resolved


def test_a_handler_may_go_without_annotations() -> None:
    class Aircraft(tr.Actor):
        @tr.process(departures)
        def departed(self, event, ctx): ...

        @tr.on_timer
        def fired(self, ctx): ...

    assert declaration_of(Aircraft).resolved


def test_a_timer_handler_may_take_several_families() -> None:
    class Aircraft(tr.Actor):
        @tr.on_timer("overdue")
        @tr.on_timer("lost")
        @tr.on_timer
        def fired(self, ctx: tr.Context[str]) -> None: ...

        @tr.on_processing_timer("overdue")
        def clock(self, ctx: tr.Context[str]) -> None: ...

    fired = {
        (role.domain, role.family)
        for role in handlers(Aircraft)["fired"].roles
        if isinstance(role, TimerRole)
    }
    assert fired == {(rows.EVENT_TIME, "overdue"), (rows.EVENT_TIME, "lost"), (rows.EVENT_TIME, "")}
    assert handlers(Aircraft)["clock"].roles == (TimerRole(rows.PROCESSING_TIME, "overdue"),)


def test_a_message_handler_may_take_several_types() -> None:
    class Aircraft(tr.Actor):
        @tr.on_message
        def pinged(self, message: Ping | Departure, ctx: tr.Context[str]) -> None: ...

        @tr.on_message(name="note")
        def noted(self, message: str, ctx: tr.Context[str]) -> None: ...

    assert handlers(Aircraft)["pinged"].message_types == (Ping, Departure)
    assert handlers(Aircraft)["noted"].message_types == (str,)
