"""The page of a comparison of versions: one file, without network, of bounded size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tailrace.core.extras import ExtraModule
from tailrace.lab.database import quoted
from tailrace.lab.tables import rows_of

jinja2: Any = ExtraModule("jinja2", "comparisons of versions", "lab")
_ROWS, _CHARACTERS = 50, 200
_FIRST = """coalesce(case when first_timer is null
        then first_topic || ' partition ' || first_partition || ' offset ' || first_offset
        else 'timer ' || first_timer || ' of ' || first_topic end || ', ' || strftime(first_time, '%Y-%m-%d %H:%M:%S.%g'), '')"""
_TABLES = (
    ("Keys that differ most", "differences", "actor || ' ' || key || ': ' || field"),
    ("Outputs that differ first", "outputs_differences", "topic || ' ' || coalesce(key, '') || ': ' || kind"),
)
_QUERY = "select {what}, coalesce(a, ''), coalesce(b, ''), {first}, count(*) over () from {file} limit {rows}"


class Row(NamedTuple):
    """A row of a table of the page."""

    what: str
    a: str
    b: str
    first: str


def write_page(report: Any, folder: Path) -> None:
    """Write ``report.html`` beside the tables. ``report``: an ``AbReport``."""
    tables: list[tuple[str, str, int, list[Row]]] = []
    for title, name, what in _TABLES:
        found = rows_of(_QUERY.format(what=what, first=_FIRST, file=quoted(folder / name), rows=_ROWS))
        rows = [Row(*(_short(text) for text in row[:4])) for row in found]
        tables.append((title, f"{name}.parquet", found[0][4] if found else 0, rows))
    loader = jinja2.PackageLoader("tailrace.lab")
    page = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    text = page.get_template("report.html").render(
        report=report,
        notes=[*report.counts.notes, *report.notes],
        tables=tables,
        n="{:,}".format,
        g="{:,.6g}".format,
    )
    (folder / "report.html").write_text(text, encoding="utf-8")


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]} …"
