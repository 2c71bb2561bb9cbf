"""In event-time order, a circle that is only found by names in the code is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import DefinitionError


class Event(msgspec.Struct):
    key: str


class Ping(msgspec.Struct):
    number: int = 0


def ledger(ledgers: list[str] | None = None, tellers: list[Any] | None = None) -> None:
    """The plan of an app with a field that is called as a topic, and a class that is named and not sent to."""
    app = tr.App("ledgers", partitions=1)
    topics = SimpleNamespace(**{name: app.topic(name, Event, key="key", key_type=str) for name in "abc"})
    listed = None if ledgers is None else [getattr(topics, name) for name in ledgers]

    @app.actor(emits=listed)
    class Ledger(tr.Actor, order="event-time"):
        a: int = 0

        @tr.process(topics.a)
        def ordered(self, event: Event, ctx: tr.Context[str]) -> None:
            self.a += 1

        @tr.process(topics.b)
        def paid(self, event: Event, ctx: tr.Context[str]) -> None:
            self.a += 1
            ctx.emit(topics.c, event)

        @tr.on_message
        def pinged(self, message: Ping, ctx: tr.Context[str]) -> None:
            self.a += message.number

    @app.actor
    class Told(tr.Actor):
        @tr.on_message
        def pinged(self, message: Ping, ctx: tr.Context[str]) -> None:
            pass

    @app.actor(emits=tellers)
    class Teller(tr.Actor):
        @tr.process(topics.c)
        def told(self, event: Event, ctx: tr.Context[str]) -> None:
            ctx.send(Told, Ledger.__name__, Ping())

    app.plan()


def test_in_event_time_order_a_circle_that_only_names_make_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"takes 'a', and the code of Ledger has a name") as raised:
        ledger(None, ["Told"])
    assert "emits=[c]. If it does, list it, too: emits=[a, c]" in raised.value.hint
    with pytest.raises(DefinitionError, match=r"takes messages, and the code of Teller") as raised:
        ledger(["c"])
    assert "emits=[Told]. If it does, list it, too: emits=[Ledger, Told]" in raised.value.hint
    ledger(["c"], ["Told"])
    ledger(["a", "c"], ["Told"])
