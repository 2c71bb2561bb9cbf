"""An app of two actors and a few topics, and what some handlers of it may emit to and send to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

import tailrace as tr
from tailrace.core.declare.emissions import Emissions, emissions_of


class Event(msgspec.Struct):
    key: str
    kind: str = "a"


class Ping(msgspec.Struct):
    number: int = 0


app = tr.App("referring")
taken = app.topic("taken", Event, key="key", key_type=str)
a = app.topic("a", Event, key="key", key_type=str)
b = app.topic("b", Event, key="key", key_type=str)
c = app.topic("c", Event, key="key", key_type=str)
side = app.stream("side", Event)


class Receiver(tr.Actor):
    @tr.on_message
    def ping(self, message: Ping, ctx: tr.Context[str]) -> None:
        self.report(ctx)

    def report(self, ctx: tr.Context[str]) -> None:
        ctx.emit(c, Event(""))


class Other(tr.Actor):
    @tr.on_message
    def ping(self, message: Ping, ctx: tr.Context[str]) -> None: ...


def found_in(*calls: Callable[..., None], cls: type[Any] | None = None) -> Emissions:
    return emissions_of(calls, cls, app.topics.values(), app.streams.values(), [Receiver, Other])
