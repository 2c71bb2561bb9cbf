"""A model of quarantine, which tests its theory (docs/adr/0029). It is no part of the framework.

One actor, one task, two inputs: events and commands. It has what can go wrong in the engine: state that is committed and lost by a kill,
a drain that is left after any unit, a queue that has to be found again after a start, and a tape along which a second run must come to
the same state at every commit. ``Rules`` switches single rules off: the tests must notice each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

NEVER = -1
LIMIT = 4
"""How many events of one key may wait."""


class SetTimer(NamedTuple):
    """What a handler sets. ``fixed_in``: the version of the code in which the timer's handler no longer fails."""

    name: str
    at: int
    fixed_in: int


class Event(NamedTuple):
    """An event and what its handler does. ``fixed_in``: as for a timer; ``once``: it fails, but not a second time."""

    number: int
    key: str
    at: int
    sets: tuple[SetTimer, ...] = ()
    cancels: tuple[str, ...] = ()
    fixed_in: int = 0
    once: bool = False


class Command(NamedTuple):
    """What a person decides about the failure with this number."""

    key: str
    failure: int
    action: str
    """``release``, ``drop`` or ``drop-all``."""
    saw: str = ""
    """What had failed when it was decided. Only the test looks at it."""


class Kept(NamedTuple):
    """An event that waits, and the watermark when it arrived."""

    event: Event
    watermark: int


Unit: TypeAlias = tuple[str, int]
"""What the tape calls a unit: an event by its position (its number), a timer by how many have fired before."""


@dataclass
class Waiting:
    """The quarantine of a key. ``first``: the name of the timer that failed; empty if it was an event."""

    failure: int
    first: str
    kept: list[Kept] = field(default_factory=list[Kept])
    releasing: bool = False


@dataclass
class Key:
    """The state of a key: what was handled, and the timers pending."""

    handled: list[str] = field(default_factory=list[str])
    timers: dict[str, SetTimer] = field(default_factory=dict[str, SetTimer])
    waiting: Waiting | None = None


@dataclass
class State:
    """All that a commit makes durable."""

    position: int = 0
    commands: int = 0
    watermark: int = NEVER
    keys: dict[str, Key] = field(default_factory=dict[str, Key])
    dropped: list[str] = field(default_factory=list[str])
    """The dead letters."""
    failed: int = 0
    fired: int = 0
    released: int = 0

    @property
    def drained(self) -> int:
        """What drains have done; along the tape, a drain is left where it was left."""
        return self.fired + self.released


class Taped(NamedTuple):
    """A commit on the tape."""

    causes: list[str]
    skips: set[Unit]
    drained: int
    state: State


class Rules(NamedTuple):
    """The rules of the theory; each can be switched off."""

    all_that_follows_waits: bool = True
    timers_wait: bool = True
    timers_between_what_was_kept: bool = True
    a_failure_keeps_its_event: bool = True
    a_command_names_its_failure: bool = True
    failures_are_on_the_tape: bool = True
    freed_by_the_last_unit: bool = True
    full_stops: bool = True


class FullError(Exception):
    """As many events of a key wait as may."""


class FailedError(Exception):
    """A handler has failed."""


Fails: TypeAlias = Callable[[str, int, bool], bool]
"""Whether a unit fails now: its name, the version in which it is fixed, whether only once."""


