"""Shop, orders and messages: state of several kinds, another key on the way, and actors that tell each other."""

from __future__ import annotations

from random import Random

import tailrace as tr
from tests.cast.member import NEVER, START_MS, Case, Event, Found, Said, history, in_order, records

DISORDER_MS = 1_500
REMIND_MS = 20_000
PAY_MS = 10_000


def shop(random: Random) -> Case:
    """Baskets that are filled, paid, and remembered in a timer if they are not."""
    sent = history(random, "clicks", disorder_ms=DISORDER_MS, late=0.05)
    found = Found()
    keys, _late = in_order(sent, "clicks", DISORDER_MS)
    for key, some in keys.items():
        basket, due = list[int](), None
        for one in [*some, None]:
            if due is not None and (one is None or one.at > due):
                found["said", Said(key, due, f"remind {sorted(set(basket))}", len(basket))] += 1
                due = None
            if one is None:
                continue
            if one.n % 6:
                basket.append(one.n % 4)
                due = one.at + REMIND_MS
            else:
                found["said", Said(key, one.at, f"paid {sorted(set(basket))}", len(basket))] += 1
                basket, due = [], None
    return Case(shop_app, random.choice((1, 2, 3)), records(sent), found)


def shop_app(partitions: int) -> tr.App:
    app = tr.App("shop", partitions=partitions)
    clicks = app.topic("clicks", Event, out_of_order=DISORDER_MS, late="drop", idle_after=NEVER)
    said = app.topic("said", Said)

    @app.actor
    class Basket(tr.Actor, order="event-time"):
        items: tr.ListState[int]
        kinds: tr.MapState[int, int]

        @tr.process(clicks)
        def clicked(self, event: Event, ctx: tr.Context[str]) -> None:
            if event.n % 6:
                self.items.append(event.n % 4)
                self.kinds[event.n % 4] = event.at
                ctx.set_timer(event.at + REMIND_MS, "remind")
            else:
                self.tell("paid", ctx)
                ctx.clear()

        @tr.on_timer("remind")
        def remind(self, ctx: tr.Context[str]) -> None:
            self.tell("remind", ctx)

        def tell(self, what: str, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, ctx.event_time, f"{what} {sorted(self.kinds)}", len(self.items)))

    return app


def orders(random: Random) -> Case:
    """A join behind a change of keys: orders by user become orders by number, and meet their payments."""
    sent, found = list[tuple[str, Event]](), Found()
    for topic, one in history(random, "orders", count=70):
        number = f"o{one.n}"
        sent.append((topic, Event(one.key, one.at, one.n, number)))
        pays_at = one.at + random.choice((0, 300, PAY_MS, PAY_MS + 1, 3 * PAY_MS))
        if random.random() < 0.8:
            sent.append(("payments", Event(number, pays_at, one.n)))
        paid = sent[-1][0] == "payments" and pays_at <= one.at + PAY_MS
        found[
            "said", Said(number, pays_at if paid else one.at + PAY_MS, "paid" if paid else "unpaid", one.n)
        ] += 1
    payments = sorted((one for one in sent if one[0] == "payments"), key=lambda one: one[1].at)
    random_at = sorted(random.choices(range(len(payments) + 1), k=len(sent) - len(payments)))
    merged, at = list[tuple[str, Event]](), 0
    for order, until in zip((one for one in sent if one[0] == "orders"), random_at, strict=True):
        merged += [*payments[at:until], order]
        at = until
    return Case(orders_app, random.choice((1, 2, 3)), records([*merged, *payments[at:]]), found)


def orders_app(partitions: int) -> tr.App:
    app = tr.App("orders", partitions=partitions)
    orders = app.topic("orders", Event, idle_after=NEVER)
    placed = app.topic("placed", Event, idle_after=NEVER)
    payments = app.topic("payments", Event, idle_after=NEVER)
    said = app.topic("said", Said)

    @app.process(orders)
    def place(event: Event, ctx: tr.Context[str]) -> None:
        ctx.emit(placed, Event(event.to, event.at, event.n))

    join = app.join("paying", placed, payments, within=("0s", f"{PAY_MS}ms"), how="left")

    @app.process(join)
    def tell(pair: tr.Pair[Event, Event | None], ctx: tr.Context[str]) -> None:
        what = "unpaid" if pair.right is None else "paid"
        ctx.emit(said, Said(ctx.key, ctx.event_time, what, pair.left.n))

    return app


def messages(random: Random) -> Case:
    """Money from account to account. The totals of an hour do not depend on the order within it."""
    sent = history(random, "transfers", disorder_ms=DISORDER_MS)
    sums, found = dict[str, int](), Found()
    last = max(one.at for _, one in sent)
    for _, one in sent:
        sums[one.key] = sums.get(one.key, 0) - one.n
        sums[one.to] = sums.get(one.to, 0) + one.n
        found["said", Said(one.to, one.at, "got", one.n)] += 1
    found.update(("said", Said(key, END_MS, "total", total)) for key, total in sums.items())
    assert last < END_MS
    return Case(messages_app, random.choice((1, 2, 3)), records(sent), found)


END_MS = START_MS + 10_000_000


class Money(Event, frozen=True):
    """On its way."""


def messages_app(partitions: int) -> tr.App:
    app = tr.App("messages", partitions=partitions)
    transfers = app.topic("transfers", Event, out_of_order=DISORDER_MS, idle_after=NEVER)
    said = app.topic("said", Said)

    @app.actor
    class Account(tr.Actor):
        total: int = 0

        @tr.process(transfers)
        def paid(self, event: Event, ctx: tr.Context[str]) -> None:
            self.total -= event.n
            ctx.set_timer(END_MS, "total")
            ctx.send(Account, event.to, Money(event.to, event.at, event.n))

        @tr.on_message
        def got(self, message: Money, ctx: tr.Context[str]) -> None:
            self.total += message.n
            ctx.set_timer(END_MS, "total")
            ctx.emit(said, Said(ctx.key, ctx.event_time, "got", message.n))

        @tr.on_timer("total")
        def told(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, ctx.event_time, "total", self.total))

    return app
