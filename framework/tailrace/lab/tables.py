"""The results of a comparison of versions: its tables, from what was compared and the first events, and its page.

The page is one file, without network, of bounded size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from tailrace.core.counting import number
from tailrace.core.extras import ExtraModule
from tailrace.lab.database import connected, quoted
from tailrace.lab.first_events import First, Item
from tailrace.lab.metrics import Measured
from tailrace.state.snapshots.arrow import pa, parquet

jinja2: Any = ExtraModule("jinja2", "comparisons of versions", "lab")
Kind = Literal["state", "output"]
_database = cache(connected)
_STEPS = 20
"""Bars of a histogram."""
_DIFFERENCE: Final = "case when isfinite(try_cast(b as double) - try_cast(a as double)) then try_cast(b as double) - try_cast(a as double) end"
_SHOWN = 50
"""Most fields of a report."""
_WORST: Final[Mapping[Kind, str]] = {
    "state": """
select actor, key_bytes, count(*) as fields, max(abs({difference})) as most from {file}
group by actor, key_bytes order by most desc nulls last, fields desc, actor, key_bytes limit {limit}
""",
    "output": """
select topic, key_bytes, count(*) as outputs, min(time) as since from {file} where key_bytes is not null
group by topic, key_bytes order by outputs desc, since, topic, key_bytes limit {limit}
""",
}
_FIRST: Final = ", ".join(
    f'"first".{one} as first_{one}' for one in ("topic", "partition", "offset", "timer", "time")
)
_TABLES: Final[Mapping[str, str]] = {
    "differences": """
select actor, one.key, field, a, b, {difference} as difference, {first}
from {states} as one left join firsts as "first"
    on "first".kind = 'state' and "first".name = actor and "first".key = key_bytes
order by abs(difference) desc nulls last, actor, one.key, field
""",
    "outputs_differences": """
select one.topic, one.key, one.time, number_a, number_b, one.kind, a, b, {first}
from {outputs} as one left join firsts as "first"
    on "first".kind = 'output' and "first".name = one.topic and "first".key = key_bytes
