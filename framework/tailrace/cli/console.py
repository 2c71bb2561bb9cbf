"""Output for people: styled lines, tables, and a progress bar on a terminal.

If the output is not a terminal, the same text is written without styles and without a progress bar. A
non-empty environment variable ``NO_COLOR`` also turns the styles off on a terminal.

rich draws tables and progress bars. Importing it takes time, so only the functions that draw import it.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import click

from tailrace.core.counting import offsets
from tailrace.log.interface import TopicPartition
from tailrace.log.opening import WAITING_LOGGER

Part: TypeAlias = str | tuple[str, str]
"""A part of a line: text, or text with its style, such as ``("late", "red")``."""

ReportProgress: TypeAlias = Callable[[str, int, int], None]
"""Called with the current work, how much of it is done, and how much there is in total (0 if not known)."""

_ENDLESS = 1 << 20
"""Wider than any table, so a row is always one line."""


def say(*parts: Part, err: bool = False) -> None:
    """Write a line to standard output, or with ``err`` to standard error.
    Raises OSError: the line cannot be written; BrokenPipeError if the reader has closed the pipe.
    """
    color = False if os.environ.get("NO_COLOR") else None  # None: on a terminal
    click.echo("".join(map(_styled, parts)), err=err, color=color)


def _styled(part: Part) -> str:
    if isinstance(part, str):
        return part
    text, style = part
    if style in ("bold", "dim"):
        return click.style(text, bold=style == "bold" or None, dim=style == "dim" or None)
    return click.style(text, fg=style) if style else text


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> list[str]:
    """The lines of a table, header first; numbers are aligned to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for at, name in enumerate(header):
        numbers = bool(rows) and all(type(row[at]) is int for row in rows)
        drawn.add_column(Text(name), justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        drawn.add_row(*(Text(f"{cell:,}" if type(cell) is int else str(cell)) for cell in row))
    text = io.StringIO()
    Console(file=text, width=_ENDLESS, color_system=None).print(drawn)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def wrapped(text: str) -> list[str]:
    """The lines of a text below a row of a table: indented, and at most 100 columns wide."""
    return textwrap.wrap(
        text,
        100,
        initial_indent=" " * 6,
        subsequent_indent=" " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )


class _Waiting(logging.Handler):
    """Writes to standard error, unless the command writes logs."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            click.echo(f"tailrace: {record.getMessage()}", err=True)


def show_waiting() -> None:
    """From now on, say on standard error for what a command waits, if Kafka does not answer."""
    waiting = logging.getLogger(WAITING_LOGGER)
    if not any(isinstance(one, _Waiting) for one in waiting.handlers):
        waiting.addHandler(_Waiting())


def say_hidden(place: TopicPartition, first: int, stop: int) -> None:
    """Name the offsets that an open transaction hides on standard error; what is before them is shown."""
    click.echo(
        f"not shown: {offsets(first, stop)} of {place.topic!r} partition {place.partition}, which a "
        "transaction that is open hides. Run the command again when it has ended",
        err=True,
    )


def styled_table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> list[Part]:
    """The lines of a table, its header in bold."""
    first, *lines = table(rows, header)
    return [(first, "bold"), *lines]


@contextmanager
def progress(*, shown: bool = True) -> Generator[ReportProgress]:
    """A progress bar on standard error, if that is a terminal, until the end of ``with``."""
    if not (shown and sys.stderr.isatty()):
        yield lambda _doing, _done, _of: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr, no_color=bool(os.environ.get("NO_COLOR"))),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda doing, done, of: bar.update(task, description=doing, completed=done, total=of or None)
