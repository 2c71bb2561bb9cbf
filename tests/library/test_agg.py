"""Aggregates: equal to plain Python, and the same for every order and every way of merging."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg
from tailrace.core.values.types import is_fixed_point


class Sale(msgspec.Struct, frozen=True):
    product: str
    cents: int
    price: float


Check = Callable[[list[tuple[int, Sale]]], Any]


def _prices(events: list[tuple[int, Sale]]) -> list[float]:
    return [one.price for _, one in events]


def _top(events: list[tuple[int, Sale]]) -> list[tuple[str, float]]:
    names = {one.product for _, one in events}
    sums = [(name, math.fsum(one.price for _, one in events if one.product == name)) for name in names]
    return sorted(sums, key=lambda pair: (-pair[1], pair[0]))[:2]


def _best(events: list[tuple[int, Sale]], sign: int) -> Sale:
    return min(events, key=lambda one: (sign * one[1].cents, one[0], msgspec.msgpack.encode(one[1])))[1]


def _at(events: list[tuple[int, Sale]], sign: int) -> Sale:
    return min(events, key=lambda one: (sign * one[0], msgspec.msgpack.encode(one[1])))[1]


SEVERAL: dict[str, agg.Aggregate[Sale, Any, Any]] = {
    "n": agg.count(),
    "worst": agg.max_by(Sale, lambda e: e.cents),
    "mean": agg.mean(lambda e: e.price),
}
CASES: dict[str, tuple[agg.Aggregate[Sale, Any, Any], Check]] = {
    "count": (agg.count(), len),
    "total of floats": (agg.total(lambda e: e.price), lambda events: math.fsum(_prices(events))),
    "total of ints": (agg.total(lambda e: e.cents), lambda events: sum(one.cents for _, one in events)),
    "total of both": (
        agg.total(lambda e: e.cents if e.cents % 2 else e.price),
        lambda events: float(sum(Fraction(e.cents if e.cents % 2 else e.price) for _, e in events)),
    ),
    "mean": (agg.mean(lambda e: e.price), lambda events: math.fsum(_prices(events)) / len(events)),
    "min": (agg.min(lambda e: e.price), lambda events: min(_prices(events))),
    "max": (agg.max(lambda e: e.product), lambda events: max(one.product for _, one in events)),
    "min_by": (agg.min_by(Sale, lambda e: e.cents), lambda events: _best(events, 1)),
    "max_by": (agg.max_by(Sale, lambda e: e.cents), lambda events: _best(events, -1)),
    "first": (agg.first(Sale), lambda events: _at(events, 1)),
    "latest": (agg.latest(Sale), lambda events: _at(events, -1)),
    "top": (agg.top(2, by=lambda e: e.product, of=lambda e: e.price), _top),
    "distinct": (agg.distinct(lambda e: e.cents), lambda events: len({one.cents for _, one in events})),
    "estimate of few": (
        agg.distinct(lambda e: e.cents, error=0.1),
        lambda events: len({one.cents for _, one in events}),
    ),
    "several": (
        agg.several(**SEVERAL),
        lambda events: (len(events), _best(events, -1), math.fsum(_prices(events)) / len(events)),
    ),
}


def _plain(value: Any) -> Any:
    return msgspec.structs.astuple(value) if type(value).__name__ == "Several" else value


CASES["several"][0].types(Sale)


def _folded(one: agg.Aggregate[Sale, Any, Any], events: list[tuple[int, Sale]]) -> Any:
    acc = one.start()
    for time_ms, event in events:
        acc = one.add(acc, event, time_ms)
    return acc


def drawn(random: Random) -> list[tuple[int, Sale]]:
    numbers = [
        *(0.1, 1e16, -1e16, 1e-300, -0.0, 5e-324, 1e280),
        *(-1e280, 3.0, random.random(), random.gauss(0, 1e5)),
    ]
    return [
        (
            random.randrange(5),
            Sale(random.choice("abc"), random.choice([1, 2, 3, 2**60]), random.choice(numbers)),
        )
        for _ in range(random.randrange(1, 12))
    ]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_seed_in(2)
def test_a_value_is_that_of_plain_python_for_every_order_and_every_merge(seeds: range, name: str) -> None:
    aggregate, check = CASES[name]
    for seed in seeds:
        random = Random(seed)
        events = drawn(random)
        if name == "total of both" and all(one.cents % 2 for _, one in events):
            continue
        acc = _folded(aggregate, events)
        assert _plain(aggregate.result(acc)) == check(events), seed
        for _ in range(3):
            random.shuffle(events)
            again = _folded(aggregate, events)
            assert repr(again) == repr(acc), (seed, "another order is another accumulator")
            cut = random.randrange(len(events) + 1)
            merged = aggregate.merge(_folded(aggregate, events[:cut]), _folded(aggregate, events[cut:]))
            assert repr(merged) == repr(acc), (seed, "a merge is another accumulator")


@pytest.mark.parametrize("name", CASES)
def test_accumulators_are_of_their_type_which_is_settled_without_encoding(name: str) -> None:
    aggregate, _ = CASES[name]
    holds, gives = aggregate.types(Sale)
    assert is_fixed_point(holds)
    for seed in range(20):
        acc = _folded(aggregate, drawn(Random(seed)))
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(acc), type=holds) == acc
        msgspec.convert(msgspec.to_builtins(aggregate.result(acc)), gives)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        *(([math.inf, 1.0, -1e300], math.inf), ([-math.inf, 5.0], -math.inf)),
        *(([math.inf, -math.inf, 1.0], math.nan), ([math.nan, math.inf], math.nan)),
        *(([1.0, math.nan, 2.0], math.nan), ([0.0, -0.0], 0.0), ([1e280] * 1_000 + [-1e280] * 999, 1e280)),
    ],
)
def test_sums_with_special_numbers_are_defined(numbers: list[float], expected: float) -> None:
    total: agg.Aggregate[float, Any, float] = agg.total(lambda number: number)
    for order in (numbers, numbers[::-1]):
        if any(abs(one) == 1e300 for one in order):
            with pytest.raises(ValueError, match="too large"):
                agg.plus((), 1e300)
            continue
        acc: Any = total.start()
        for one in order:
            acc = total.add(acc, one, 0)
        assert repr(total.result(acc)) == repr(expected)
        halves: Any = total.merge(total.start(), acc)
        assert repr(total.result(halves)) == repr(expected)


def test_what_has_no_sum_or_no_order_is_refused() -> None:
    with pytest.raises(TypeError, match="takes int and float, not str"):
        agg.plus(0, "1")
    with pytest.raises(ValueError, match="NaN"):
        greatest: agg.Aggregate[float, Any, float] = agg.max(lambda number: number)
        greatest.add(None, math.nan, 0)


def test_limits_are_errors_and_not_estimates() -> None:
    events = [(0, Sale(str(n), n, float(n))) for n in range(4)]
    limited: list[agg.Aggregate[Sale, Any, Any]] = [
        agg.collect(Sale, limit=3),
        agg.distinct(lambda e: e.cents, limit=3),
        agg.top(1, by=lambda e: e.product, of=lambda e: e.cents, limit=3),
    ]
    for one in limited:
        _folded(one, events[:3])
        with pytest.raises(agg.LimitError, match="limit="):
            _folded(one, events)


class Spread(agg.Aggregate[Sale, tuple[float, float], float]):
    def start(self) -> tuple[float, float]:
        return (math.inf, -math.inf)

    def add(self, acc: tuple[float, float], event: Sale, time_ms: int) -> tuple[float, float]:
        return (min(acc[0], event.price), max(acc[1], event.price))

    def merge(self, a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
        return (min(a[0], b[0]), max(a[1], b[1]))

    def result(self, acc: tuple[float, float]) -> float:
        return acc[1] - acc[0]


def test_an_aggregate_of_your_own_says_its_types_by_annotations() -> None:
    assert Spread().types(Sale) == (tuple[float, float], float)
    assert Spread().merges
    assert not agg.reduce(lambda acc, event: acc, 0).merges
    assert not agg.several(n=agg.count(), last=agg.reduce(lambda acc, event: acc, 0)).merges
    assert agg.several(n=agg.count(), all=agg.collect(Sale)).ordered
    both = agg.several(n=agg.count(), last=agg.latest(Sale))
    assert both.types(Sale)[1] is both.types(Sale)[1]
    with pytest.raises(tr.DefinitionError, match="events of two types"):
        both.types(int)


# --- estimates ---


@pytest.mark.parametrize(("error", "size"), [(0.1, 128), (0.04, 1_024), (0.02, 4_096)])
def test_distinct_values_are_estimated_within_four_standard_errors_in_bounded_bytes(
    error: float, size: int
) -> None:
    sketch: agg.Aggregate[int, bytes, int] = agg.distinct(lambda number: number, error=error)
    acc, checked = sketch.start(), 0
    for number in range(60_000):
        acc = sketch.add(sketch.add(acc, number, 0), number // 2, 0)
        if number + 1 in (1, 10, 100, 300, 1_000, 3_000, 10_000, 30_000, 60_000):
            assert abs(sketch.result(acc) - (number + 1)) <= 4 * error * (number + 1), number
            assert len(acc) <= size
            checked += 1
    assert checked == 9


@pytest.mark.one_seed_in(5)
def test_sketches_are_functions_of_the_set_however_they_are_merged(seeds: range) -> None:
    distinct: agg.Aggregate[float, bytes, int] = agg.distinct(lambda number: number, error=0.1)
    quantiles: agg.Aggregate[float, bytes, tuple[float, ...]] = agg.quantiles(
        lambda number: number, 0, 0.25, 0.5, 0.99, 1
    )
    for seed in seeds:
        random = Random(seed)
        numbers = [
            random.choice([0.0, random.gauss(0, 1), random.lognormvariate(0, 3)])
            for _ in range(random.randrange(1, 90))
        ]
        for sketch in (distinct, quantiles):
            acc = sketch.start()
            for number in numbers:
                acc = sketch.add(acc, number, 0)
            order, cut = random.sample(numbers, len(numbers)), random.randrange(len(numbers) + 1)
            halves: list[bytes] = []
            for half in (order[:cut], order[cut:]):
                part = sketch.start()
                for number in half:
                    part = sketch.add(part, number, 0)
                halves.append(part)
            assert sketch.merge(*halves) == acc, seed
        ranked = sorted(numbers)
        for part_of, found in zip((0, 0.25, 0.5, 0.99, 1), quantiles.result(acc), strict=True):
            exact = ranked[max(1, math.ceil(part_of * len(ranked))) - 1]
            assert abs(found - exact) <= 0.01 * abs(exact), (seed, part_of)


def test_estimates_of_nothing_and_beyond_the_limits() -> None:
    quantiles: agg.Aggregate[float, bytes, tuple[float, ...]] = agg.quantiles(
        lambda number: number, 0.5, limit=2
    )
    assert quantiles.result(quantiles.start()) == ()
    acc = quantiles.add(quantiles.add(quantiles.start(), 5e-324, 0), 1.7e308, 0)
    assert quantiles.result(quantiles.add(acc, 1.7e308, 0)) == pytest.approx((1.7e308,), rel=0.01)
    with pytest.raises(agg.LimitError, match="more than 2 bins"):
        quantiles.add(acc, -1.0, 0)
    with pytest.raises(ValueError, match="given nan"):
        quantiles.add(acc, math.nan, 0)
    with pytest.raises(tr.DefinitionError, match="error=0"):
        agg.distinct(lambda number: number, error=0)
    with pytest.raises(tr.DefinitionError, match="at=95"):
        agg.quantiles(float, 95)


@pytest.mark.parametrize("kind", ["min", "max"])
@pytest.mark.parametrize("values", [(1, 1.0), (0.0, -0.0), (-0.0, 0, 0.0)])
def test_of_numbers_that_are_equal_the_first_by_its_encoding_counts(
    kind: str, values: tuple[Any, ...]
) -> None:
    made: agg.Aggregate[Any, Any, Any] = getattr(agg, kind)(lambda one: one)
    wanted = min(values, key=msgspec.msgpack.encode)
    for some in permutations(values):
        acc = made.start()
        for at, one in enumerate(some):
            acc = made.add(acc, one, at)
        merged = made.start()
        for at, one in enumerate(some):
            merged = made.merge(merged, made.add(made.start(), one, at))
        assert repr(made.result(acc)) == repr(made.result(merged)) == repr(wanted)
