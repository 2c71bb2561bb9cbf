"""A call of the harness ends when every message is handled, wherever commits fall."""

from __future__ import annotations

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import Harness


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


class Note(msgspec.Struct, frozen=True):
    left: int


app = tr.App("followed", partitions=3)
events = app.topic("events", Event, key="key", event_time="at")
KEYS = ("ada", "bob", "cyd", "dan")


@app.actor
class Told(tr.Actor):
    seen: int = 0

    @tr.on_message
    def note(self, note: Note, ctx: tr.Context[str]) -> None:
        self.seen += 1
        if note.left:
            ctx.send(Told, KEYS[note.left % len(KEYS)], Note(note.left - 1))


@app.actor
class Teller(tr.Actor):
    @tr.process(events)
    def event(self, event: Event, ctx: tr.Context[str]) -> None:
        for key in KEYS:
            ctx.send(Told, key, Note(3))


@pytest.mark.parametrize("every", [None, 1, 2, 3])
@pytest.mark.parametrize("key", KEYS)
def test_a_call_ends_when_every_message_is_handled(every: int | None, key: str) -> None:
    with Harness(app, commit_every=every) as h:
        h.send(events, Event(key, 1_000))
        seen = {one: h.state(Told, one) for one in KEYS}
        assert sum(one.seen for one in seen.values() if one is not None) == 4 * len(KEYS)
