"""Services to replay: shops that count their sales, and one to which everything happens that can."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

import tailrace as tr
from tailrace.core.storage import Store
from tailrace.history.comparing.replayed_state import LiveState
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions, ReplayReport
from tailrace.state.store_cut import decode_store_cut
from tailrace.testing import COMMIT, CRASH, Clock, Harness, Watermark
from tests.testing import everything
from tests.testing.everything import NAMES, WHATS, Do

SHOPS = "abd"
"""Of both partitions."""


class Sale(msgspec.Struct, frozen=True):
    shop: str
    at: int
    cents: int


class Total(msgspec.Struct, frozen=True):
    shop: str
    cents: int


def shops(
    *, fee: int = 0, twice: str = "", fails: str = "", version: str = "1", partitions: int = 2
) -> tr.App:
    """Counts sales. The arguments are what may be wrong with the code of a replay."""
    app = tr.App("shops", partitions=partitions, version=version)
    sold_at = app.topic("sales", Sale, key="shop", event_time="at", out_of_order=10)
    totals = app.topic("totals", Total, key="shop")

    @app.actor
    class Shop(tr.Actor):
        cents: int = 0
        sales: int = 0
        by_cents: tr.MapState[int, int]

        @tr.process(sold_at)
        def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
            if event.shop == fails:
                raise ValueError("not this one")
            self.sales += 1
            self.cents += event.cents + (fee if event.shop == "b" else 0)
            self.by_cents[event.cents] = self.by_cents.get(event.cents, 0) + 1
            for _ in range(1 + (event.shop == twice)):
                ctx.emit(totals, Total(event.shop, self.cents))
            ctx.set_timer(event.at + 5, "closing")

        @tr.on_timer("closing")
        def closed(self, ctx: tr.Context[str]) -> None:
            self.sales = 0

    return app


def lived(app: tr.App, *, commits: int = 5, **options: Any) -> Harness:
    """A service that has sold for a while."""
    h = Harness(app, **options)
    for number in range(commits):
        h.send(
            app.plan().topics["sales"],
            *(Sale(shop, 50 * number + 10 * at, 100 + at) for at, shop in enumerate(SHOPS * 2)),
        )
        h.advance_clock_by(1_000)
    return h


def random_service(seed: int) -> Harness:
    """Everything that can happen, at random."""
    random = Random(seed)
    h = Harness(everything.app, partitions=2, commit_every=random.choice((1, 7, 50)), now_ms=1_000)
    at_ms, now_ms = 0, 1_000
    topics = (everything.main, everything.side, everything.slow, everything.strict)
    for _ in range(60):
        at_ms += random.randrange(8)
        do = Do(
            random.choice("abcdef"), at_ms - random.randrange(25), random.choice(WHATS), random.randrange(40)
        )
        h.send(random.choice(topics), msgspec.structs.replace(do, name=random.choice(NAMES)))
        if random.random() < 0.15:
            now_ms += random.randrange(60)
            h.run([random.choice((COMMIT, CRASH, Clock(now_ms), Watermark(at_ms)))])
    h.dead_letters()  # some fail
    return h


def compared(h: Harness, app: tr.App | None = None, **options: Any) -> ReplayReport:
    """Replay what a harness did, perhaps with other code, and compare."""
    plan = h.plan if app is None else app.plan()
    return replay(
        plan, h.log, ReplayOptions(compare=True, **options), live=lambda number: [of_service(h, number)]
    )


def store_of(h: Harness, number: int = 0) -> Store:
    """The store of a task."""
    return h._service.stores[number]


def of_service(h: Harness, number: int) -> LiveState:
    store = store_of(h, number)
    cut = None if store.cut is None else decode_store_cut(store.cut).core
    return LiveState("the store", store, cut, indexed=True)


def told(report: ReplayReport) -> list[str]:
    return [str(one) for one in report.differences.shown]
