"""What a handler leaves behind is at once what its encoding says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import Harness


class Reading(msgspec.Struct, frozen=True):
    sensor: tr.Key[str]
    said: str = ""


app = tr.App("settling", partitions=1)
readings, seen = app.topic("readings", Reading), app.topic("seen", Reading)


@app.actor
class Sensor(tr.Actor):
    numbers: list[float] = tr.field(default_factory=list)
    by_minute: tr.MapState[int, list[float]]
    kept: tr.ListState[list[float]]

    @tr.process(readings)
    def read(self, event: Reading, ctx: tr.Context[str]) -> None:
        self.numbers.append(1)
        self.by_minute[0] = [1]
        self.kept.append([1])
        ctx.emit(seen, Reading(event.sensor, repr(self.numbers)))


@pytest.mark.parametrize("reload", [False, True])
def test_an_int_in_a_list_of_floats_is_a_float_from_the_handlers_return_on(reload: bool) -> None:
    with Harness(app, reload=reload) as h:
        h.send(readings, Reading("a"), Reading("a"))
        assert [event.said for event in h.emitted(seen)] == ["[1]", "[1.0, 1]"]
        state: Any = h.state(Sensor, "a")
        assert repr(state.numbers) == "[1.0, 1.0]"
        assert repr(state.by_minute[0]) == "[1.0]"
        assert [repr(item) for item in state.kept] == ["[1.0]", "[1.0]"]
        h.replay()