order by one.time, one.topic, one.key, number_a, number_b
""",
}
_FIELDS: Final = r"""
with one as (
    select actor, regexp_replace(regexp_extract(field, '^[^\[]*'), '^(.*timer) .*', '\1') as field, key, difference,
        case when difference is not null then try_cast(a as double) end as a,
        case when difference is not null then try_cast(b as double) end as b
    from {file}
), two as (
    select *, min(difference) over w as least, max(difference) over w as most,
        min(least(a, b)) over w as lowest, max(greatest(a, b)) over w as highest
    from one window w as (partition by actor, field)
), three as (
    select actor, field, count(distinct key) as keys, count(difference), avg(difference), any_value(least), any_value(most),
        any_value(lowest), any_value(highest), {bars}
    from two group by actor, field
)
select * exclude (differences, ones, others), {lists} from three order by keys desc, 1, 2 limit {shown}
"""
_BARS: Final = """
histogram(case when {value} is null then null when {high} = {low} then 0
    else least({steps} - 1, cast(floor({steps} * (({value} - {low}) / ({high} - {low}))) as bigint)) end) as {name}"""
_PLOTTED: Final = (
    ("differences", "difference", "least", "most"),
    ("ones", "a", "lowest", "highest"),
    ("others", "b", "lowest", "highest"),
)


class Field(msgspec.Struct):
    """How a field of the keys of an actor differs: by B less A, where both are numbers."""

    actor: str
    field: str
    """Its name; of a map or a list the name without the entry."""
    keys: int
    """Number of keys in which it differs."""
    numbers: int
    """Number of differences between numbers; the following are of these."""
    mean: float | None
    least: float | None
    most: float | None
    lowest: float | None
    highest: float | None
    """Of the values of both."""
    histogram: list[int]
    """Number of differences in steps of equal size, from ``least`` to ``most``."""
    values_a: list[int]
    """Number of values of A in steps of equal size, from ``lowest`` to ``highest``; of B likewise."""
    values_b: list[int]


def items_to_trace(compared: Path, limit: int) -> list[Item]:
    """The keys that differ most, and the output keys with most differences."""
    found = list[Item]()
    files: Mapping[Kind, Path] = {"state": compared / "states", "output": compared / "outputs"}
    for kind, file in files.items():
        query = _WORST[kind].format(difference=_DIFFERENCE, file=quoted(file), limit=limit)
        found += (Item(kind, row[0], row[1]) for row in rows_of(query))
    return found


def keys_as_text(compared: Path, items: Sequence[Item]) -> list[str]:
    """The texts of the keys of actors."""
    query = f"select any_value(key) from {quoted(compared / 'states')} where actor = ? and key_bytes = ?"  # noqa: S608
    database = _database()
    return [str(database.execute(query, [one.name, one.key]).fetchall()[0][0]) for one in items]


def rows_of(query: str) -> list[tuple[Any, ...]]:
    """The rows of a query over files."""
    rows: list[tuple[Any, ...]] = _database().execute(query).fetchall()
    return rows


def write_tables(compared: Path, firsts: Sequence[First], folder: Path) -> None:
    """Write ``differences.parquet`` and ``outputs_differences.parquet``, with the first events."""
    items, causes = [one for one, _ in firsts], [one for _, one in firsts]
    columns = {
        "kind": pa.array([one.kind for one in items], pa.string()),
        "name": pa.array([one.name for one in items], pa.string()),
        "key": pa.array([one.key for one in items], pa.binary()),
        "topic": pa.array([one.topic for one in causes], pa.string()),
        "partition": pa.array([one.partition for one in causes], pa.int32()),
        "offset": pa.array([one.offset for one in causes], pa.int64()),
        "timer": pa.array([one.timer for one in causes], pa.string()),
        "time": pa.array([one.time_ms for one in causes], pa.timestamp("ms", "UTC")),
    }
    database = connected()
    database.register("firsts", pa.table(columns))
    names = {"states": quoted(compared / "states"), "outputs": quoted(compared / "outputs")}
    for name, query in _TABLES.items():
        said = query.format(difference=_DIFFERENCE, first=_FIRST, **names)
        database.execute(f"copy ({said}) to {quoted(folder / name)} (compression zstd)")


def write_metrics(metrics: Sequence[Measured], folder: Path) -> None:
    """Write ``metrics.parquet``."""
    parquet.write_table(pa.Table.from_pylist(msgspec.to_builtins(metrics)), folder / "metrics.parquet")


def fields_of(folder: Path) -> list[Field]:
    """How each field differs, those of most keys first."""
    bars = (
        _BARS.format(name=name, value=value, low=low, high=high, steps=_STEPS)
        for name, value, low, high in _PLOTTED
    )
    lists = (f"[coalesce({name}[step], 0) for step in range({_STEPS})]" for name, *_ in _PLOTTED)
    query = _FIELDS.format(
        file=quoted(folder / "differences"), bars=",".join(bars), lists=", ".join(lists), shown=_SHOWN
    )
    return [Field(*row) for row in rows_of(query)]


_ROWS, _CHARACTERS, _FIELDS_PLOTTED = 50, 200, 12
_FIRST_SHOWN = """coalesce(case when first_timer is null
        then first_topic || ' partition ' || first_partition || coalesce(' offset ' || first_offset, '')
        else 'timer ' || first_timer || ' of ' || first_topic end || ', ' || strftime(first_time, '%Y-%m-%d %H:%M:%S.%g'), '')"""
_ON_PAGE = (
    ("Keys that differ most", "differences", "actor || ' ' || key || ': ' || field"),
    ("Outputs that differ first", "outputs_differences", "topic || ' ' || coalesce(key, '') || ': ' || kind"),
)
_QUERY = "select {what}, coalesce(a, ''), coalesce(b, ''), {first}, count(*) over () from {file} limit {rows}"


def check_installed() -> None:
    """Raises MissingExtraError: a package is missing that the page needs. It is better known before the work than after it."""
    _ = jinja2.Environment


def write_page(report: Any, folder: Path, *, refresh_s: float | None = None) -> None:
    """Write ``report.html`` beside the tables. ``report``: an ``AbReport``. A browser loads the page again every ``refresh_s``."""
    tables: list[tuple[str, str, int, list[list[str]]]] = []
    for title, name, what in _ON_PAGE:
        found = rows_of(_QUERY.format(what=what, first=_FIRST_SHOWN, file=quoted(folder / name), rows=_ROWS))
        rows = [[_short(text) for text in row[:4]] for row in found]
        tables.append((title, f"{name}.parquet", found[0][4] if found else 0, rows))
    text = _template().render(
        report=report,
        notes=[*report.counts.notes, *report.notes],
        tables=tables,
        refresh_s=refresh_s,
        plotted_metrics=[one for one in report.metrics if one.values is not None],
        plotted_fields=[one for one in report.fields if one.numbers][:_FIELDS_PLOTTED],
        short=_short,
        n="{:,}".format,
        g=number,
    )
    (folder / "report.html").write_text(text, encoding="utf-8")


@cache
def _template() -> Any:
    loader = jinja2.PackageLoader("tailrace.lab")
    page = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return page.get_template("report.html")


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]} …"
