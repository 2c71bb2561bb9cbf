"""What a handler leaves behind is at once what its encoding says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import HandlerError
from tailrace.testing import Harness


class Reading(msgspec.Struct):
    sensor: str
    at: int
    values: list[float] = []


class Seen(msgspec.Struct, frozen=True):
    sensor: str
    said: str


def world() -> tuple[tr.App, tr.Topic[Reading], tr.Topic[Seen], Any]:
    app = tr.App("settling", partitions=1)
    readings = app.topic("readings", Reading, key="sensor", event_time="at")
    seen = app.topic("seen", Seen, key="sensor")

    @app.actor
    class Sensor(tr.Actor):
        numbers: list[float] = []
        last: Reading | None = None
        by_minute: tr.MapState[int, list[float]]
        kept: tr.ListState[list[float]]

        @tr.process(readings)
        def read(self, event: Reading, ctx: tr.Context) -> None:
            self.numbers.append(1)
            self.by_minute[0] = [1]
            self.kept.append([1])
            self.last = event
            event.values.append(7)  # its event is still its own here
            ctx.emit(seen, Seen(event.sensor, repr(self.numbers)))

    return app, readings, seen, Sensor


@pytest.mark.parametrize("reload", [False, True])
def test_an_int_in_a_list_of_floats_is_a_float_from_the_handlers_return_on(reload: bool) -> None:
    app, readings, seen, sensor = world()
    with Harness(app, reload=reload) as h:
        h.send(readings, Reading("a", 1), Reading("a", 2))
        assert [event.said for event in h.emitted(seen)] == ["[1]", "[1.0, 1]"]
        state: Any = h.state(sensor, "a")
        assert repr(state.numbers) == "[1.0, 1.0]"
        assert repr(state.by_minute[0]) == "[1.0]"
        assert [repr(item) for item in state.kept] == ["[1.0]", "[1.0]"]
        h.replay()


def test_an_event_kept_in_a_field_is_a_copy_that_nobody_else_holds() -> None:
    app, readings, _, sensor = world()
    held: list[Reading] = []

    @app.process(readings, name="watch")
    def watch(event: Reading, ctx: tr.Context) -> None:
        held.append(event)

    with Harness(app) as h:
        h.send(readings, Reading("a", 1, [3.0]))
        held[0].values.append(99.0)
        h.send(readings, Reading("b", 2))
        state: Any = h.state(sensor, "a")
        assert state.last.values == [3.0, 7.0]


def test_a_value_that_cannot_be_stored_is_named_with_class_field_and_mend() -> None:
    wrong: Any = "x"
    app = tr.App("unstorable", partitions=1)
    readings = app.topic("readings", Reading, key="sensor", event_time="at")

    @app.actor
    class Sensor(tr.Actor):
        numbers: list[float] = []
        by_minute: tr.MapState[int, list[float]]

        @tr.process(readings)
        def read(self, event: Reading, ctx: tr.Context) -> None:
            if event.at == 1:
                self.numbers.append(wrong)
            else:
                self.by_minute[0] = [wrong]

    for at, field in ((1, "numbers"), (2, "by_minute")):
        with Harness(app) as h, pytest.raises(HandlerError) as caught:
            h.send(readings, Reading("a", at))
        assert f"field {field!r}" in str(caught.value)
        assert "Sensor" in str(caught.value)


def test_an_event_whose_bytes_would_depend_on_more_than_its_value_is_not_emitted() -> None:
    class Tags(msgspec.Struct):
        key: str
        tags: set[str]

    app = tr.App("sets", partitions=1)
    tags = app.topic("tags", Tags, key="key")
    out = app.topic("out", Tags, key="key")

    @app.process(tags)
    def forward(event: Tags, ctx: tr.Context) -> None:
        ctx.emit(out, event)

    with Harness(app) as h, pytest.raises(HandlerError, match="sorted list"):
        h.send(tags, Tags("a", {"x", "y"}))
