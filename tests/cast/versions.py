"""An app in versions that differ by one step of the upgrade catalogue each, and what its keys come to under any of them.

``tests.cast.versions:v_17_2`` is version 2 of seed 17, in whatever process asks for it. The amounts of sales are multiplied by a factor,
which a correction changes. Windows have a sum each, and nothing is late but what is redriven. Some sales cannot be handled.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random

import msgspec

import tailrace as tr
from tests.cast.member import NEVER, Event, Said

WINDOW_MS = 10_000
DISORDER_MS = 2_000
VERSIONS = 5


class Noted(msgspec.Struct):
    """What a version that sends tells the board."""

    n: int


def is_unlucky(event: Event) -> bool:
    """Whether a faulty version fails with it."""
    return event.n % 11 == 3


@dataclass(frozen=True, slots=True)
class Version:
    """What a version of the code does. The app is made of it, and the oracle goes by it."""

    number: int
    factor: int = 1
    faulty: bool = True
    extra: bool = False
    """Whether the field ``extra`` is declared."""
    renamed: bool = False
    """Whether the field ``total`` and the class are called otherwise in the code."""
    sends: bool = False


UPGRADES: tuple[Callable[[Version], Version], ...] = (
    lambda one: replace(one, factor=one.factor + 1),
    lambda one: replace(one, faulty=False),
    lambda one: replace(one, extra=not one.extra),
    lambda one: replace(one, renamed=not one.renamed),
    lambda one: replace(one, sends=True),
)


def versions_of(seed: int) -> list[Version]:
    """The versions of a seed's app."""
    random = Random(f"versions {seed}")
    found = [Version(0, extra=random.random() < 0.5)]
    while len(found) < VERSIONS:
        changed = random.choice(UPGRADES)(found[-1])
        if changed != found[-1]:
            found.append(replace(changed, number=len(found)))
    return found


def __getattr__(name: str) -> tr.App:
    kind, _, rest = name.partition("_")
    seed, _, number = rest.partition("_")
    if kind != "v" or not number.isdigit():
        raise AttributeError(name)
    return make(versions_of(int(seed))[int(number)], int(seed) % 3 + 1)


def make(version: Version, partitions: int) -> tr.App:
    """The app of a version."""
    app = tr.App("versions", partitions=partitions, on_error="dead-letter", version=str(version.number))
    sales = app.topic("sales", Event, out_of_order=DISORDER_MS, idle_after=NEVER)
    said = app.topic("said", Said)

    @app.actor
    class Board(tr.Actor):
        amount: int = 0

        @tr.on_message
        def noted(self, message: Noted, ctx: tr.Context[str]) -> None:
            self.amount += message.n

    class Shop(tr.Actor, order="arrival"):
        count: int = 0
        if version.renamed:
            sold: int = tr.field(default=0, name="total")
        else:
            total: int = 0
        if version.extra:
            extra: int = 0
        open: tr.MapState[int, int]

        @tr.process(sales)
        def sale(self, event: Event, ctx: tr.Context[str]) -> None:
            if version.faulty and is_unlucky(event):
                raise ValueError("an unlucky sale")
            amount = event.n * version.factor
            self.count += 1
            if version.renamed:
                self.sold += amount
            else:
                self.total += amount
            if version.extra:
                self.extra += amount
            if not is_unlucky(event):
                end = event.at // WINDOW_MS * WINDOW_MS + WINDOW_MS
                self.open[end] = self.open.get(end, 0) + amount
                ctx.set_timer(end, f"end:{end}")
            if version.sends:
                ctx.send(Board, event.to, Noted(event.n))

        @tr.on_timer("end")
        def close(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, ctx.event_time, "window", self.open.pop(ctx.event_time)))

    if version.renamed:
        Shop.__name__ = "Store"
    app.actor(name="Shop")(Shop)
    return app


def end_of(event: Event) -> int:
    """The end of the window of an event."""
    return event.at // WINDOW_MS * WINDOW_MS + WINDOW_MS


@dataclass(slots=True)
class Kept:
    """What all keys have come to."""

    counts: Counter[str] = field(default_factory=Counter[str])
    totals: Counter[str] = field(default_factory=Counter[str])
    extras: Counter[str] = field(default_factory=Counter[str])
    board: Counter[str] = field(default_factory=Counter[str])
    windows: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))


def kept_of(handled: Iterable[tuple[Event, Version]]) -> Kept:
    """The oracle: what was handled, each by a version."""
    found = Kept()
    for event, version in handled:
        amount = event.n * version.factor
        found.counts[event.key] += 1
        found.totals[event.key] += amount
        if version.extra:
            found.extras[event.key] += amount
        if version.sends:
            found.board[event.to] += event.n
        if not is_unlucky(event):
            found.windows[event.key][end_of(event)] += amount
    return found
