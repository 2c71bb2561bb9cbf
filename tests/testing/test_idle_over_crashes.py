"""Idleness over a crash of a harness: a crash changes nothing, unless events have come while the service was
down.
"""

from __future__ import annotations

import msgspec

import tailrace as tr
from tailrace.testing import Harness, System


class Step(msgspec.Struct, frozen=True):
    key: str
    at: int


class Alarm(msgspec.Struct, frozen=True):
    key: str
    at: int


app = tr.App("alarms", partitions=2)
left = app.topic("left", Step, key="key", event_time="at", idle_after="10s")
right = app.topic("right", Step, key="key", event_time="at", idle_after="10s", late="drop")
alarms = app.topic("alarms", Alarm, key="key")


@app.actor
class Waiting(tr.Actor, order="arrival"):
    seen: int = 0

    @tr.process(left, right)
    def step(self, event: Step, ctx: tr.Context[str]) -> None:
        self.seen += 1
        ctx.set_timer(event.at + 50)

    @tr.on_timer
    def alarm(self, ctx: tr.Context[str]) -> None:
        ctx.emit(alarms, Alarm(ctx.key, ctx.event_time))


def test_an_input_that_was_idle_is_idle_again_after_a_crash() -> None:
    for told in (True, False):
        with Harness(app) as h:
            h.send(left, Step("a", 100))
            if told:
                h.fall_idle(right)
            else:
                h.advance_clock_by("9s")
                h.send(left, Step("a", 101))
                h.advance_clock_by("9s")
            h.crash()
            h.send(left, Step("a", 1_000))
            assert h.emitted(alarms)[0] == Alarm("a", 150)
            h.replay()


def test_events_that_came_to_an_idle_input_while_the_service_was_down_are_not_late() -> None:
    with System(app) as s:
        s.send(left, Step("a", 100))
        s.fall_idle(right)
        with s.down(app):
            s.send(left, *(Step("a", at) for at in range(1_000, 1_800, 100)))
            s.send(right, *(Step("a", at) for at in range(1_000, 1_800, 100)))
        s.send(left, Step("a", 20_000))
        assert s[app].late == 0
        found = s[app].state(Waiting, "a")
        assert found is not None
        assert found.seen == 18
        s.replay()
