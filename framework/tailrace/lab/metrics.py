"""Metrics: SELECTs over the outputs and states of both versions, with intervals, and limits for CI.

A file of metrics has one or more of these::

    -- name: revenue
    -- unit: customer
    select customer, sum(cents) from outputs.orders group by customer

Without a unit the query returns one number. With one it returns a row for each unit, with the unit and one or two numbers:
the metric is the total of the first, divided by that of the second if there is one. A unit that a version does
not have counts as 0. The interval is that of a paired bootstrap (Efron and Tibshirani, 1993): units are drawn
with replacement, each with what both versions make of it, and the metric's difference is computed for each draw.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tailrace.core.errors import OptionError, UsageError
from tailrace.core.extras import ExtraModule
from tailrace.lab.database import add_views, connected, duckdb, is_one_select
from tailrace.lab.differences import Counts

np: Any = ExtraModule("numpy", "comparisons of versions", "lab")
DRAWS = 2_000
_STEPS = 20
"""Bars of a plot."""
_VALUES_AT_ONCE = 4_000_000
_NAME, _UNIT = (
    re.compile(rf"^[ \t]*--[ \t]*{one}:[ \t]*(\S+)[ \t]*$", re.MULTILINE) for one in ("name", "unit")
)
_LIMIT = re.compile(r"^\s*([\w.-]+?)\s*(>=|<=|>|<)\s*([-+]?\d+(?:\.\d+)?)\s*(%?)\s*$")
_COMPARE = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}
_COUNTED = ("keys", "outputs")


class Metric(msgspec.Struct, frozen=True):
    """A metric: its name, its SELECT, and the column of its unit, if any."""

    name: str
    query: str = ""
    unit: str | None = None


class Plot(msgspec.Struct):
    """How many units have a value, in steps of equal size from ``low`` to ``high``, for each of some series."""

    low: float
    high: float
    series: list[list[int]]


class Measured(msgspec.Struct):
    """A metric of both versions, and B less A with its 95 % interval."""

    name: str
    unit: str | None
    a: float
    b: float
    difference: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    """Why there is no interval."""
    values: Plot | None = None
    """The values of the units in A and in B. A unit that divides by zero is left out, here and below."""
    differences: Plot | None = None
    """Those of B less A."""


def read_metrics(file: Path) -> list[Metric]:
    """The metrics in a file. Raises OptionError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"the metrics in {str(file)!r} cannot be read: {getattr(error, 'strerror', '') or error}",
            hint="Name a file of SQL.",
        ) from None
    before, *rest = _NAME.split(text)
    if re.sub("--.*", "", before).strip():
        raise OptionError(f"{str(file)!r} has SQL before the first name", hint="Begin with -- name: revenue")
    found = [
        Metric(name, query, None if (unit := _UNIT.search(query)) is None else unit[1])
        for name, query in zip(rest[::2], rest[1::2], strict=True)
    ]
    names = [one.name for one in found]
    if not found or len({*names, *_COUNTED}) < len(names) + len(_COUNTED):
        raise OptionError(
            f"the metrics in {str(file)!r} do not have names of their own, other than keys and outputs",
            hint="Put a line such as -- name: revenue before each.",
        )
    for one in found:
        try:
            is_select = is_one_select(one.query)
        except duckdb.Error as error:
            raise OptionError(
                f"the metric {one.name!r} is no SQL: {_first_line(error)}", hint="Correct it."
            ) from None
        if not is_select:
            raise OptionError(
                f"the metric {one.name!r} is not one SELECT", hint="Write one SELECT for each name."
            )
    return found


def measure(metrics: Sequence[Metric], tables: Mapping[str, Path]) -> list[Measured]:
    """Measure A and B in the tables of each.

    Raises UsageError: a metric has no value, or names of tables or columns differ by case only.
    """
    databases = {name: _database(folder) for name, folder in tables.items()}
    return [
        measured(one, {name: _rows(one, name, each) for name, each in databases.items()}) for one in metrics
    ]


def _database(folder: Path) -> Any:
    """A database with a view for each table: ``outputs."topic"``, ``states.Actor``."""
    database = connected()
    add_views(database, folder, ("outputs", "states"))
    return database


def _rows(metric: Metric, version: str, database: Any) -> dict[Any, list[float]]:
    """The numbers of a metric by unit; of one without a unit under None."""
    try:
        found = database.execute(metric.query)
        columns, rows = [one[0] for one in found.description], found.fetchall()
    except duckdb.Error as error:
        raise UsageError(
            f"the metric {metric.name!r} cannot be measured in {version}: {_first_line(error)}",
            hint='Its tables are outputs."topic" and states.Actor.',
        ) from None
    at = columns.index(metric.unit) if metric.unit in columns else None
    has_unit, width = metric.unit is not None, len(columns)
    fits = (at is not None and width in (2, 3)) if has_unit else (width, len(rows)) == (1, 1)
    values: dict[Any, list[float]] = {}
    try:
        for row in rows if fits else ():
            unit = None if at is None else row[at]
            # A number that is NULL counts as 0, like that of a unit that is not there.
            values[unit] = [
                float(one or 0 if has_unit else one) for place, one in enumerate(row) if place != at
            ]
    except (TypeError, ValueError):
        fits = False
    if not fits or len(values) != len(rows):
        raise UsageError(
            f"the metric {metric.name!r} returns {len(rows):,} rows of {', '.join(columns)} in {version}"
            + ("" if has_unit else ", or no number"),
            hint=f"It must return one row for each {metric.unit!r}: the unit, and one or two numbers."
            if has_unit
            else "Without a unit it must return one number, and may not divide by zero.",
        )
    return values


