"""``tailrace explore``: tests whether the results of an app depend on the order of arrival."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from tailrace.cli.arguments import any_log_option, app_argument, json_option, opened_log, tell, topic_of_app
from tailrace.cli.commands import Command
from tailrace.cli.console import Part, progress
from tailrace.cli.showing import changes_as_dicts, printable
from tailrace.core.counting import counted
from tailrace.processes.app_loading import find_app
from tailrace.testing.exploring.exploration import explore_feed
from tailrace.testing.exploring.feed import Feed, feed_of_log
from tailrace.testing.exploring.report import Dependence, ExploreReport

DEPENDENT = 1


@click.command(cls=Command, short_help="Find what depends on the order of arrival.")
@app_argument
@any_log_option
@click.option(
    "--schedules",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Number of schedules, the reference included.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the schedules.")
@click.option("--schedule", type=click.IntRange(0), help="Run only this schedule and the reference.")
@click.option(
    "--records",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Number of records to take from the inputs: those with the lowest event times.",
)
@click.option(
    "--unordered",
    metavar="TOPIC",
    multiple=True,
    help="The order of outputs to this topic does not matter; may be repeated.",
)
@click.option(
    "--idleness/--no-idleness",
    default=True,
    show_default=True,
    help="Let inputs be silent for longer than their idle_after in some schedules.",
)
@json_option
def explore(
    *, app: str, folder: Path | str, records: int, unordered: tuple[str, ...], as_json: bool, **options: Any
) -> int:
    """Run APP (package.module:app) over a log's events in many schedules, and compare the results by key.

    It runs in memory, in this process; the log is only read. Topics that the app writes itself are not read
    from the log: each run writes them again. Exit 1 if results depend on the schedule.
    """
    plan = find_app(app).plan()
    free = [topic_of_app(app, name, "--unordered") for name in unordered]
    with opened_log(folder) as log:
        feed = feed_of_log(plan, log, most=records, clock_ms=time.time_ns() // 1_000_000)
    with progress() as report_progress:
        report = explore_feed(
            plan,
            feed,
            unordered=free,
            now_ms=feed.clock_ms,
            on_progress=lambda done, of: report_progress(f"schedule {done:,} of {of:,}", done, of),
            **options,
        )
    tell(_said(report, feed), _lines(report, feed, records), as_json=as_json)
    return DEPENDENT if report.errors else 0


def _lines(report: ExploreReport, feed: Feed, records: int) -> Iterator[Part]:
    first, *rest = map(printable, report.lines())
    yield first, "green" if report.equal else "red" if report.errors else ""
    yield from rest
    if feed.count == records:
        yield f"note: only the first {records:,} records were taken; --records takes more"
    if feed.from_the_future:
        yield (
            f"note: {counted(feed.from_the_future, 'record')} left out: their event times are too far ahead of the "
            "clock (ahead_of_clock)"
        )


def _said(report: ExploreReport, feed: Feed) -> dict[str, object]:
    return {
        **msgspec.to_builtins(report),
        "from_the_future": feed.from_the_future,
        "seconds": round(report.seconds, 3),
        "equal": report.equal,
        "errors": [_as_dict(one) for one in report.errors],
        "declared": [_as_dict(one) for one in report.declared],
    }


def _as_dict(one: Dependence) -> dict[str, object]:
    differences = [
        {"where": each.where, "only_order": each.only_order, "changes": changes_as_dicts(each.changes)}
        for each in one.differences
    ]
    return {**msgspec.to_builtins(one), "differences": differences}
