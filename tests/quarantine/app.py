"""An app whose handlers fail as the events say: for the property test of quarantine against an oracle."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import msgspec

import tailrace as tr
from tests.oracle.quarantine.model import Event

__all__ = ["Bank", "Done", "Ev", "Note", "World", "alone", "app", "bank", "world"]


class World:
    """What makes a handler fail: the version of the code, and what has failed once already."""

    version: int
    have_failed: set[str]
    is_replayed: bool
    """In a replay the code has changed: nothing fails by itself."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self.version, self.have_failed, self.is_replayed = (
            int(os.environ.get("BANK_VERSION", "0")),
            set(),
            False,
        )

    def check(self, what: str, fixed_in: int, *, once: bool = False) -> None:
        """Raise ValueError if it fails now."""
        if self.is_replayed:
            return
        if once and what not in self.have_failed:
            self.have_failed.add(what)
            raise ValueError(f"{what} fails once")
        if self.version < fixed_in:
            raise ValueError(f"{what} is fixed in version {fixed_in}")


class Ev(msgspec.Struct, frozen=True):
    """An event of the model, as a record."""

    number: int
    key: str
    at: int
    sets: tuple[tuple[str, int, int], ...]
    cancels: tuple[str, ...]
    fixed_in: int
    once: bool

    @classmethod
    def of(cls, event: Event) -> Ev:
        """The record of an event of the model."""
        return cls(*event[:3], tuple((one.name, one.at, one.fixed_in) for one in event.sets), *event[4:])


class Done(msgspec.Struct, frozen=True):
    """What an account has handled."""

    key: str
    what: str


class Note(msgspec.Struct, frozen=True):
    """A message to a mirror."""

    what: str


world = World()


class Bank(NamedTuple):
    """An app, and what a test asks of it."""

    app: tr.App
    events: tr.Topic[Ev, str]
    done: tr.Topic[Done, str]
    accounts: type[Any]
    mirror: type[Any]
    audit: type[Any] | None


def declared(*, audited: bool) -> Bank:
    """Accounts with a mirror. If they are not ``audited``, they alone take the events."""
    app = tr.App("bank", partitions=int(os.environ.get("BANK_PARTITIONS", "1")), on_error="quarantine")
    events = app.topic("events", Ev, key="key", event_time="at", out_of_order=2)
    done = app.topic("done", Done, key="key", watermark=False)

    @app.actor
    class Mirror(tr.Actor):
        """Gets a message for all that the account of the same key has handled; some fail once."""

        seen: list[str] = tr.field(default_factory=list)

        @tr.on_message
        def note(self, note: Note, ctx: tr.Context[str]) -> None:
            """Note it."""
            self.seen.append(note.what)
            world.check(f"mirror of {note.what}", 0, once=note.what.endswith("7"))

    @app.actor
    class Accounts(tr.Actor):
        """Sets and cancels timers, and may fail."""

        handled: list[str] = tr.field(default_factory=list)
        entries: tr.MapState[str, int]

        @tr.process(events)
        def event(self, event: Ev, ctx: tr.Context[str]) -> None:
            """Handle an event."""
            self._handle(f"e{event.number}", ctx)
            for name in event.cancels:
                ctx.cancel_timer(f"t:{name}")
            for name, at, fixed_in in event.sets:
                ctx.set_timer(at, f"t:{name}")
                self.entries[name] = fixed_in
            world.check(f"e{event.number}", event.fixed_in, once=event.once)

        @tr.on_timer("t")
        def due(self, ctx: tr.Context[str]) -> None:
            """Handle a timer."""
            assert ctx.timer_name is not None
            name = ctx.timer_name.partition(":")[2]
            self._handle(f"t{name}", ctx)
            world.check(f"t{name}", self.entries[name])

        def _handle(self, what: str, ctx: tr.Context[str]) -> None:
            self.handled.append(what)
            ctx.emit(done, Done(ctx.key, what))
            ctx.send(Mirror, ctx.key, Note(what))

    if not audited:
        return Bank(app, events, done, Accounts, Mirror, None)

    @app.actor
    class Audit(tr.Actor):
        """Handles the same events, and fails for others."""

        numbers: list[int] = tr.field(default_factory=list)

        @tr.process(events)
        def event(self, event: Ev, ctx: tr.Context[str]) -> None:
            """Note it."""
            self.numbers.append(event.number)
            world.check(f"audit of {event.number}", 1 if event.number % 5 == 4 else 0)

    return Bank(app, events, done, Accounts, Mirror, Audit)


bank, alone = declared(audited=True), declared(audited=False)
app = bank.app
