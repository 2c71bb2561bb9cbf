"""The whole service, in memory: no server, and no test waits. `h.replay()` runs all of it again, and compares every byte."""

from random import Random

from schemas.orders import Paid, Placed, Standing, Status
from shop import PAY_WITHIN_MS, Order, app, order_events, orders
from tailrace.testing import CRASH, Harness

NOON_MS = 1_772_280_000_000


def test_an_order_that_is_paid_in_time_is_paid() -> None:
    with Harness(app) as h:
        h.send(
            order_events,
            Placed("a1", NOON_MS, "ada", 500),
            Paid("a1", NOON_MS + 60_000),
        )
        h.advance_clock_by("1h")
        assert h.table(orders) == {"a1": Standing("a1", "paid", 500)}
        h.replay()


def test_an_order_that_nobody_pays_is_cancelled_after_half_an_hour() -> None:
    with Harness(app) as h:
        h.send(order_events, Placed("a1", NOON_MS, "ada", 500))
        h.advance_clock_by("29m")
        assert h.query(Order, "a1", "status") == "placed"
        h.advance_clock_by("1m")
        assert h.table(orders) == {"a1": Standing("a1", "cancelled", 500)}
        h.replay()


def test_a_crash_loses_nothing_and_repeats_nothing() -> None:
    with Harness(app) as h:
        h.run([(order_events, Placed("a1", NOON_MS, "ada", 500)), CRASH])
        h.run([(order_events, Paid("a1", NOON_MS + 1)), CRASH])
        assert h.emitted(orders) == [
            Standing("a1", "placed", 500),
            Standing("a1", "paid", 500),
        ]
        h.replay()


def test_the_results_are_those_of_plain_python_under_every_schedule() -> None:
    random = Random(1)
    placed = [Placed(f"o{n}", NOON_MS + n * 60_000, f"c{n % 7}", n) for n in range(40)]
    paid = [
        Paid(one.order, one.at_ms + random.randrange(2 * PAY_WITHIN_MS))
        for one in (*placed[::2], *placed[::3])  # some are paid twice
    ]
    paid.append(Paid("o1", placed[1].at_ms + PAY_WITHIN_MS))  # just in time
    paid.append(Paid("o5", placed[5].at_ms + PAY_WITHIN_MS + 1))  # just not
    again = [Placed(one.order, one.at_ms + 1, "x", 0) for one in placed[:5]]
    events: list[Placed | Paid] = [*placed, *again, *paid]
    events.sort(key=lambda one: one.at_ms)
    in_time = {
        one.order
        for one in paid
        if one.at_ms <= placed[int(one.order[1:])].at_ms + PAY_WITHIN_MS
    }

    def expected(order: Placed) -> Status:
        return "paid" if order.order in in_time else "cancelled"

    with Harness(app) as h:
        h.send(order_events, *events)
        h.advance_clock_by("1h")
        assert h.table(orders) == {
            one.order: Standing(one.order, expected(one), one.cents) for one in placed
        }
        h.explore(
            schedules=50
        )  # fails if a result depends on anything but the events and the clock
        h.replay()
