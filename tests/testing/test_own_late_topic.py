"""An app that reads the topic to which it routes its own late events."""

from __future__ import annotations

import msgspec

import tailrace as tr
from tailrace.testing import Harness


class Seen(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]


def test_what_is_routed_at_the_end_of_input_is_handled() -> None:
    app = tr.App("routed", partitions=1)
    late = app.topic("late", Seen)
    seen = app.topic("seen", Seen, late=late)

    @app.actor
    class InTime(tr.Actor, order="event-time"):
        times: list[int] = tr.field(default_factory=list)

        @tr.process(seen)
        def came(self, event: Seen, ctx: tr.Context[str]) -> None:
            self.times.append(event.at)

    @app.actor
    class Late(tr.Actor):
        times: list[int] = tr.field(default_factory=list)

        @tr.process(late)
        def came(self, event: Seen, ctx: tr.Context[str]) -> None:
            self.times.append(event.at)
            ctx.set_timer(event.at + 1_000)

        @tr.on_timer
        def rings(self, ctx: tr.Context[str]) -> None:
            self.times.append(ctx.event_time)

    with Harness(app) as h:
        h.send(seen, *[Seen("k", at) for at in (600_000, 7, 600_000, 5)])
        h.end_of_input()
        states = h.state(InTime, "k"), h.state(Late, "k")
        assert states[0] is not None
        assert states[1] is not None
        assert (states[0].times, sorted(states[1].times)) == ([600_000, 600_000], [5, 7, 1_005, 1_007])
        assert not h.replay().differences.count
