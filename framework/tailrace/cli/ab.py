"""``tailrace ab``: two versions of an app, compared on the same history."""

from __future__ import annotations

from typing import Any

import click

from tailrace.cli.arguments import json_option, outside_of_log, tell, workers_option
from tailrace.cli.commands import Command
from tailrace.cli.console import progress
from tailrace.cli.rebuild_options import failure_options, source_options, tables_option
from tailrace.core.counting import counted, number
from tailrace.lab.ab import compare_versions
from tailrace.lab.comparison import AbReport, Wanted
from tailrace.processes.signals import closing_on_sigterm

EXCEEDED, NOISY = 1, 2


@click.command(cls=Command, short_help="Compare two versions of an app on the same history.")
@click.argument("a")
@click.argument("b")
@source_options
@tables_option
@failure_options
@click.option("--to", required=True, metavar="FOLDER", help="A new or empty folder for the results.")
@click.option(
    "--python-b", metavar="PATH", help="The interpreter of B, with its packages (default: this one)."
)
@click.option(
    "--first-events",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="Number of keys, those that differ most, whose first event is searched.",
)
@click.option(
    "--metrics", metavar="FILE", help="A file of SQL: metrics over the outputs and states of both versions."
)
@click.option(
    "--fail-on",
    "limits",
    multiple=True,
    metavar="LIMIT",
    help="Exit 1 if a number of keys, outputs or a metric's difference exceeds this: keys>0.1%; may be repeated.",
)
@click.option("--noisy", is_flag=True, help="Exit 0 even if A differs from itself or from the service.")
@workers_option(None, "Processes of this machine, half of them for each version.")
@json_option
def ab(*, noisy: bool, as_json: bool, **of_wanted: Any) -> int:
    """Rebuild versions A and B of an app from the same history, and compare states and outputs.

    A and B are each package.module:app, path/to/file.py:app, or either after a git revision: main:package.module:app.
    """
    wanted = Wanted(**of_wanted)
    outside_of_log(wanted.to, wanted.source.log, "--to")
    with progress() as report_progress, closing_on_sigterm():
        report = compare_versions(wanted, lambda said: report_progress(said, 0, 0))
    tell(report, _lines(report), as_json=as_json)
    if report.noise and not noisy:
        return NOISY
    return EXCEEDED if report.exceeded or report.unanswered else 0


def _lines(report: AbReport) -> list[str]:
    counts, noise = report.counts, "; ".join(report.noise)
    order = f"along the tape: {report.why}" if report.order == "tape" else "in stages"
    return [
        *([f"ATTENTION: {report.part}"] if report.part else []),
        f"NOISE: {noise}" if noise else f"no noise: A was compared with {report.noise_measured}",
        f"A: {report.a}",
        f"B: {report.b}",
        f"both {order}",
        f"{counts.keys_differ:,} of {counted(counts.keys, 'key')} differ",
        f"{counts.outputs_differ:,} outputs differ, of {counts.outputs[0]:,} of A and {counts.outputs[1]:,} of B",
        *(f"    {one.actor}.{one.field}: {counted(one.keys, 'key')}" for one in report.fields),
        *(
            f"{one.name}: {number(one.a)} in A, {number(one.b)} in B, difference {number(one.difference)} "
            f"({one.note or f'95 % interval {number(one.low or 0)} to {number(one.high or 0)}'})"
            for one in report.metrics
        ),
        *(f"exceeded: {one}" for one in report.exceeded),
        *(f"LIMIT WITHOUT ANSWER: {one}" for one in report.unanswered),
        *(f"note: {one}" for one in (*counts.notes, *report.notes)),
        f"results in {report.folder} ({report.seconds:.1f} s)",
    ]
