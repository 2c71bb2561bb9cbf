"""Composite fields, generic base actors, and streams with a key type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.components import Component, context_of
from tailrace.core.declare.handlers import ResultRole, add_role
from tailrace.core.errors import DefinitionError, IncompatibleStateError
from tailrace.library.operators import handler
from tailrace.testing import Harness

T = TypeVar("T")


class Reading(msgspec.Struct, frozen=True):
    room: tr.Key[str]
    at: tr.EventTime[int]
    value: int


class Total(msgspec.Struct, frozen=True):
    room: tr.Key[str]
    at: tr.EventTime[int]
    value: int


class Sum(Component):
    """The sum of the values until a minute after the first, then handed on."""

    def __init__(self, spec: str = "sum") -> None:
        self.spec = spec

    def parts(self) -> Mapping[str, tuple[Any, Any]]:
        return {"total": (int, 0), "each": (tr.MapState[int, int], None)}

    def handlers(self) -> Mapping[str, Callable[..., None]]:
        attr = self.attr

        def due(actor: Any, ctx: Any) -> None:
            total = getattr(actor, f"{attr}__total")
            setattr(actor, f"{attr}__total", 0)
            getattr(actor, f"{attr}__each").clear()
            getattr(actor, self.result_method or "")(total, ctx)

        return {"due": handler(due, tr.on_timer(attr))}

    def view(self, instance: Any) -> SumView:
        return SumView(instance, self.attr)


class SumView:
    def __init__(self, instance: Any, attr: str) -> None:
        self.instance, self.attr = instance, attr

    def add(self, value: int) -> None:
        instance, ctx = self.instance, context_of(self.instance)
        if not getattr(instance, f"{self.attr}__total"):
            ctx.set_timer(ctx.event_time + 60_000, self.attr)
        setattr(instance, f"{self.attr}__total", getattr(instance, f"{self.attr}__total") + value)
        getattr(instance, f"{self.attr}__each")[ctx.event_time] = value


def on_sum(component: Any) -> Callable[[Any], Any]:
    def decorate(method: Any) -> Any:
        add_role(method, "@on_sum", ResultRole(component))
        return method

    return decorate


def rooms(spec: str = "sum") -> tuple[tr.App, tr.Topic[Reading, str], tr.Topic[Total, str], Any]:
    app = tr.App("rooms", partitions=1)
    readings = app.topic("readings", Reading)
    totals = app.topic("totals", Total)

    @app.actor
    class Room(tr.Actor):
        count: int = 0
        minute: Any = Sum(spec)

        @tr.process(readings)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            self.count += 1
            self.minute.add(event.value)

        @on_sum(minute)
        def summed(self, total: int, ctx: tr.Context[str]) -> None:
            ctx.emit(totals, Total(ctx.key, ctx.event_time, total))

    return app, readings, totals, Room


@pytest.mark.parametrize("checked", [True, False])
def test_a_component_has_state_and_timers_of_its_own(checked: bool) -> None:
    app, readings, totals, room = rooms()
    with Harness(app, checked=checked) as h:
        found: list[int] = []
        for at, value in ((1_000, 1), (2_000, 2), (60_500, 4), (200_000, 8)):
            found += [one.value for one in h.send(readings, Reading("a", at, value)).to(totals)]
        assert found == [15]  # the last event is handled, and then the timers that it makes due
        state = h.state(room, "a")
        assert state is not None
        assert state.count == 4


def test_stored_parts_of_another_meaning_are_not_read() -> None:
    app, readings, _, _ = rooms()
    other, *_ = rooms("another sum")
    with Harness(app) as h:
        h.send(readings, Reading("a", 1_000, 1))
        h.commit()
        snapshot = h.snapshot()
    with pytest.raises(IncompatibleStateError) as caught, Harness(other, start=snapshot):
        pass
    error = caught.value
    assert (error.actor, error.field, error.stored, error.declared) == (
        "Room",
        "minute",
        "sum",
        "another sum",
    )
    with Harness(app, start=snapshot):
        pass


def test_misuse_is_refused() -> None:
    shared = Sum()
    with pytest.raises(DefinitionError, match="has no type"):

        class A(tr.Actor):
            minute = Sum()

    with pytest.raises(DefinitionError, match="the same object"):

        class B(tr.Actor):
            one: Any = shared
            two: Any = shared

    with pytest.raises(DefinitionError, match="is a part of"):

        class C(tr.Actor):
            minute__total: int = 0
            minute: Any = Sum()


class Last(tr.Actor, Generic[T]):
    last: T | None = None
    by_name: tr.MapState[str, T]

    def keep(self, value: T) -> None:
        self.last = value
        self.by_name["last"] = value


def test_a_generic_base_actor_is_used_with_types() -> None:
    app = tr.App("generic", partitions=1)
    readings = app.topic("readings", Reading)

    @app.actor
    class Values(Last[int]):
        @tr.process(readings)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            self.keep(event.value)

    @app.actor
    class Readings(Last[Reading]):
        @tr.process(readings)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            self.keep(event)

    with Harness(app) as h:
        h.send(readings, Reading("a", 1_000, 5))
        values, kept = h.state(Values, "a"), h.state(Readings, "a")
        assert values is not None
        assert values.last == 5
        assert kept is not None
        assert kept.last == Reading("a", 1_000, 5)
    schemas = {one.name: one.schema for one in app.plan().actors}
    assert schemas["Values"].fields != schemas["Readings"].fields
    with pytest.raises(DefinitionError, match="does not say for which types"):

        class Untyped(Last):  # type: ignore[type-arg]
            pass


def test_a_wrong_type_for_a_generic_base_is_refused_when_it_is_stored() -> None:
    app = tr.App("generic", partitions=1)
    readings = app.topic("readings", Reading)

    @app.actor
    class Values(Last[str]):
        @tr.process(readings)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            self.keep(event.value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    with Harness(app) as h, pytest.raises(tr.HandlerError, match="not of the declared type"):
        h.send(readings, Reading("a", 1_000, 5))


def test_a_stream_tells_its_key() -> None:
    app = tr.App("streams", partitions=1)
    numbers = app.stream("numbers", Reading, key_type=int)
    with pytest.raises(DefinitionError, match="the key of 'numbers' is int"):

        @app.process(numbers)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        def taken(event: Reading, ctx: tr.Context[str]) -> None: ...


def test_timers_of_a_receiver_have_fired_up_to_the_timer_that_emits() -> None:
    app = tr.App("drain", partitions=1)
    readings = app.topic("readings", Reading)
    each = app.stream("each", Reading, key_type=str)
    seen: list[tuple[int, int, bool]] = []

    @app.actor
    class Sender(tr.Actor):
        @tr.process(readings)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            if event.value:
                ctx.set_timer(event.at + 10, f"due:{event.at}")

        @tr.on_timer("due")
        def due(self, ctx: tr.Context[str]) -> None:
            ctx.emit(each, Reading(ctx.key, ctx.event_time, 1))

    @app.actor
    class Receiver(tr.Actor):
        @tr.process(each)
        def take(self, event: Reading, ctx: tr.Context[str]) -> None:
            seen.append((ctx.event_time, ctx.fired_to, ctx.is_late))
            if ctx.event_time == 1_020:
                ctx.count_late()

    with Harness(app, checked=False) as h:
        for at in (1_000, 1_005, 1_010):
            h.send(readings, Reading("a", at, 1))
        h.send(readings, Reading("a", 9_000, 0))
        assert seen == [(1_010, 1_009, False), (1_015, 1_014, False), (1_020, 1_019, False)]
        assert h.dropped == 1
