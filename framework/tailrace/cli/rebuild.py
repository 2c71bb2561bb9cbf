"""``tailrace rebuild``: replays history into a snapshot. A service can start from it."""

from __future__ import annotations

from typing import Any

import click

from tailrace.cli.arguments import app_argument, json_option, keys_option, outside_of_log, tell, until_option
from tailrace.cli.commands import Command
from tailrace.cli.console import progress
from tailrace.cli.rebuild_options import (
    destination_options,
    engine_options,
    execution_options,
    failure_options,
    source_options,
    tables_option,
)
from tailrace.cli.value_types import TimeType
from tailrace.core.engine.replay import Limits
from tailrace.history.rebuilding.driver import rebuild as run_rebuild
from tailrace.history.rebuilding.engines import Where, opened_engine
from tailrace.history.rebuilding.planning import plan_rebuild
from tailrace.history.rebuilding.request import PARQUET, Destination, Request, Source
from tailrace.history.rebuilding.work_folder import UnitProgress

_STAGES = {"task": "replaying", "stage": "running in stages"}


@click.command(cls=Command, short_help="Make a snapshot of an app from its history.")
@app_argument
@source_options
@destination_options
@until_option
@click.option(
    "--as-of",
    "as_of_ms",
    type=TimeType(),
    metavar="TIME",
    help="The state at this event time: of the events up to it, and all that they have sent. In stages.",
)
@keys_option
@click.option(
    "--order",
    type=click.Choice(["auto", "tape", "stages"]),
    default="auto",
    show_default=True,
    help="Order of the inputs: that of the service (tape), or by event time (stages); auto: the tape if "
    "this version has written its end.",
)
@tables_option
@failure_options
@execution_options
@engine_options
@click.option(
    "--restart", is_flag=True, help="Start an interrupted rebuild from the beginning instead of resuming it."
)
@click.option(
    "--plan",
    "only_plan",
    is_flag=True,
    help="Only print the units of work with their records and bytes, and what would be refused.",
)
@json_option
def rebuild(
    *,
    app: str,
    source: Source,
    to: Destination,
    until_ms: int | None,
    where: Where,
    restart: bool,
    only_plan: bool,
    as_json: bool,
    **of_request: Any,
) -> None:
    """Make a snapshot of APP (package.module:app) from its history. The service is not changed.

    An interrupted rebuild resumes when you run the same command again.
    """
    outside_of_log(to.uri, source.log, "--to")
    if to.outputs.startswith(PARQUET):
        outside_of_log(to.outputs.removeprefix(PARQUET), source.log, "--outputs")
    until = Limits(watermark_ms=until_ms)
    request = Request(app=app, source=source, to=to, until=until, **of_request)
    if only_plan:
        planned = plan_rebuild(request)
        tell(planned, planned.lines(), as_json=as_json)
        return
    with progress() as report_progress, opened_engine(where) as engine:

        def on_progress(stage: str, units: UnitProgress) -> None:
            said = f"{_STAGES[stage]}: {units.records:,} of {units.of:,} records"
            report_progress(said, units.records, units.of)

        report = run_rebuild(request, engine, on_progress=on_progress, restart=restart)
    tell(report, report.lines(), as_json=as_json)
