"""Event time in the harness goes the ways that it goes live: by input, by actor, by what tasks publish, by
idleness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.errors import UsageError
from tailrace.core.values.partitioner import partition_of
from tailrace.runtime.progress import last_phase
from tailrace.testing import Harness, System
from tests.cast.webs import KEYS, Node, Piece, Web, oracle, records
from tests.testing.shop import UNPAID_MS, Checkout, Done, Payment, Shop

ORDERS = [f"o{number}" for number in range(40)]


def sold(h: Harness, shop: Shop, orders: list[str]) -> None:
    """One big customer and some others check out each second, and pay a minute later, all but
    the last order.
    """
    h.send(
        shop.checkouts,
        *(Checkout("big" if n % 2 else f"u{n % 7}", order, n * 1_000) for n, order in enumerate(orders)),
    )
    h.send(shop.payments, *(Payment(order, n * 1_000 + 60_000) for n, order in enumerate(orders[:-1])))


def reviewed(h: Harness, shop: Shop) -> set[bool]:
    """Whether the customers, who learn of their orders by messages, have come to their timers."""
    found = [h.state(shop.Customer, user) for user in h.keys(shop.Customer)]
    return {one.reviewed for one in found if one is not None}


# --- one input


def test_the_watermark_of_one_input_can_be_raised_alone() -> None:
    shop = Shop(partitions=1)
    with Harness(shop.app) as h:
        h.send(shop.checkouts, Checkout("u", "o", 1_000))
        h.advance_watermark(5_000_000, topic=shop.payments)
        assert h.emitted(shop.out) == []
        assert h.watermark(actor=shop.Order) == 999
        h.advance_watermark(1_000 + UNPAID_MS - 1, topic=shop.checkouts)
        assert h.emitted(shop.out) == []
        h.advance_watermark(datetime.fromtimestamp(1 + UNPAID_MS / 1_000, UTC), topic=shop.checkouts)
        assert h.emitted(shop.out) == [Done("o", "unpaid")]
        h.replay()


def test_with_a_topic_that_is_repartitioned_it_is_the_input_from_outside_that_rises() -> None:
    shop = Shop(repartition=True)
    with Harness(shop.app) as h:
        h.send(shop.checkouts, Checkout("u", "o", 1_000))
        h.advance_watermark(5_000_000, topic=shop.payments)
        h.advance_watermark(1_000 + UNPAID_MS, topic=shop.checkouts)
        assert h.emitted(shop.out) == [Done("o", "unpaid")]
        h.replay()


def test_a_topic_that_the_app_writes_itself_cannot_be_raised() -> None:
    shop = Shop()
    with Harness(shop.app) as h:
        with pytest.raises(UsageError, match="'placed' follows what the app 'shop' writes to it"):
            h.advance_watermark(1_000, topic=shop.placed)
        with pytest.raises(UsageError, match="no handler of the app 'shop' takes the topic 'out'"):
            h.advance_watermark(1_000, topic=shop.out)


# --- one actor


def test_the_watermark_of_an_actor_is_that_of_its_own_inputs() -> None:
    shop = Shop(partitions=1)
    with Harness(shop.app) as h:
        h.send(shop.payments, Payment("o", 3_000))
        h.send(shop.checkouts, Checkout("u", "o", 1_000))
        assert h.watermark(0, actor=shop.Order) == 999
        assert h.watermark(0, actor=shop.Customer) == 999
        assert h.watermark(0) == 999
        h.fall_idle(shop.checkouts)
        assert h.watermark(0, actor=shop.Order) == 2_999
        assert h.watermark(0) == 999, "the function that re-keys goes by checkouts alone"
        with pytest.raises(UsageError, match="Checkout is not an actor of the app"):
            h.watermark(actor=Checkout)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --- what the app writes itself


@pytest.mark.parametrize("repartition", [False, True])
def test_a_partition_without_records_holds_the_readers_of_an_inner_topic_back(*, repartition: bool) -> None:
    shop = Shop(repartition=repartition)
    with Harness(shop.app) as h:
        h.send(shop.checkouts, Checkout("u", "o", 1_000), Checkout("u", "p", 5_000_000))
        h.send(shop.payments, Payment("p", 5_000_000))
        number = partition_of(b"o", 4)
        h.fall_idle(shop.payments)
        assert h.watermark(number, actor=shop.Order) < 0
        assert h.emitted(shop.out) == [Done("p", "paid")]
        h.fall_idle(shop.checkouts)
        assert h.watermark(number, actor=shop.Order) == 4_999_999
        assert h.emitted(shop.out) == [Done("p", "paid"), Done("o", "unpaid")]
        h.replay()


@pytest.mark.parametrize("repartition", [False, True])
@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_all_is_up_to_date_once_the_clock_has_made_the_inputs_idle(state, *, repartition: bool) -> None:
    """In-app topics and messages as well: what follows from idle inputs alone holds nobody back."""
    shop = Shop(repartition=repartition)
    with Harness(shop.app, state=state) as h:
        sold(h, shop, ORDERS)
        h.send(shop.checkouts, Checkout("late payer", "x", 39_000 + UNPAID_MS + 100_000))
        h.advance_clock_by("59s")
        assert reviewed(h, shop) == {False}
        h.advance_clock_by("1s")
        done = {one.order: one.what for one in h.emitted(shop.out)}
        assert done == {**dict.fromkeys(ORDERS[:-1], "paid"), ORDERS[-1]: "unpaid"}
        assert reviewed(h, shop) == {True}
        assert (h.late, h.behind) == (0, {})
        h.replay()


def test_what_the_clock_made_idle_stays_so_over_a_crash_and_wakes_with_its_next_record() -> None:
    shop = Shop(partitions=1)
    with Harness(shop.app) as h:
        h.send(shop.checkouts, Checkout("u", "o", 1_000))
        h.advance_clock_by("61s")
        h.crash()
        h.advance_watermark(1_000 + UNPAID_MS - 1, topic=shop.checkouts)
        h.send(shop.payments, Payment("p", 100_000))
        h.advance_watermark(1_000 + UNPAID_MS, topic=shop.checkouts)
        assert h.emitted(shop.out) == []
        h.advance_clock_by("60s")
        assert h.emitted(shop.out) == [Done("o", "unpaid")]
        h.replay()


# --- the end of input


def ended_slowly(h: Harness) -> None:
    """As a service does it: between two phases time passes, enough for an input to fall idle."""
    for phase in range(1, last_phase(h.plan) + 1):
        for one in h._service.partitions:
            one.end_input(phase)
        h.advance_clock_by(0)
        h.advance_clock_by("70s")


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("end", [Harness.end_of_input, ended_slowly])
def test_what_is_idle_holds_its_readers_until_its_turn_at_the_end(
    end: Callable[[Harness], object], *, idle: bool
) -> None:
    """Two ways lead to one actor: a short one, and one over a stream and by messages."""
    nodes = [
        Node("short", 9_000, ["s0"], targets=["m0"]),
        Node("hand", 0, ["s1"], gives="again"),
        Node("long", 5_000, [], stream="again", sends=["last"]),
        Node("last", 1_000, ["m0"], gets_messages=True),
    ]
    web = Web(nodes, 2, 0, set(), circles=False, idle_after="60s")
    found = {name: [Piece(f"k{number}", 1_000, 1) for number in range(KEYS)] for name in ("s0", "s1")}
    with Harness(web.app) as h:
        h.log.append_all(records(web, found))
        h.advance_clock_by("70s" if idle else 0)
        end(h)
        assert h.late == 0
        assert Counter(h.emitted(web.app.topics["results"])) == oracle(web, found)
        h.replay()


# --- idleness over crashes, and an app that reads its own late events


class Step(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]


app = tr.App("alarms", partitions=2)
left = app.topic("left", Step, idle_after="10s")
right = app.topic("right", Step, idle_after="10s", late="drop")
alarms = app.topic("alarms", Step)


@app.actor
class Waiting(tr.Actor, order="arrival"):
    seen: int = 0

    @tr.process(left, right)
    def step(self, event: Step, ctx: tr.Context[str]) -> None:
        self.seen += 1
        ctx.set_timer(event.at + 50)

    @tr.on_timer
    def alarm(self, ctx: tr.Context[str]) -> None:
        ctx.emit(alarms, Step(ctx.key, ctx.event_time))


def test_an_input_that_was_idle_is_idle_again_after_a_crash() -> None:
    for told in (True, False):
        with Harness(app) as h:
            h.send(left, Step("a", 100))
            if told:
                h.fall_idle(right)
            else:
                h.advance_clock_by("9s")
                h.send(left, Step("a", 101))
                h.advance_clock_by("9s")
            h.crash()
            h.send(left, Step("a", 1_000))
            assert h.emitted(alarms)[0] == Step("a", 150)
            h.replay()


def test_events_that_came_to_an_idle_input_while_the_service_was_down_are_not_late() -> None:
    with System(app) as s:
        s.send(left, Step("a", 100))
        s.fall_idle(right)
        with s.down(app):
            s.send(left, *(Step("a", at) for at in range(1_000, 1_800, 100)))
            s.send(right, *(Step("a", at) for at in range(1_000, 1_800, 100)))
        s.send(left, Step("a", 20_000))
        assert s[app].late == 0
        found = s[app].state(Waiting, "a")
        assert found is not None
        assert found.seen == 18
        s.replay()


def test_what_is_routed_at_the_end_of_input_is_handled() -> None:
    app = tr.App("routed", partitions=1)
    late = app.topic("late", Step)
    seen = app.topic("seen", Step, late=late)

    @app.actor
    class InTime(tr.Actor, order="event-time"):
        times: list[int] = tr.field(default_factory=list)

        @tr.process(seen)
        def came(self, event: Step, ctx: tr.Context[str]) -> None:
            self.times.append(event.at)

    @app.actor
    class Late(tr.Actor):
        times: list[int] = tr.field(default_factory=list)

        @tr.process(late)
        def came(self, event: Step, ctx: tr.Context[str]) -> None:
            self.times.append(event.at)
            ctx.set_timer(event.at + 1_000)

        @tr.on_timer
        def rings(self, ctx: tr.Context[str]) -> None:
            self.times.append(ctx.event_time)

    with Harness(app) as h:
        h.send(seen, *[Step("k", at) for at in (600_000, 7, 600_000, 5)])
        h.end_of_input()
        states = h.state(InTime, "k"), h.state(Late, "k")
        assert states[0] is not None
        assert states[1] is not None
        assert (states[0].times, sorted(states[1].times)) == ([600_000, 600_000], [5, 7, 1_005, 1_007])
        assert not h.replay().differences.count


@pytest.mark.parametrize("only", [False, True])
def test_a_small_cache_changes_nothing_when_the_watermark_is_raised(only):
    """What is ahead waits unread in a service without memory; a test has it read before it raises the watermark."""

    def run(settings: TaskSettings | None) -> tuple[list[tuple[int, ...]], int]:
        app = tr.App("cache", partitions=1)
        ones, twos, out = (app.topic(name, Step, key="key") for name in ("ones", "twos", "out"))

        @app.actor
        class Both(tr.Actor, order="event-time"):
            @tr.process(ones, twos)
            def take(self, event: Step, ctx: tr.Context[str]) -> None:
                if ctx.is_late:
                    ctx.count_late()
                else:
                    ctx.emit(out, event)

        with Harness(app, settings=settings) as h:
            h.send(twos, Step("k", 189))
            h.send(ones, Step("k", 27))
            h.send(twos, Step("k", 210))
            h.advance_watermark(222, topic=twos if only else None)
            h.end_of_input()
            return [(one.at,) for one in h.emitted(out)], h.dropped

    assert run(None) == run(TaskSettings(cache_bytes=0)) == ([(27,), (189,), (210,)], 0)