def measured(metric: Metric, by_version: Mapping[str, Mapping[Any, list[float]]]) -> Measured:
    """A metric, from its numbers by unit of the versions A and B. Raises UsageError: it divides by zero."""
    a, b = by_version["A"], by_version["B"]
    # DuckDB returns rows in any order, and the samples are drawn by place.
    units = sorted(dict.fromkeys((*a, *b)), key=repr)
    width = max((len(one) for side in (a, b) for one in side.values()), default=1)
    sums = np.array([[*a.get(one, [0.0] * width), *b.get(one, [0.0] * width)] for one in units]).reshape(
        -1, 2 * width
    )
    totals = _ratios(sums.sum(axis=0, keepdims=True))[0]
    if not np.isfinite(totals).all():
        raise UsageError(
            f"the metric {metric.name!r} divides by zero, or has a value that is no number",
            hint="Its second number is the denominator; the total of it must not be 0.",
        )
    found = Measured(
        metric.name, metric.unit, float(totals[0]), float(totals[1]), float(totals[1] - totals[0])
    )
    if metric.unit is not None:
        by_unit = _ratios(sums)
        by_unit = by_unit[np.isfinite(by_unit).all(axis=1)]
        found.values = _plot(by_unit)
        found.differences = _plot(by_unit[:, [1]] - by_unit[:, [0]])
    if metric.unit is None or len(units) < 2:
        found.note = f"no interval: {'no' if metric.unit is None or not units else 'one'} unit"
        return found
    draws = _draws(sums)
    if not np.isfinite(draws).all():
        found.note = "no interval: a sample divides by zero"
    else:
        found.low, found.high = (float(one) for one in np.quantile(draws, (0.025, 0.975)))
    return found


def _plot(values: Any) -> Plot | None:
    """The columns of values as series."""
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    series = [np.histogram(one, _STEPS, (low, high))[0].tolist() for one in values.T]
    return Plot(low, high, series)


def _ratios(sums: Any) -> Any:
    """The metric of A and of B, from rows of sums."""
    if sums.shape[1] == 2:
        return sums
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums[:, [0, 2]] / sums[:, [1, 3]]


def _draws(sums: Any) -> Any:
    """The differences of B and A in samples of the units."""
    random, count = np.random.default_rng(0), len(sums)
    step = max(1, _VALUES_AT_ONCE // sums.size)
    found: list[Any] = []
    for first in range(0, DRAWS, step):
        drawn = random.integers(0, count, (min(step, DRAWS - first), count))
        totals = _ratios(sums[drawn].sum(axis=1))
        found.append(totals[:, 1] - totals[:, 0])
    return np.concatenate(found)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


class Limit(NamedTuple):
    """A limit: ``keys>0.1%``, ``outputs>100``, ``revenue<-2%``."""

    text: str
    name: str
    sign: str
    bound: float
    is_share: bool


def read_limit(text: str, metrics: Sequence[Metric]) -> Limit:
    """A limit from its text. Raises OptionError."""
    known = [*_COUNTED, *(one.name for one in metrics)]
    if (match := _LIMIT.match(text)) is None:
        raise OptionError(
            f"{text!r} is no limit", hint="Write a name, >, >=, < or <=, and a number or a share: keys>0.1%"
        )
    name, sign, bound, share = match.groups()
    if name not in known:
        raise OptionError(f"{text!r} names no metric", hint=f"There is {', '.join(known)}.")
    return Limit(text, name, sign, float(bound), bool(share))


def is_exceeded(limit: Limit, counts: Counts, metrics: Sequence[Measured]) -> bool:
    """Whether a comparison exceeds a limit. Raises UsageError: a share of nothing."""
    of = {"keys": (counts.keys_differ, counts.keys), "outputs": (counts.outputs_differ, max(counts.outputs))}
    value, base = of.get(limit.name) or next(
        (one.difference, abs(one.a)) for one in metrics if one.name == limit.name
    )
    if not limit.is_share:
        return bool(_COMPARE[limit.sign](value, limit.bound))
    if math.isclose(base, 0.0, abs_tol=1e-300):
        raise UsageError(
            f"the limit {limit.text!r} is a share of {limit.name}, and that is 0 in version A",
            hint="Give a number instead of a share.",
        )
    return bool(_COMPARE[limit.sign](100 * value / base, limit.bound))
