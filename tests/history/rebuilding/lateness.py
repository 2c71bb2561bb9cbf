"""An app that takes late events by a topic of their own; corrected code finds other events late."""

from __future__ import annotations

import msgspec

import tailrace as tr
from tailrace.core.records import Output

EVENTS = (("x", 1, 1_000_000), ("x", 10, 1_100_000), ("x", 100, 1_010_000), ("x", 1_000, 1_110_000))
"""The third comes behind the second."""


class Reading(msgspec.Struct):
    sensor: str
    value: int
    at: int


def outputs() -> list[Output]:
    said = (Reading(*one) for one in EVENTS)
    return [Output("readings", one.sensor.encode(), msgspec.json.encode(one), one.at) for one in said]


def make_app(version: str, out_of_order: str) -> tr.App:
    app = tr.App("lateness", partitions=2, version=version)
    late = app.topic("late-readings", Reading, key="sensor", event_time="at")
    readings = app.topic(
        "readings", Reading, key="sensor", event_time="at", out_of_order=out_of_order, late=late
    )

    @app.actor
    class InTime(tr.Actor):
        total: int = 0

        @tr.process(readings)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            self.total += event.value

    @app.actor
    class Late(tr.Actor):
        total: int = 0

        @tr.process(late)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            self.total += event.value

    return app


strict = make_app("1", "0s")
lenient = make_app("2", "30m")
