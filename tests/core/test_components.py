"""Composite fields, generic base actors, and streams with a key type."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import DefinitionError
from tailrace.testing import Harness

T = TypeVar("T")


class Reading(msgspec.Struct, frozen=True):
    room: tr.Key[str]
    at: tr.EventTime[int]
    value: int


def counting() -> Any:
    return tr.windowed(tr.windows.tumbling(10), tr.agg.count())


def test_misuse_is_refused() -> None:
    shared: Any = counting()
    with pytest.raises(DefinitionError, match="has no type"):

        class A(tr.Actor):
            minute = counting()

    with pytest.raises(DefinitionError, match="the same object"):

        class B(tr.Actor):
            one: Any = shared
            two: Any = shared

    with pytest.raises(DefinitionError, match="is a part of"):

        class C(tr.Actor):
            minute__panes: int = 0
            minute: Any = counting()


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
