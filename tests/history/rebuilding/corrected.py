"""An app whose codec and handler are wrong at first: the environment says so, as all processes have it."""

from __future__ import annotations

import os
from typing import Any

import msgspec

import tailrace as tr


class Scan(msgspec.Struct, frozen=True):
    parcel: tr.Key[str]
    at: tr.EventTime[int]
    id: int

    def __post_init__(self) -> None:
        if f"codec {self.id}" in os.environ.get("WRONG", "").split(","):
            raise ValueError("not yet")


def make_app(name: str, order: Any, partitions: int = 1) -> tr.App:
    app = tr.App(name, partitions=partitions, on_error="dead-letter")
    scans = app.topic("scans", Scan, out_of_order="2s", idle_after="1h")

    @app.actor
    class Parcel(tr.Actor, order=order):
        seen: dict[int, int] = tr.field(default_factory=dict)

        @tr.process(scans)
        def scan(self, event: Scan, ctx: tr.Context[str]) -> None:
            if f"handler {event.id}" in os.environ.get("WRONG", "").split(","):
                raise ValueError("bad luck")
            if event.id == 2 and "order" in os.environ.get("WRONG", "") and 1 not in self.seen:
                raise ValueError("1 must be there")
            self.seen[event.id] = self.seen.get(event.id, 0) + 1

    return app


ordered = make_app("ordered", "event-time")
arriving = make_app("arriving", "arrival")
spread = make_app("spread", "arrival", 2)
wide = make_app("arriving", "arrival", 2)