class Task:
    """The task. ``along``: the failures on a tape; then the handlers of these units are not called."""

    def __init__(self, state: State, fails: Fails, rules: Rules, along: set[Unit] | None = None) -> None:
        self.state, self.fails, self.rules, self.along = state, fails, rules, along
        self.causes: list[str] = []
        self.skips: set[Unit] = set()

    # --- causes ---

    def take(self, event: Event, budget: int) -> None:
        """Take the next event; it is handled, or it waits."""
        state, key = self.state, self._key(event.key)
        waiting = key.waiting
        if waiting is not None and (self.rules.all_that_follows_waits or event.fixed_in):
            if self.rules.full_stops and self.along is None and len(waiting.kept) >= LIMIT:
                raise FullError(event.key)
            waiting.kept.append(Kept(event, state.watermark))
            if not self.rules.full_stops:
                del waiting.kept[LIMIT:]
        elif self._fails(("event", state.position), f"e{event.number}", event.fixed_in, event.once):
            key.waiting = Waiting(state.failed, "", [Kept(event, state.watermark)])
            state.failed += 1
        else:
            self._handle(key, event)
        state.position += 1
        state.watermark = max(state.watermark, event.at - 3)
        self.causes.append("event")
        self.drain(budget)

    def command(self, command: Command, budget: int) -> None:
        """Take the next command. One about another failure than the last of its key does nothing."""
        state, key = self.state, self._key(command.key)
        state.commands += 1
        self.causes.append("command")
        waiting = key.waiting
        if waiting is None or waiting.releasing:
            return
        if self.rules.a_command_names_its_failure and waiting.failure != command.failure:
            return
        if command.action != "release":
            count = len(waiting.kept) if command.action == "drop-all" else 0 if waiting.first else 1
            state.dropped += [f"e{one.event.number}" for one in waiting.kept[:count]]
            del waiting.kept[:count]
            if waiting.first:
                state.dropped.append(f"t{waiting.first}")
                key.timers.pop(waiting.first, None)
        waiting.releasing = True
        self._free(key)
        self.drain(budget)

    def drain(self, budget: int) -> bool:
        """Do what is due, at most ``budget`` units. Returns whether nothing is left."""
        while (unit := next(self._due(), None)) is not None:
            if budget <= 0:
                return False
            budget -= 1
            unit()
        return True

    @property
    def draining(self) -> bool:
        """Whether something is due."""
        return next(self._due(), None) is not None

    # --- units ---

    def _due(self) -> Iterator[Callable[[], None]]:
        """What is due next: of a key that is released, before the timers of others."""
        for key in self.state.keys.values():
            if key.waiting is not None and key.waiting.releasing:
                yield self._due_of(key, key.waiting) or partial(self._end, key)
        found = [
            (one.at, name, one.name, key)
            for name, key in self.state.keys.items()
            if key.waiting is None or not self.rules.timers_wait
            for one in key.timers.values()
            if one.at <= self.state.watermark
        ]
        if found:
            *_, timer, key = min(found, key=lambda one: one[:3])
            yield lambda: self._fire(key, timer)

    def _due_of(self, key: Key, waiting: Waiting) -> Callable[[], None] | None:
        """What is next for a key that is released: its timers up to the watermark that the next event came with, or that event."""
        until = waiting.kept[0].watermark if waiting.kept else self.state.watermark
        if waiting.kept and not self.rules.timers_between_what_was_kept:
            until = NEVER
        due = min([(one.at, one.name) for one in key.timers.values() if one.at <= until], default=None)
        if due is not None:
            return lambda: self._fire(key, due[1])
        return (lambda: self._again(key, waiting)) if waiting.kept else None

    def _again(self, key: Key, waiting: Waiting) -> None:
        """Handle the first event that was kept."""
        state, kept = self.state, waiting.kept[0]
        state.released += 1
        # The event has failed in an earlier commit, which a command has named: no commit has it twice.
        if self._fails(
            ("event", kept.event.number), f"e{kept.event.number}", kept.event.fixed_in, kept.event.once
        ):
            if not self.rules.a_failure_keeps_its_event:
                del waiting.kept[0]
            self._failed(key, "")
        else:
            del waiting.kept[0]
            self._handle(key, kept.event)
            self._free(key)

    def _fire(self, key: Key, name: str) -> None:
        state, timer = self.state, key.timers[name]
        state.fired += 1
        # One that fails has fired, too: when it fires again, it is another unit.
        if self._fails(("timer", state.fired - 1), f"t{name}", timer.fixed_in, once=False):
            self._failed(key, name)
        else:
            del key.timers[name]
            key.handled.append(f"t{name}")
            self._free(key)

    def _failed(self, key: Key, first: str) -> None:
        """The key goes into quarantine, or back to it. What has failed is the first of what waits."""
        kept = [] if key.waiting is None else key.waiting.kept
        key.waiting = Waiting(self.state.failed, first, kept)
        self.state.failed += 1

    def _free(self, key: Key) -> None:
        """The unit after which nothing waits any longer also ends the quarantine."""
        waiting = key.waiting
        if waiting is None or not waiting.releasing or self._due_of(key, waiting) is not None:
            return
        if self.rules.freed_by_the_last_unit:
            self._end(key)

    def _end(self, key: Key) -> None:
        key.waiting = None

    def _handle(self, key: Key, event: Event) -> None:
        key.handled.append(f"e{event.number}")
        for name in event.cancels:
            key.timers.pop(name, None)
        for one in event.sets:
            key.timers[one.name] = one

    def _fails(self, unit: Unit, name: str, fixed_in: int, once: bool) -> bool:
        if self.along is not None and self.rules.failures_are_on_the_tape:
            return unit in self.along
        failed = self.fails(name, fixed_in, once)
        if failed:
            self.skips.add(unit)
        return failed

    def _key(self, name: str) -> Key:
        return self.state.keys.setdefault(name, Key())

    # --- commits ---

    def commit(self) -> Taped:
        """The commit: a copy of the state, and what led to it."""
        taped = Taped(self.causes, self.skips, self.state.drained, deepcopy(self.state))
        self.causes, self.skips = [], set()
        return taped
