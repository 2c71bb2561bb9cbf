"""The whole service, in memory: no server, and no test waits. `h.replay()` runs all of it again, and compares every byte."""

from collections import Counter
from random import Random

from schemas.orders import Counted, Order, Total
from shop import app, counts, orders, totals
from tailrace.testing import CRASH, Harness

TAKEN_OVER_MS = 1_772_280_000_000
MINUTE_MS = 60_000


def test_a_customer_goes_on_with_the_count_of_the_faust_app() -> None:
    with Harness(app) as h:
        h.send(counts, Counted("ada", 41, TAKEN_OVER_MS))
        h.send(
            orders,
            Order("ada", TAKEN_OVER_MS + MINUTE_MS),
            Order("bob", TAKEN_OVER_MS + MINUTE_MS),
        )
        h.end_of_input()
        assert h.table(totals) == {"ada": Total("ada", 42), "bob": Total("bob", 1)}
        h.replay()


def test_a_crash_loses_nothing_and_repeats_nothing() -> None:
    with Harness(app) as h:
        h.run(
            [
                (counts, Counted("ada", 41, TAKEN_OVER_MS)),
                CRASH,
                (orders, Order("ada", TAKEN_OVER_MS + MINUTE_MS)),
                CRASH,
            ]
        )
        h.end_of_input()
        assert h.emitted(totals) == [Total("ada", 41), Total("ada", 42)]
        h.replay()


def test_the_results_are_those_of_plain_python_under_every_schedule() -> None:
    random = Random(1)
    rows = {f"c{n}": random.randrange(100) for n in range(10)}
    history = [
        Order(f"c{random.randrange(20)}", TAKEN_OVER_MS + (n + 1) * MINUTE_MS)
        for n in range(200)
    ]
    expected = Counter(rows) + Counter(one.customer for one in history)
    with Harness(app) as h:
        h.send(
            counts, *(Counted(key, value, TAKEN_OVER_MS) for key, value in rows.items())
        )
        h.send(orders, *history)
        h.end_of_input()
        assert h.table(totals) == {
            key: Total(key, number) for key, number in expected.items()
        }
        h.explore(schedules=50)  # fails if the order of arrival changes a result
        h.replay()
