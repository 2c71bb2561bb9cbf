"""The apps of the model team: one small service in versions that differ by one step of the upgrade catalogue each.

``tests.months.apps:seed_17_v2`` is the second version of the service of seed 17, in whatever process asks for it.

``Shop`` sums sales in windows that timers close, and hands each sale on to ``Region`` by a topic that is keyed otherwise.
``Region`` does the same by the watermark that ``Shop`` publishes. ``Board`` gets messages when a window closes. Some
sales cannot be handled.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any

import msgspec

import tailrace as tr

MODULE = "tests.months.apps"
WINDOW_MS = 10_000
DISORDER_MS = 5_000
UNLUCKY = 13
"""The amount of a sale that a faulty handler cannot handle."""
SHOPS = tuple("abcdefgh")


class Sale(msgspec.Struct, frozen=True):
    """What is sold in a shop."""

    shop: str
    at: int
    amount: int


class Note(msgspec.Struct, frozen=True):
    """A second input, which later versions read as well."""

    shop: str
    at: int
    weight: int


class Part(msgspec.Struct, frozen=True):
    """A sale as it is handed on within the app."""

    region: str
    at: int
    amount: int


class Total(msgspec.Struct, frozen=True):
    """A window that has closed."""

    of: str
    end: int
    amount: int


class Closed(msgspec.Struct, frozen=True):
    """The message that a window has closed."""

    end: int
    amount: int


def region_of(shop: str) -> str:
    """Three shops to a region."""
    return f"region-{(ord(shop) - ord('a')) // 3}"


def end_of(at: int) -> int:
    """The end of the window that an instant belongs to."""
    return at // WINDOW_MS * WINDOW_MS + WINDOW_MS


@dataclass(frozen=True, slots=True)
class Version:
    """What a version of the code does. Apps are made of it, and the oracle goes by it."""

    number: int
    partitions: int
    factor: int = 1
    """Amounts are multiplied by it; a correction changes it."""
    faulty: bool = True
    """Whether unlucky sales fail."""
    extra: bool = False
    """Whether the field ``extra`` is declared."""
    renamed: bool = False
    """Whether the field ``total`` is called otherwise in the code, and the class too."""
    ttl_ms: int = 20_000
    sends: bool = False
    notes: bool = False
    idle: bool = False
    """Whether an input falls idle as soon as there is nothing to read."""


Upgrade = Callable[[Version, Random], Version]

UPGRADES: dict[str, Upgrade] = {
    "field added or declared again": lambda one, _: replace(one, extra=True),
    "field removed": lambda one, _: replace(one, extra=False),
    "field and class renamed": lambda one, _: replace(one, renamed=not one.renamed),
    "time to live changed": lambda one, random: replace(one, ttl_ms=random.choice((5_000, 30_000, 90_000))),
    "handler corrected": lambda one, _: replace(one, factor=one.factor + 1),
    "failure corrected": lambda one, _: replace(one, faulty=False),
    "message introduced": lambda one, _: replace(one, sends=True),
    "idle time changed": lambda one, _: replace(one, idle=not one.idle),
    "input added": lambda one, _: replace(one, notes=True),
}
VERSIONS = 6


def versions_of(seed: int) -> list[tuple[str, Version]]:
    """The versions of a seed's service, each with the name of the upgrade that leads to it."""
    random = Random(f"versions {seed}")
    first = Version(1, random.choice((1, 2, 3)), extra=random.random() < 0.5)
    found = [("", first)]
    while len(found) < VERSIONS:
        name = random.choice(list(UPGRADES))
        last = found[-1][1]
        changed = UPGRADES[name](last, random)
        if changed != last:
            found.append((name, replace(changed, number=last.number + 1)))
    return found


def reference(seed: int, version: Version) -> str:
    """How the command line names the app of a version."""
    return f"{MODULE}:seed_{seed}_v{version.number}"


def __getattr__(name: str) -> tr.App:
    kind, _, rest = name.partition("_")
    seed, _, number = rest.partition("_v")
    if kind != "seed" or not seed.isdigit() or not number.isdigit():
        raise AttributeError(name)
    return app_of(int(seed), int(number))


