"""The whole service, in memory: no server, and no test waits. `h.replay()` runs all of it again, and compares every byte."""

from collections import defaultdict
from random import Random

from schemas.sales import Quiet, Revenue, Sale
from shop import app, quiet, revenue, sales, too_late
from tailrace.testing import CRASH, Harness

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
NOON_MS = 1_772_280_000_000


def test_an_hour_is_in_the_table_when_event_time_has_passed_it() -> None:
    with Harness(app, partitions=1) as h:
        h.send(
            sales,
            Sale("Oslo", NOON_MS, 500),
            Sale("Oslo", NOON_MS + 59 * MINUTE_MS, 300),
        )
        assert h.table(revenue) == {}
        h.send(sales, Sale("Oslo", NOON_MS + 62 * MINUTE_MS, 100))
        assert h.table(revenue) == {("Oslo", NOON_MS): Revenue("Oslo", NOON_MS, 800, 2)}
        h.replay()


def test_a_late_sale_corrects_its_hour_for_a_day() -> None:
    with Harness(app, partitions=1) as h:
        h.send(
            sales, Sale("Oslo", NOON_MS, 500), Sale("Oslo", NOON_MS + 2 * HOUR_MS, 100)
        )
        h.send(sales, Sale("Oslo", NOON_MS + MINUTE_MS, 20))
        assert h.table(revenue)["Oslo", NOON_MS] == Revenue("Oslo", NOON_MS, 520, 2)
        h.send(sales, Sale("Oslo", NOON_MS + 22 * HOUR_MS, 1))
        h.send(sales, Sale("Oslo", NOON_MS + 2 * MINUTE_MS, 30))
        h.send(sales, Sale("Oslo", NOON_MS + 30 * HOUR_MS, 1))
        h.send(sales, late := Sale("Oslo", NOON_MS, 7))
        assert h.table(revenue)["Oslo", NOON_MS] == Revenue("Oslo", NOON_MS, 550, 3)
        assert h.emitted(too_late) == [late]
        h.replay()


def test_a_branch_is_quiet_two_hours_after_its_last_sale_and_a_crash_changes_nothing() -> (
    None
):
    with Harness(app, partitions=1) as h:
        h.run([(sales, Sale("Oslo", NOON_MS, 1)), CRASH])
        # Out of order by half a minute: the silence of Oslo begins with the later one.
        second = Sale("Oslo", NOON_MS + 119 * MINUTE_MS, 1)
        h.run([(sales, second), (sales, Sale("Oslo", second.at_ms - 30_000, 1)), CRASH])
        h.run([(sales, Sale("Rome", second.at_ms + 2 * HOUR_MS, 1)), CRASH])
        assert h.emitted(quiet) == []
        h.send(sales, Sale("Rome", second.at_ms + 2 * HOUR_MS + 2 * MINUTE_MS, 1))
        assert h.emitted(quiet) == [Quiet("Oslo", second.at_ms)]
        h.replay()


def test_the_results_are_those_of_plain_python_under_every_schedule() -> None:
    random = Random(1)
    history = [
        Sale(
            random.choice(["Oslo", "Rome", "Lima"]),
            NOON_MS + n * 7 * MINUTE_MS,
            random.randrange(1_000),
        )
        for n in range(150)
    ]
    hours: dict[tuple[str, int], list[int]] = defaultdict(list)
    for one in history:
        hours[one.branch, one.at_ms - one.at_ms % HOUR_MS].append(one.cents)
    with Harness(app) as h:
        h.send(sales, *history)
        h.end_of_input()
        assert h.table(revenue) == {
            (branch, start): Revenue(branch, start, sum(cents), len(cents))
            for (branch, start), cents in hours.items()
        }
        h.explore(schedules=50)  # fails if the order of arrival changes a result
        h.replay()
