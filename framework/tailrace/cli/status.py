"""``tailrace status``: shows the progress of an app, and the inputs that hold its actors back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from tailrace.cli.arguments import any_log_option, app_argument, json_option, opened_log, tell
from tailrace.cli.commands import Command
from tailrace.cli.console import table, wrapped
from tailrace.cli.showing import instant
from tailrace.core.counting import counted
from tailrace.history.status.inspection import (
    AppReport,
    OperatorReport,
    SourceReport,
    TaskReport,
    inspect_app,
)
from tailrace.log.options import LogOptions
from tailrace.log.tasks import Owner, owner_of
from tailrace.processes.app_loading import find_app

_UNKNOWN = "?"
_STORED = "keys", "rows", "bytes", "timers"
_KAFKA = LogOptions(hidden_s=1.0)
"""Do not wait for records behind an open transaction: its writer may hang."""


@click.command(cls=Command, short_help="Progress of an app, and what holds its actors back.")
@app_argument
@json_option
@click.option("--stored", "with_stored", is_flag=True, help="Read the state, and count what is in it.")
@any_log_option
def status(*, app: str, as_json: bool, with_stored: bool, folder: Path | str) -> None:
    """Show the progress of APP (package.module:app), read from its log. The app need not run.

    For each task: its owner, its last commit, the number of unread records. For each actor and function: its
    watermark, and the source that holds it back and why. With --stored also the keys, rows, bytes and timers of
    each actor, and what is open in it: windows, cases, events that a join keeps.
    """
    plan = find_app(app).plan()
    with opened_log(folder, options=_KAFKA) as log:
        now_ms = time.time_ns() // 1_000_000
        report = inspect_app(plan, log, now_ms, partial(owner_of, log), with_stored=with_stored)
    tell(report, _lines(report), as_json=as_json)


def _lines(report: AppReport) -> Iterator[str]:
    tasks = report.tasks
    running = sum(one.owner is not None for one in tasks)
    runs = "does not run" if not running else "runs"
    if 0 < running < len(tasks):
        runs = f"{running} of them run"
    lag = sum(one.lag for one in tasks)
    what = f"{report.app}, version {report.version}: {counted(len(tasks), 'task')}"
    yield f"{what}, {runs}, {counted(lag, 'record')} to read"
    for problem in report.problems:
        yield from wrapped(f"problem: {problem}")
    if (failed := report.last_failure) is not None:
        where = f" ({failed.place})" if failed.place else ""
        yield from wrapped(f"last failure: {instant(failed.at_ms)}: {failed.error}{where}")
    yield ""
    yield from _tasks(report)
    yield ""
    yield from _sources(tasks)
    for one in tasks:
        for source in one.sources:
            if source.late_cause:
                yield from wrapped(f"task {one.partition}: {source.late_cause}")
    for place in range(len(tasks[0].operators)):
        yield ""
        yield from _operator([(one.partition, one.operators[place]) for one in tasks])


def _tasks(report: AppReport) -> Iterator[str]:
    rows: list[tuple[object, ...]] = [
        (
            one.partition,
            _owner(one.owner),
            "never" if one.committed_ms is None else instant(one.committed_ms),
            "" if one.committed_ms is None else _ago(report.at_ms - one.committed_ms),
            one.lag,
            one.dead_letters,
        )
        for one in report.tasks
    ]
    header = ("task", "process", "last commit", "", "to read", "dead letters")
    yield from table(rows, header)


def _owner(owner: Owner | None) -> str:
    if owner is None:
        return "-"
    where = f" on {owner.host}" if owner.host else ""
    return f"{owner.pid or _UNKNOWN}{where}{', stopped' if owner.stopped else ''}"


def _sources(tasks: tuple[TaskReport, ...]) -> Iterator[str]:
    rows: list[tuple[object, ...]] = [
        (source.topic, one.partition, source.lag, instant(source.watermark_ms), _about(source))
        for place in range(len(tasks[0].sources))
        for one in tasks
        for source in [one.sources[place]]
    ]
    if rows:
        yield from table(rows, ("input", "task", "to read", "watermark", ""))


def _about(source: SourceReport) -> str:
    known = ["not waited for"] if source.follows == "nothing" else []
    known += ["follows its writers"] if source.follows == "writers" else []
    known += ["idle"] if source.idle and source.follows != "nothing" else []
    if source.start:
        since_ms = source.replayable_since_ms
        known.append("no record is left" if since_ms is None else f"replayable since {instant(since_ms)}")
    return ", ".join(known)


def _operator(some: list[tuple[int, OperatorReport]]) -> Iterator[str]:
    first = some[0][1]
    waits = any(one.waiting for _, one in some)
    cells = [[number, instant(one.watermark_ms), *([_waiting(one)] if waits else [])] for number, one in some]
    yield f"{first.kind} {first.name}"
    if first.feedback:
        yield from wrapped(f"feedback, not waited for: {', '.join(first.feedback)}")
    if stored := [one.stored for _, one in some if one.stored is not None]:
        sums = ", ".join(f"{sum(getattr(one, of) for one in stored):,} {of}" for of in _STORED)
        names = dict.fromkeys(name for one in stored for name in one.open)
        now_open = ", ".join(f"{name} {sum(one.open.get(name, 0) for one in stored):,}" for name in names)
        yield from wrapped(f"stored: {sums}{'; open: ' if now_open else ''}{now_open}")
    first_line, *lines = table(cells, ("task", "watermark", *(["waiting for their turn"] if waits else [])))
    yield first_line
    reasons = [_reason(one) for _, one in some]
    alike = len(reasons) > 1 and len(set(reasons)) == 1
    for line, reason in zip(lines, reasons, strict=True):
        yield line
        if not alike:
            yield from wrapped(reason)
    if alike:
        yield from wrapped(f"all tasks: {reasons[0]}")


def _waiting(one: OperatorReport) -> str:
    return ", ".join(f"{count:,} of {name}" for name, count in one.waiting.items()) or "-"


def _reason(one: OperatorReport) -> str:
    if one.held_by is None:
        return "its input has ended for good" if one.ended else "all of its inputs are idle"
    return f"held by {one.held_by.source}: {one.held_by.text}"


def _ago(milliseconds: int) -> str:
    """A past time with about two digits: ``0.4 s ago``, ``3 min ago``."""
    seconds = max(0, milliseconds) / 1_000
    for name, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name} ago"
    return f"{seconds:.1f} s ago"
