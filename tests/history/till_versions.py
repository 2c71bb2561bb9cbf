"""An actor in three versions that store the same in other forms: fields, entries and payloads of timers."""

from __future__ import annotations

from typing import Any

import msgspec

import tailrace as tr

NAMES = ["Ada", "Grace", "Joan", "ü"]
LATE_MS = 1_000


class Sale(msgspec.Struct, frozen=True):
    name: tr.Key[str]
    at: tr.EventTime[int]
    cents: int


class Said(msgspec.Struct, frozen=True):
    name: tr.Key[str]
    at: int
    what: str


class One(msgspec.Struct):
    cents: int


class Two(msgspec.Struct):
    total: tuple[int, int]
    currency: str = "EUR"


class Total(msgspec.Struct):
    total: tuple[int, int]


class Three(msgspec.Struct):
    money: str


class LastOne(msgspec.Struct):
    last: int


class LastThree(msgspec.Struct):
    last: str


class Note(msgspec.Struct, frozen=True):
    cents: int


class Note3(msgspec.Struct, frozen=True):
    text: str


def euros(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def last_of(cents: int) -> str:
    """In version 3. Some are the default, which does not expire."""
    return str(cents) if cents % 3 else ""


def app_of(version: int) -> Any:
    """The app of a version, with its input and its actor."""
    app = tr.App("till", version=str(version), partitions=2)
    sales, said = app.topic("sales", Sale), app.topic("said", Said)

    class Base(tr.Actor):
        seen: list[int] = tr.field(default_factory=list)

        @tr.process(sales)
        def sale(self, event: Sale, ctx: tr.Context[str]) -> None:
            note = self.book(event, ctx.key)
            self.seen = [*self.seen[-2:], event.at]
            ctx.set_timer(event.at + LATE_MS, f"late:{event.at}", note)
            if not event.cents % 7:
                ctx.set_timer(event.at + LATE_MS)

        def book(self, event: Sale, key: str) -> msgspec.Struct:
            """Add a sale to the fields; what its timer has to tell."""
            raise NotImplementedError

        @tr.on_timer
        def plain(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, ctx.event_time, "plain"))

    class Early(Base):
        @tr.on_timer("late", payload=Note)
        def late(self, payload: Note, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, ctx.event_time, euros(payload.cents)))

    if version == 1:

        class First(Early):
            cents: int = 0
            last: int = tr.field(default=0, ttl=5 * LATE_MS)
            days: tr.MapState[int, int] = tr.field(ttl=50 * LATE_MS)
            items: tr.ListState[int]

            def book(self, event: Sale, key: str) -> Note:
                self.cents += event.cents
                self.last, self.days[event.at] = event.cents, event.cents
                self.items.append(event.cents)
                return Note(event.cents)

        actor: Any = First
    elif version == 2:

        class Second(Early):
            total: tuple[int, int] = (0, 0)
            currency: str = "EUR"
            last: int = tr.field(default=0, ttl=5 * LATE_MS)
            days: tr.MapState[int, str] = tr.field(ttl=50 * LATE_MS)
            items: tr.ListState[int]

            @staticmethod
            @tr.migrates(from_version="1")
            def two(key: str, old: One) -> Two:
                return Two(divmod(old.cents, 100))

            @staticmethod
            @tr.migrates(from_version="1", of="days")
            def days_two(key: str, old: int) -> str:
                return str(old)

            def book(self, event: Sale, key: str) -> Note:
                self.total = divmod(100 * self.total[0] + self.total[1] + event.cents, 100)
                self.last, self.days[event.at] = event.cents, str(event.cents)
                self.items.append(event.cents)
                return Note(event.cents)

        actor = Second
    else:

        class Third(Base):
            money: str = "0.00"
            currency: str = "EUR"
            last: str = tr.field(default="", ttl=5 * LATE_MS)
            days: tr.MapState[int, list[str]] = tr.field(ttl=50 * LATE_MS)
            items: tr.ListState[float]

            @staticmethod
            @tr.migrates(from_version="1")
            def two(key: str, old: One) -> Two:
                return Two(divmod(old.cents, 100))

            @staticmethod
            @tr.migrates(from_version="1", of="days")
            def days_two(key: str, old: int) -> str:
                return str(old)

            @staticmethod
            @tr.migrates(from_version="2")
            def three(key: str, old: Total) -> Three:
                return Three(euros(100 * old.total[0] + old.total[1]))

            @staticmethod
            @tr.migrates(from_version="2")
            def last_three(key: str, old: LastOne) -> LastThree:
                return LastThree(last_of(old.last))

            @staticmethod
            @tr.migrates(from_version="2", of="days")
            def days_three(key: str, old: str) -> list[str]:
                return [key, old]

            @staticmethod
            @tr.migrates(from_version="2", of="items")
            def items_three(key: str, old: int) -> float:
                return old / 4

            @staticmethod
            @tr.migrates(from_version="2", of="timers:late")
            def late_three(key: str, old: Note) -> Note3:
                return Note3(euros(old.cents))

            def book(self, event: Sale, key: str) -> Note3:
                whole, part = map(int, self.money.split("."))
                self.money = euros(100 * whole + part + event.cents)
                self.last, self.days[event.at] = last_of(event.cents), [key, str(event.cents)]
                self.items.append(event.cents / 4)
                return Note3(euros(event.cents))

            @tr.on_timer("late", payload=Note3)
            def late(self, payload: Note3, ctx: tr.Context[str]) -> None:
                ctx.emit(said, Said(ctx.key, ctx.event_time, payload.text))

        actor = Third
    app.actor(name="Customer")(actor)
    return app, sales, said, actor


newest = app_of(3)[0]
