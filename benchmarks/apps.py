"""The measured apps. Each counts and sums the events of a key, and emits one event for each.

They differ in their additional work: move a timer, change an entry of a map, read two topics, run two actors. The last one
joins two topics, one of which it must re-key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import msgspec

import tailrace as tr

MINUTE_MS = 60_000
GAP_MS = 50


class Event(msgspec.Struct, frozen=True, gc=False):
    key: str
    at: int
    value: int


class Total(msgspec.Struct, frozen=True, gc=False):
    key: str
    count: int
    total: int


counting = tr.App("counting", partitions=1)
counted = counting.topic("events", Event, key="key", event_time="at", out_of_order="1s")
totals = counting.topic("totals", Total, key="key")


@counting.actor
class Counter(tr.Actor):
    count: int = 0
    total: int = 0

    @tr.process(counted)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.total += event.value
        ctx.emit(totals, Total(event.key, self.count, self.total))


timing = tr.App("timing", partitions=1)
timed = timing.topic("events", Event, key="key", event_time="at", out_of_order="1s")
timed_totals = timing.topic("totals", Total, key="key")


@timing.actor
class Watched(tr.Actor):
    count: int = 0
    total: int = 0
    silent: int = 0

    @tr.process(timed)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.total += event.value
        ctx.set_timer(event.at + MINUTE_MS, name="silence")
        ctx.emit(timed_totals, Total(event.key, self.count, self.total))

    @tr.on_timer("silence")
    def on_silence(self, ctx: tr.Context[str]) -> None:
        del ctx
        self.silent += 1


mapping = tr.App("mapping", partitions=1)
mapped = mapping.topic("events", Event, key="key", event_time="at", out_of_order="1s")
mapped_totals = mapping.topic("totals", Total, key="key")


@mapping.actor
class Histogram(tr.Actor):
    count: int = 0
    total: int = 0
    of_decade: tr.MapState[int, int]

    @tr.process(mapped)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.total += event.value
        decade = event.value // 10
        self.of_decade[decade] = self.of_decade.get(decade, 0) + 1
        ctx.emit(mapped_totals, Total(event.key, self.count, self.total))


sessions = tr.App("sessions", partitions=1)
sessions_of = sessions.topic("events", Event, key="key", event_time="at", out_of_order="1s")


@sessions.actor
class Sessions(tr.Actor):
    """Sessions as by hand: an event joins those within the gap before and after it."""

    ends: tr.MapState[int, int]  # by the start of the session

    @tr.process(sessions_of)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        del ctx
        start = end = event.at
        for first, last in list(self.ends.items(event.at - 10 * GAP_MS, event.at + GAP_MS)):
            if last >= event.at - GAP_MS:
                start, end = min(start, first), max(end, last)
                del self.ends[first]
        self.ends[start] = end


collecting = tr.App("collecting", partitions=1)
collected = collecting.topic("events", Event, key="key", event_time="at", out_of_order="1s")


@collecting.actor
class Collector(tr.Actor):
    """Appends to a list in an entry. It begins again when it has twice as many items as the event says."""

    values: tr.MapState[int, list[Event]]

    @tr.process(collected)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        del ctx
        if event.at % (2 * event.value) == 0:
            self.values[event.value] = []
        self.values[event.value].append(event)


joining = tr.App("joining", partitions=1)
left = joining.topic("left", Event, key="key", event_time="at", out_of_order="1s")
right = joining.topic("right", Event, key="key", event_time="at", out_of_order="1s")
joined_totals = joining.topic("totals", Total, key="key")


@joining.actor
class Joined(tr.Actor, order="arrival"):
    count: int = 0
    total: int = 0

    @tr.process(left, right)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.total += event.value
        ctx.emit(joined_totals, Total(event.key, self.count, self.total))


sharing = tr.App("sharing", partitions=1)
shared = sharing.topic("events", Event, key="key", event_time="at", out_of_order="1s")
one_totals = sharing.topic("one-totals", Total, key="key")
other_totals = sharing.topic("other-totals", Total, key="key")


@sharing.actor
class One(tr.Actor):
    count: int = 0
    total: int = 0

    @tr.process(shared)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.total += event.value
        ctx.emit(one_totals, Total(event.key, self.count, self.total))


@sharing.actor
class Other(tr.Actor):
    count: int = 0
    total: int = 0

    @tr.process(shared)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.total += event.value
        ctx.emit(other_totals, Total(event.key, self.count, self.total))


class Payment(msgspec.Struct, frozen=True, gc=False):
    number: str
    order: str
    at: int
    value: int


rekeying = tr.App("rekeying", partitions=1)
orders = rekeying.topic("orders", Event, key="key", event_time="at", out_of_order="1s")
payments = rekeying.topic("payments", Payment, key="number", event_time="at", out_of_order="1s")
paid = rekeying.topic("paid", Event, key="key", event_time="at")
paid_totals = rekeying.topic("totals", Total, key="key")


@rekeying.process(payments)
def by_order(payment: Payment, ctx: tr.Context[str]) -> None:
    """Re-keys a payment by its order."""
    ctx.emit(paid, Event(payment.order, payment.at, payment.value))


@rekeying.actor
class Order(tr.Actor, order="arrival"):
    count: int = 0
    total: int = 0
    unpaid: int = 0

    @tr.process(orders)
    def on_order(self, event: Event, ctx: tr.Context[str]) -> None:
        self.count += 1
        ctx.set_timer(event.at + MINUTE_MS, name="unpaid")

    @tr.process(paid)
    def on_paid(self, event: Event, ctx: tr.Context[str]) -> None:
        self.total += event.value
        ctx.cancel_timer("unpaid")
        ctx.emit(paid_totals, Total(event.key, self.count, self.total))

    @tr.on_timer("unpaid")
    def on_unpaid(self, ctx: tr.Context[str]) -> None:
        del ctx
        self.unpaid += 1


def keys(count: int) -> list[str]:
    """The keys that events are drawn from."""
    return [f"key-{number}" for number in range(count)]


def events(count: int, names: Sequence[str], *, per_ms: float = 10, seed: int = 1) -> Iterator[Event]:
    """Events of random keys: ``per_ms`` per millisecond of event time, up to half a second out of order."""
    draw, of = Random(seed).random, len(names)
    for number in range(count):
        yield Event(names[int(draw() * of)], int(number / per_ms) + int(draw() * 500), int(draw() * 100))


def paying(count: int, names: Sequence[str]) -> Iterator[Payment]:
    """Payments for random orders among ``names``. Each payment has its own key."""
    for number, event in enumerate(events(count, names, seed=2)):
        yield Payment(f"payment-{number}", event.key, event.at, event.value)
