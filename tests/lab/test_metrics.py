"""Metrics of two versions: totals and ratios against plain Python, intervals against a known effect, limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.core.errors import OptionError, TailraceError, UsageError
from tailrace.lab.differences import Counts
from tailrace.lab.metrics import Measured, Metric, is_exceeded, measure, measured, read_limit, read_metrics
from tailrace.state.snapshots.arrow import pa, parquet

Rows = list[dict[str, Any]]
PER_SHOP = "-- name: sold\n-- unit: shop\nselect shop, sum(cents) from outputs.sales group by shop\n"
PER_SALE = (
    "-- name: mean\n-- unit: shop\nselect shop, sum(cents), count(*) from outputs.sales group by shop\n"
)


def tables(folder: Path, a: Rows, b: Rows) -> Mapping[str, Path]:
    """Sales of both versions, as tables."""
    columns = pa.schema([("shop", pa.string()), ("cents", pa.int64())])
    for name, rows in (("A", a), ("B", b)):
        place = folder / name / "outputs" / "sales"
        place.mkdir(parents=True)
        (folder / name / "states").mkdir()
        parquet.write_table(pa.Table.from_pylist(rows, schema=columns), place / "part-0.parquet")
    return {"A": folder / "A", "B": folder / "B"}


def metrics(folder: Path, text: str) -> list[Metric]:
    file = folder / "metrics.sql"
    file.write_text(text, encoding="utf-8")
    return read_metrics(file)


def of_shops(**shops: list[int]) -> Rows:
    return [{"shop": shop, "cents": one} for shop, some in shops.items() for one in some]


def test_totals_and_ratios_are_those_of_all_rows(tmp_path: Path) -> None:
    chance = Random(5)

    def drawn() -> Rows:
        return [{"shop": f"{chance.randrange(9)}", "cents": chance.randrange(99)} for _ in range(200)]

    a, b = drawn(), drawn()
    sums = [sum(one["cents"] for one in side) for side in (a, b)]
    text = f"{PER_SHOP}{PER_SALE}-- name: all\nselect sum(cents) from outputs.sales"
    sold, mean, every = measure(metrics(tmp_path, text), tables(tmp_path, a, b))
    assert (sold.a, sold.b, sold.difference) == (*sums, sums[1] - sums[0])
    assert (mean.a, mean.b) == pytest.approx((sums[0] / 200, sums[1] / 200))
    assert (every.a, every.b, every.low, every.note) == (*sums, None, "no interval: no unit")


def test_a_unit_of_one_version_counts_as_0_in_the_other(tmp_path: Path) -> None:
    (found,) = measure(metrics(tmp_path, PER_SHOP), tables(tmp_path, of_shops(x=[1, 2]), of_shops(y=[10])))
    assert (found.a, found.b) == (3, 10)
    assert found.low is not None


def test_units_that_all_differ_by_the_same_have_no_width(tmp_path: Path) -> None:
    shops = {f"s{one}": [one] for one in range(30)}
    more = {name: [some[0] + 4] for name, some in shops.items()}
    (found,) = measure(metrics(tmp_path, PER_SHOP), tables(tmp_path, of_shops(**shops), of_shops(**more)))
    assert (found.difference, found.low, found.high) == (120, 120, 120)


def test_the_interval_holds_a_known_effect_as_often_as_it_says(tmp_path: Path) -> None:
    """In 200 seeded draws of 80 shops from a population whose mean effect is 3: 95 %, give or take 3 deviations."""
    inside = 0
    for seed in range(200):
        chance = Random(seed)
        base = {shop: chance.gauss(1_000, 200) for shop in range(80)}
        a = {shop: [cents, 1.0] for shop, cents in base.items()}
        b = {shop: [cents + chance.gauss(3, 10), 1.0] for shop, cents in base.items()}
        found = measured(Metric("mean", unit="shop"), {"A": a, "B": b})
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= 3 <= found.high
    assert 181 <= inside <= 199


def test_the_same_seed_draws_the_same(tmp_path: Path) -> None:
    place = tables(tmp_path, of_shops(x=[1], y=[5], z=[9]), of_shops(x=[2], y=[5], z=[7]))
    assert measure(metrics(tmp_path, PER_SHOP), place) == measure(metrics(tmp_path, PER_SHOP), place)


@pytest.mark.parametrize(
    ("query", "a", "note"),
    [
        (PER_SHOP, of_shops(x=[1]), "no interval: one unit"),
        (PER_SHOP, [], "no interval: no unit"),
        (
            PER_SALE.replace("count(*)", "sum(cents)"),
            of_shops(x=[1], y=[0]),
            "no interval: a sample divides by zero",
        ),
    ],
)
def test_without_an_interval_the_reason_is_given(tmp_path: Path, query: str, a: Rows, note: str) -> None:
    (found,) = measure(metrics(tmp_path, query), tables(tmp_path, a, a))
    assert (found.low, found.note) == (None, note)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "do not have names"),
        ("select 1", "SQL before the first name"),
        ("-- name: keys\nselect 1", "do not have names of their own"),
        ("-- name: x\nselect 1\n-- name: x\nselect 2", "do not have names of their own"),
        ("-- name: x\nselectt 1", "the metric 'x' is no SQL"),
        ("-- name: x\nselect 1; select 2", "is not one SELECT"),
        ("-- name: x\ndrop table y", "is not one SELECT"),
        ("-- name: x\n", "is not one SELECT"),
        ("-- name: x\nselect 1 from outputs.nothing", "cannot be measured in A"),
        ("-- name: x\nselect cents, shop from outputs.sales", "returns 2 rows of cents, shop in A"),
        ("-- name: x\nselect 'text'", "or no number"),
        ("-- name: x\nselect sum(cents) / 0 from outputs.sales where false", "or no number"),
        ("-- name: x\n-- unit: shop\nselect cents from outputs.sales", "returns 2 rows of cents in A"),
        (
            "-- name: x\n-- unit: shop\nselect 1 as shop, cents from outputs.sales",
            "returns 2 rows of shop, cents in A",
        ),
        ("-- name: x\n-- unit: shop\nselect shop, cents, 0 from outputs.sales", "divides by zero"),
    ],
)
def test_a_wrong_metric_is_refused(tmp_path: Path, text: str, said: str) -> None:
    place = tables(tmp_path, of_shops(x=[1], y=[3]), of_shops(x=[1]))
    with pytest.raises(TailraceError, match=re.escape(said)):
        measure(metrics(tmp_path, text), place)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nothing.sql' cannot be read: No such file or directory. Name"):
        read_metrics(tmp_path / "nothing.sql")


COUNTS = Counts(keys=1_000, keys_differ=2, outputs=(50, 40), outputs_differ=10)
SOLD = Measured("sold", None, 200.0, 190.0, -10.0)


@pytest.mark.parametrize(
    ("text", "exceeded"),
    [
        *(("keys>0.1%", True), ("keys > 0.2 %".replace(" %", "%"), False), ("keys>=0.2%", True)),
        *(("keys>1", True), ("keys>2", False), ("outputs>19%", True), ("outputs>20%", False)),
        *(("sold<-4%", True), ("sold<-5%", False), ("sold<=-10", True), ("sold>0", False)),
    ],
)
def test_a_limit_is_exceeded_or_not(text: str, exceeded: bool) -> None:
    assert is_exceeded(read_limit(text, [Metric("sold")]), COUNTS, [SOLD]) == exceeded


@pytest.mark.parametrize(
    "text", ["", "keys", "keys>", "keys>x", "keys=1", "0.1%", "keys>0.1%%", "keyss>1", "revenue>1"]
)
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"is no limit|names no metric"):
        read_limit(text, [Metric("sold")])


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="is a share of keys, and that is 0"):
        is_exceeded(read_limit("keys>0.1%", []), Counts(), [])
