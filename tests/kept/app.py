"""The app that has written the kept files, in two versions, and what plain Python makes of its events.

Neither may change any more: what lies in ``files/`` was made by it. A new file may have a new app.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from random import Random
from typing import Any

import msgspec

import tailrace as tr
from tailrace.core.records import Output

NAMES = ["Ada", "Grace", "Joan", "ü\0", ""]
REGIONS = 2
DISORDER_MS = 40
LATER_MS = 300
UNDECODABLE = 13
"""A sale of so many cents is written as bytes that are no event, and goes to the dead letters."""
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Kind(Enum):
    """Of a sale."""

    CASH = "cash"
    CARD = "card"


class Sale(msgspec.Struct, frozen=True):
    """``at`` is unique."""

    name: tr.Key[str]
    at: tr.EventTime[int]
    cents: int
    kind: Kind


class Rate(msgspec.Struct, frozen=True):
    """A row of a table."""

    name: tr.Key[str]
    percent: int


class Said(msgspec.Struct, frozen=True):
    """An output."""

    name: tr.Key[str]
    at: int
    what: str


class Told(msgspec.Struct, frozen=True):
    """A message."""

    cents: int


class Best(msgspec.Struct, frozen=True):
    """A durable value of a type of its own."""

    at: datetime
    price: Decimal
    kind: Kind


class Cents(msgspec.Struct):
    """What version 1 has in the place of ``Money``."""

    cents: int


class Money(msgspec.Struct):
    """What version 2 has."""

    money: str


class Note(msgspec.Struct, frozen=True):
    """What a timer of version 1 has with it."""

    cents: int


class Note2(msgspec.Struct, frozen=True):
    """The same in version 2."""

    money: str


def money(cents: int) -> str:
    """As version 2 stores it."""
    return f"{cents // 100}.{cents % 100:02}"


def _app(version: int) -> tr.App:
    app = tr.App("keeper", partitions=2, version=str(version), on_error="dead-letter-all")
    sales = app.topic("sales", Sale, out_of_order=f"{DISORDER_MS}ms", late="drop")
    rates, said = app.table("rates", Rate), app.topic("said", Said)

    class Base(tr.Actor, order="arrival"):
        best: Best | None = None
        tags: dict[str, tuple[int, bool]] = tr.field(default_factory=dict)
        last: int = tr.field(default=0, ttl="30d")
        rate: int = 0
        days: tr.MapState[tuple[int, str], float]
        short: tr.MapState[int, int] = tr.field(ttl="30d")
        items: tr.ListState[int]

        @tr.process(rates)
        def rated(self, event: Rate, ctx: tr.Context[str]) -> None:
            self.rate = event.percent

        @tr.on_timer
        def plain(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, ctx.event_time, "plain"))

        def take(self, event: Sale, ctx: tr.Context[str]) -> None:
            best = Best(EPOCH + timedelta(milliseconds=event.at), Decimal(event.cents) / 4, event.kind)
            if self.best is None or best.price > self.best.price:
                self.best = best
            self.tags = {**self.tags, event.kind.value: (event.cents, event.cents % 2 == 0)}
            self.last, self.short[event.at] = event.cents, event.cents
            self.days[event.at // 10 % 5, event.kind.value] = event.cents / 8
            self.items.append(event.cents)
            ctx.send(Region, f"r{event.cents % REGIONS}", Told(event.cents))
            if not event.cents % 7:
                ctx.set_timer(event.at + LATER_MS)

    if version == 1:

        class First(Base):
            cents: int = 0

            @tr.process(sales)
            def sale(self, event: Sale, ctx: tr.Context[str]) -> None:
                self.take(event, ctx)
                self.cents += event.cents
                ctx.set_timer(event.at + LATER_MS, f"late:{event.at}", Note(event.cents))

            @tr.on_timer("late", payload=Note)
            def late(self, payload: Note, ctx: tr.Context[str]) -> None:
                ctx.emit(said, Said(ctx.key, ctx.event_time, money(payload.cents)))

        customer: Any = First
    else:

        class Second(Base):
            money: str = "0.00"

            @staticmethod
            @tr.migrates(from_version="1")
            def to_money(key: str, old: Cents) -> Money:
                return Money(money(old.cents))

            @staticmethod
            @tr.migrates(from_version="1", of="timers:late")
            def to_note(key: str, old: Note) -> Note2:
                return Note2(money(old.cents))

            @tr.process(sales)
            def sale(self, event: Sale, ctx: tr.Context[str]) -> None:
                self.take(event, ctx)
                self.money = money(int(self.money.replace(".", "")) + event.cents)
                ctx.set_timer(event.at + LATER_MS, f"late:{event.at}", Note2(money(event.cents)))

            @tr.on_timer("late", payload=Note2)
            def late(self, payload: Note2, ctx: tr.Context[str]) -> None:
                ctx.emit(said, Said(ctx.key, ctx.event_time, payload.money))

        customer = Second
    app.actor(name="Customer")(customer)

    @app.actor
    class Path(tr.Actor, order="event-time"):
        steps: list[int] = tr.field(default_factory=list)

        @tr.process(sales)
        def step(self, event: Sale, ctx: tr.Context[str]) -> None:
            self.steps.append(event.at)
            ctx.emit(said, Said(ctx.key, event.at, f"step {len(self.steps)}"))

    @app.actor
    class Region(tr.Actor):
        total: int = 0

        @tr.on_message
        def told(self, message: Told, ctx: tr.Context[str]) -> None:
            self.total += message.cents

    return app


ONE, TWO = map(_app, (1, 2))


# --- what happens


def drawn(seed: int, first: int, count: int) -> list[Sale | Rate]:
    """Events in the order of their arrival, out of order by less than is declared."""
    random, found = Random(f"{seed} {first}"), list[Sale | Rate]()
    for number in range(first, first + count):
        name = random.choice(NAMES)
        if random.random() < 0.1:
            found.append(Rate(name, number))
        else:
            at = 10_000 + 20 * number - random.randrange(2) * 30 - 1
            found.append(Sale(name, at, random.randrange(40), random.choice([*Kind])))
    return found


def outputs(events: Sequence[Sale | Rate]) -> list[Output]:
    """As records."""
    found, at = list[Output](), 0
    for one in events:
        topic, at = ("sales", one.at) if isinstance(one, Sale) else ("rates", at)
        value = msgspec.json.encode(one)
        is_bad = isinstance(one, Sale) and one.cents == UNDECODABLE
        found.append(Output(topic, one.name.encode(), b"{" if is_bad else value, at))
    return found


# --- what must come of it


def expected(
    events: Sequence[Sale | Rate], version: int, stands_at: Callable[[str, str], int]
) -> dict[tuple[str, str], dict[str, str]]:
    """By actor and key, its picture (see ``describe_rows``), in plain Python. ``stands_at``: where an actor of a key stands."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    sales: dict[str, list[Sale]] = {one.name: [] for one in events}
    rates = {one.name: one.percent for one in events if isinstance(one, Rate)}
    totals = Counter[str]()
    for one in events:
        if isinstance(one, Sale) and one.cents != UNDECODABLE:
            sales[one.name].append(one)
            totals[f"r{one.cents % REGIONS}"] += one.cents
    for name, some in sales.items():
        found["Customer", name] = _customer(some, rates.get(name, 0), version, stands_at("Customer", name))
        mark = stands_at("Path", name)
        if steps := sorted(one.at for one in some if one.at <= mark):
            found["Path", name] = {"steps": repr(steps)}
    return {**found, **{("Region", name): {"total": repr(total)} for name, total in totals.items()}}