@lru_cache(maxsize=16)
def app_of(seed: int, number: int) -> tr.App:
    """The app of one version of a seed."""
    return make(versions_of(seed)[number - 1][1])


def make(version: Version) -> tr.App:
    """The app of a version."""
    app = tr.App("months", partitions=version.partitions, on_error="dead-letter", version=str(version.number))
    sales = app.topic(
        "sales",
        Sale,
        key="shop",
        key_type=str,
        event_time="at",
        out_of_order=DISORDER_MS,
        idle_after=_idle_after(version),
    )
    parts = app.topic("parts", Part, key="region", key_type=str, event_time="at", idle_after="1d")
    totals = app.topic("totals", Total, key="of", key_type=str, event_time="end")
    board: Any = _board(app) if version.sends else None

    class Shop(tr.Actor, order="arrival"):
        count: int = 0
        if version.renamed:
            sold: int = tr.field(default=0, name="total")
        else:
            total: int = 0
        if version.extra:
            extra: int = 0
        last: int = tr.field(default=0, ttl=version.ttl_ms)
        open: tr.MapState[int, int]

        @tr.process(sales)
        def sale(self, event: Sale, ctx: tr.Context[str]) -> None:
            if version.faulty and event.amount == UNLUCKY:
                raise ValueError("an unlucky sale")
            amount = event.amount * version.factor
            self.count += 1
            if version.renamed:
                self.sold += amount
            else:
                self.total += amount
            if version.extra:
                self.extra += amount
            end = end_of(event.at)
            self.open[end] = self.open.get(end, 0) + amount
            ctx.set_timer(end - 1)
            if not ctx.is_late:
                ctx.emit(parts, Part(region_of(event.shop), event.at, amount))
                if event.at > self.last:
                    self.last = event.at

        if board is not None:

            @tr.on_timer
            def closed(self, ctx: tr.Context[str]) -> None:
                end = ctx.event_time + 1
                amount = self.open.pop(end)
                ctx.emit(totals, Total(ctx.key, end, amount))
                ctx.send(board, region_of(ctx.key), Closed(end, amount))

        else:

            @tr.on_timer
            def close(self, ctx: tr.Context[str]) -> None:
                end = ctx.event_time + 1
                ctx.emit(totals, Total(ctx.key, end, self.open.pop(end)))

        if version.notes:
            weight: int = 0

            @tr.process(_notes(app, version))
            def note(self, event: Note, ctx: tr.Context[str]) -> None:
                self.weight += event.weight

    @app.actor
    class Region(tr.Actor):
        count: int = 0
        total: int = 0
        open: tr.MapState[int, int]

        @tr.process(parts)
        def part(self, event: Part, ctx: tr.Context[str]) -> None:
            self.count += 1
            self.total += event.amount
            end = end_of(event.at)
            self.open[end] = self.open.get(end, 0) + event.amount
            ctx.set_timer(end - 1)

        @tr.on_timer
        def close(self, ctx: tr.Context[str]) -> None:
            end = ctx.event_time + 1
            ctx.emit(totals, Total(ctx.key, end, self.open.pop(end)))

    if version.renamed:
        Shop.__name__ = "Store"
    app.actor(name="Shop")(Shop)
    return app


def _notes(app: tr.App, version: Version) -> tr.Topic[Note, str]:
    return app.topic(
        "notes",
        Note,
        key="shop",
        key_type=str,
        event_time="at",
        out_of_order=DISORDER_MS,
        idle_after=_idle_after(version),
    )


def _idle_after(version: Version) -> str:
    return "50ms" if version.idle else "1d"


def _board(app: tr.App) -> Any:
    @app.actor
    class Board(tr.Actor):
        windows: int = 0
        amount: int = 0

        @tr.on_message
        def told(self, message: Closed, ctx: tr.Context[str]) -> None:
            self.windows += 1
            self.amount += message.amount

    return Board
