"""The services with windows, against plain Python over all of their events; with every fault at every place, and replayed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from schemas.flights import Movement
from schemas.market import Cheapest, Prices, Quote, Trade
from schemas.payments import CardPayment, FraudRule, Suspicious
from schemas.rooms import RoomHour, RoomReading, SensorMean
from schemas.sensors import Reading
from schemas.text import Line, WordCount
from services import fraud, rooms, stocks, threes, words
from services.flights import delays
from tailrace.testing import END, Harness, Item
from tests.docs.program_oracles import HOUR_MS, grouped, mean, start_of

BEGIN_MS = 1_767_225_600_000
SEEDS = range(3)


def covering(at_ms: int, size_ms: int, every_ms: int) -> list[int]:
    """The starts of the sliding windows that hold an instant."""
    last = at_ms - at_ms % every_ms
    return [start for start in range(last, last - size_ms, -every_ms) if start <= at_ms < start + size_ms]


def shuffled(random: Random, count: int, every_ms: int, disorder_ms: int) -> list[int]:
    """Event times that come out of order by at most ``disorder_ms``."""
    times = [BEGIN_MS + n * every_ms for n in range(count)]
    return sorted(times, key=lambda at: (at + random.randrange(disorder_ms + 1), at))


def ran(app: Any, topic: Any, events: Iterable[Any], *out: Any, checked: bool) -> list[list[Any]]:
    """The events in each topic after a run to the end of input, which is replayed."""
    items: list[Item] = [*((topic, one) for one in events), END]
    with Harness(app, checked=checked) as h:
        h.run(items)
        found = [h.emitted(each) for each in out]
        assert h.dropped == 0
        h.replay()
    return found


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_hour_of_a_room_is_the_mean_of_the_minutes_of_its_sensors(seed: int, checked: bool) -> None:
    random = Random(seed)
    readings = [
        RoomReading(sensor, f"room {sensor[0]}", at, random.uniform(-20, 40))
        for at in shuffled(random, 300, 45_000, 10_000)
        for sensor in [random.choice(["a1", "a2", "b1"])]
    ]
    means = [
        SensorMean(f"room {sensor[0]}", sensor, minute, minute + 59_999, mean(one.celsius for one in some))
        for (sensor, minute), some in grouped(
            readings, lambda one: (one.sensor, start_of(one.at_ms, 60_000))
        ).items()
    ]
    wanted = [
        RoomHour(room, hour, hour + HOUR_MS, mean(one.celsius for one in some), len(some))
        for (room, hour), some in grouped(means, lambda one: (one.room, start_of(one.start, HOUR_MS))).items()
    ]
    found, found_hours = ran(
        rooms.app, rooms.readings, readings, rooms.sensor_means, rooms.room_hours, checked=checked
    )
    assert sorted(found, key=repr) == sorted(means, key=repr)
    assert sorted(found_hours, key=repr) == sorted(wanted, key=repr)


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_words_are_counted_over_five_seconds_every_second(seed: int, checked: bool) -> None:
    random = Random(seed)
    lines = [
        Line("someone", at, " ".join(random.choices(["to", "Be", "or", "not"], k=3)))
        for at in shuffled(random, 100, 700, 1_000)
    ]
    counts = Counter(
        (word, start)
        for line in lines
        for word in line.text.lower().split()
        for start in covering(line.at_ms, 5_000, 1_000)
    )
    wanted = [WordCount(word, start, start + 5_000, count) for (word, start), count in counts.items()]
    (found,) = ran(words.app, words.lines, lines, words.word_counts, checked=checked)
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_prices_are_those_of_ten_seconds_every_five(seed: int, checked: bool) -> None:
    random = Random(seed)
    trades = [
        Trade(random.choice(["ABC", "XYZ", "FOO"]), at, round(random.uniform(1, 9), 1))
        for at in shuffled(random, 150, 900, 1_000)
    ]
    of_symbol: dict[tuple[str, int], list[Trade]] = defaultdict(list)
    of_all: dict[int, list[Trade]] = defaultdict(list)
    for one in trades:
        for start in covering(one.at_ms, 10_000, 5_000):
            of_symbol[one.symbol, start].append(one)
            of_all[start].append(one)
    wanted = [
        Prices(
            symbol,
            start,
            start + 10_000,
            mean(one.price for one in some),
            min(some, key=lambda one: (-one.price, one.at_ms)),
            len(some),
        )
        for (symbol, start), some in of_symbol.items()
    ]
    least = {start: min(some, key=lambda one: (one.price, one.at_ms)) for start, some in of_all.items()}
    cheapest = [
        Cheapest("all", start, start + 10_000, Quote("all", one.symbol, one.at_ms, one.price))
        for start, one in least.items()
    ]
    found, found_all = ran(stocks.app, stocks.trades, trades, stocks.prices, stocks.cheapest, checked=checked)
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert sorted(found_all, key=repr) == sorted(cheapest, key=repr)


@pytest.mark.parametrize("checked", [True, False])
def test_every_three_readings_have_a_mean(checked: bool) -> None:
    random = Random(1)
    readings = [
        Reading(random.choice("ab"), at, random.uniform(0, 100)) for at in shuffled(random, 50, 1_000, 0)
    ]
    wanted = [
        threes.MeanOfThree(sensor, three[0].at_ms, three[-1].at_ms, mean(one.celsius for one in three))
        for sensor, some in grouped(readings, lambda one: one.sensor).items()
        for three in zip(some[::3], some[1::3], some[2::3], strict=False)
    ]
    (found,) = ran(threes.app, threes.readings, readings, threes.means, checked=checked)
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


@pytest.mark.parametrize("checked", [True, False])
def test_a_flight_that_leaves_hours_late_corrects_its_hour(checked: bool) -> None:
    random = Random(1)
    scheduled = [BEGIN_MS + n * 600_000 for n in range(200)]
    delay = {at: random.choice([0, 5, 20, 60, 400, 900]) for at in scheduled}
    known = sorted(scheduled, key=lambda at: (at + delay[at] * 60_000, at))
    movements = [Movement("JFK", "N1", "UA", n, at, delay[at], 0) for n, at in enumerate(known)]
    with Harness(delays.app, checked=checked) as h:
        for one in movements:
            h.send(delays.movements, one)
            h.advance_watermark(one.scheduled_ms + one.delay_minutes * 60_000 - 3 * 3_600_000)
        h.end_of_input()
        kinds = Counter(one.kind for one in h.emitted(delays.hourly_delays))
        last = {one.start: one for one in h.emitted(delays.hourly_delays)}
        assert h.dropped == 0
        h.replay()
    assert kinds["correction"]
    assert {start: (one.mean_delay, one.departures) for start, one in last.items()} == {
        start: (mean(delay[at] for at in some), len(some))
        for start, some in grouped(scheduled, lambda at: start_of(at, HOUR_MS)).items()
    }


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_payments_are_checked_by_all_rules(seed: int, checked: bool) -> None:
    random = Random(seed)
    rules = [
        FraudRule(name, above, per_hour)
        for name, above, per_hour in (
            ("large", 900, False),
            ("hour", 2_500, True),
            ("off", 0, False),
            ("large", 800, False),
        )
    ]
    payments = [
        CardPayment(random.choice("ab"), at, f"p{n}", random.randrange(1_000))
        for n, at in enumerate(shuffled(random, 120, 400_000, 60_000))
    ]
    sums: Counter[tuple[str, int]] = Counter()
    newest = {rule.name: rule for rule in rules}
    wanted = []
    for one in payments:
        hour = one.account, one.at_ms // 3_600_000
        sums[hour] += one.cents
        for rule in newest.values():
            cents = sums[hour] if rule.per_hour else one.cents
            if cents > rule.above_cents > 0:
                wanted.append(Suspicious(one.account, one.id, rule.name, cents))
    items: list[Item] = [
        *((fraud.fraud_rules, one) for one in rules),
        *((fraud.payments, one) for one in payments),
        END,
    ]
    with Harness(fraud.app, checked=checked) as h:
        h.run(items)
        assert {one.rule for one in wanted} == {"large", "hour"}
        assert sorted(h.emitted(fraud.suspicious), key=repr) == sorted(wanted, key=repr)
        assert h.dropped == 0
        h.replay()
