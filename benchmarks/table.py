"""The table, for the terminal and for docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.measure import Row

HEADINGS = ("case", "target", "measured", "ratio", "beside", "")


class Marks(NamedTuple):
    """The marks before and after a table in a page."""

    begin: str
    end: str


SERVED = Marks("<!-- measured: begin -->", "<!-- measured: end -->")
KAFKA = Marks("<!-- measured on Kafka: begin -->", "<!-- measured on Kafka: end -->")
SPARK = Marks("<!-- measured with Spark: begin -->", "<!-- measured with Spark: end -->")


def number(value: float) -> str:
    """A figure with a sensible number of digits."""
    if value >= 1000:
        digits = len(str(int(value))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def cells(row: Row) -> tuple[str, ...]:
    """The cells of a line. The last cell shows whether the target was met."""
    beside = "" if row.compared is None else f"{row.compared_with}: {number(row.compared)} {row.unit}"
    return (
        row.case,
        row.target,
        f"{number(row.measured)} {row.unit}",
        "" if row.ratio is None else f"{row.ratio:.0%}",
        "; ".join(filter(None, (beside, row.note))),
        {True: "met", False: "missed", None: ""}[row.met],
    )


def markdown(rows: Sequence[Row]) -> str:
    """The table in Markdown, with aligned columns, so that the source is readable."""
    return _aligned([cells(row) for row in rows])


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    lines = [HEADINGS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    out = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines]
    out.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(out) + "\n"


def replaced(page: str, rows: Sequence[Row], marks: Marks, *, whole: bool) -> str:
    """The page with a new table between the marks. If the rows are not the ``whole`` table, only these rows are replaced.

    Raises ValueError if the page has no marks.
    """
    before, found, rest = page.partition(marks.begin)
    old, closed, after = rest.partition(marks.end)
    if not found or not closed:
        raise ValueError(f"the page has no {marks.begin} ... {marks.end}")
    by_case = {} if whole else {line[0]: line for line in _lines(old)}
    by_case |= {row.case: cells(row) for row in rows}
    return f"{before}{marks.begin}\n{_aligned(list(by_case.values()))}{marks.end}{after}"


def _lines(table: str) -> list[tuple[str, ...]]:
    """The cells of a Markdown table, line by line, without the header."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in lines[2:]]
