"""An app of two stages with timers, messages and a lifetime, a history out of order, and its states by plain Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

import tailrace as tr
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of

PARTITIONS, EMPTY = 4, 3
SECOND_MS, MINUTE_MS = 1_000, 60_000
BEGIN_MS = 1_767_225_600_000
IDLE_MS, KEPT_MS, DISORDER_MS = 5 * MINUTE_MS, 10 * MINUTE_MS, MINUTE_MS
NAMES = [
    name
    for name in (f"{group}{number}" for group in "abc" for number in range(5))
    if partition_of(name.encode(), PARTITIONS) != EMPTY
]


class Tick(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    amount: int


class Tock(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    amount: int


class Fact(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]


class Told(msgspec.Struct, frozen=True):
    who: str
    total: int


app = tr.App("moments", partitions=PARTITIONS)
ticks = app.topic("ticks", Tick, out_of_order="1m")
tocks = app.topic("tocks", Tock, out_of_order="1m")
facts = app.topic("facts", Fact, out_of_order=0)


@app.actor
class Account(tr.Actor, order="event-time"):
    total: int = 0
    idle: int = 0
    last: int = tr.field(default=0, ttl="10m")
    recent: tr.ListState[int]
    by: tr.MapState[str, int]

    @tr.process(ticks)
    def tick(self, event: Tick, ctx: tr.Context[str]) -> None:
        self.total += event.amount
        self.last = event.at
        self.recent.append(event.amount)
        if len(self.recent) > 3:
            self.recent.popleft()
        self.by["tick"] = self.by.get("tick", 0) + 1
        ctx.set_timer(event.at + IDLE_MS, "idle")

    @tr.process(tocks)
    def tock(self, event: Tock, ctx: tr.Context[str]) -> None:
        self.total = self.total * 3 % 1009 + event.amount
        self.by[f"tock {event.amount % 3}"] = self.total
        ctx.send(Group, ctx.key[0], Told(ctx.key, self.total))

    @tr.on_timer("idle")
    def quiet(self, ctx: tr.Context[str]) -> None:
        self.idle += 1
        self.total *= 2


@app.actor
class Group(tr.Actor, order="event-time"):
    heard: list[str] = tr.field(default_factory=list)

    @tr.on_message
    def told(self, message: Told, ctx: tr.Context[str]) -> None:
        self.heard = [*self.heard, f"{message.who} {message.total}"]


@app.actor
class Feed(tr.Actor):
    count: int = 0
    last: int = 0

    @tr.process(facts)
    def fact(self, event: Fact, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.last = event.at


Event = Tick | Tock | Fact


def history(seed: int, count: int) -> list[Event]:
    """Events as they arrive, each at a second of its own: facts in the order of their times, others up to a minute out of it."""
    random = Random(seed)
    found: list[tuple[int, Event]] = []
    for at in sorted(random.sample(range(count * 20), count)):
        at_ms, key, amount = BEGIN_MS + at * SECOND_MS, random.choice(NAMES), random.randrange(100)
        event: Event = random.choice((Tick(key, at_ms, amount), Tock(key, at_ms, amount), Fact(key, at_ms)))
        found.append((at_ms + (0 if isinstance(event, Fact) else random.randrange(DISORDER_MS)), event))
    return [event for _, event in sorted(found, key=lambda one: one[0])]


def outputs(events: Iterable[Event]) -> list[Output]:
    return [
        Output(f"{type(one).__name__.lower()}s", one.key.encode(), msgspec.json.encode(one), one.at)
        for one in events
    ]


@dataclass
class _Account:
    total: int = 0
    idle: int = 0
    last: int = 0
    recent: list[int] = field(default_factory=list)
    by: dict[str, int] = field(default_factory=dict)
    due: int | None = None
    expires: int | None = None

    def reach(self, at_ms: int) -> None:
        """The timer and the expiry up to a time."""
        if self.due is not None and self.due <= at_ms:
            self.due, self.idle, self.total = None, self.idle + 1, self.total * 2
        if self.expires is not None and self.expires <= at_ms:
            self.expires, self.last = None, 0


def states(events: Iterable[Event], until_ms: int) -> dict[str, dict[str, dict[str, Any]]]:
    """By actor and key, the state that follows from exactly the events up to a time, in their order."""
    accounts: dict[str, _Account] = {}
    heard: dict[str, list[str]] = {}
    feeds: dict[str, list[int]] = {}
    for one in sorted(events, key=lambda one: one.at):
        if one.at > until_ms:
            break
        if isinstance(one, Fact):
            feeds.setdefault(one.key, []).append(one.at)
            continue
        account = accounts.setdefault(one.key, _Account())
        account.reach(one.at - 1)
        if isinstance(one, Tick):
            account.total += one.amount
            account.last, account.due, account.expires = one.at, one.at + IDLE_MS, one.at + KEPT_MS
            account.recent = [*account.recent, one.amount][-3:]
            account.by["tick"] = account.by.get("tick", 0) + 1
        else:
            account.total = account.total * 3 % 1009 + one.amount
            account.by[f"tock {one.amount % 3}"] = account.total
            heard.setdefault(one.key[0], []).append(f"{one.key} {account.total}")
    for account in accounts.values():
        account.reach(until_ms)
    names = ("total", "idle", "last", "recent", "by")
    return {
        "Account": {key: {name: getattr(one, name) for name in names} for key, one in accounts.items()},
        "Group": {key: {"heard": one} for key, one in heard.items()},
        "Feed": {key: {"count": len(one), "last": one[-1]} for key, one in feeds.items()},
    }