def _customer(sales: list[Sale], rate: int, version: int, stands_at_ms: int) -> dict[str, str]:
    total, month_ms = sum(one.cents for one in sales), 30 * 86_400_000
    shown: dict[str, object] = {"rate": rate, "best": None, "tags": {}, "last": 0}
    shown |= {"cents": total} if version == 1 else {"money": money(total)}
    if sales:
        best = max(sales, key=lambda one: one.cents)  # the first of several
        at = EPOCH + timedelta(milliseconds=best.at)
        shown["best"] = Best(at, Decimal(best.cents) / 4, best.kind)
        shown["tags"] = {one.kind.value: (one.cents, one.cents % 2 == 0) for one in sales}
        shown["last"], shown["len(items)"] = sales[-1].cents, len(sales)
        shown |= {f"items[{at}]": one.cents for at, one in enumerate(sales)}
        shown |= {f"days[{(one.at // 10 % 5, one.kind.value)}]": one.cents / 8 for one in sales}
    found = {name: repr(one) for name, one in shown.items()}
    for one in sales:
        found[f"short[{one.at}]"] = f"{one.cents}, expires {_time(one.at + month_ms)}"
        due = one.at + LATER_MS
        if due > stands_at_ms:
            payload = Note(one.cents) if version == 1 else Note2(money(one.cents))
            found[f"timer 'late:{one.at}'"] = f"{_time(due)}, {payload!r}"
            found |= {} if one.cents % 7 else {f"timer at {_time(due)}": "set"}
        if found["last"] != "0":
            found["last expires"] = _time(one.at + month_ms)
    return found


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def expected_said(events: Sequence[Sale | Rate]) -> list[tuple[str, int, str]]:
    """All outputs, once all has ended."""
    sales = [one for one in events if isinstance(one, Sale) and one.cents != UNDECODABLE]
    found, counts = list[tuple[str, int, str]](), Counter[str]()
    for one in sorted(sales, key=lambda one: one.at):
        counts[one.name] += 1
        found.append((one.name, one.at, f"step {counts[one.name]}"))
        found.append((one.name, one.at + LATER_MS, money(one.cents)))
        found += [] if one.cents % 7 else [(one.name, one.at + LATER_MS, "plain")]
    return sorted(found)
