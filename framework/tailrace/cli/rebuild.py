"""``tailrace rebuild``: history run again into a snapshot that a service starts from."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from tailrace.cli.arguments import (
    DEFAULT_SNAPSHOTS,
    any_environment_option,
    from_snapshot_option,
    json_option,
    keys_option,
    log_option,
    name_option,
    outside_of_log,
    piped,
    workers_option,
)
from tailrace.cli.commands import Command
from tailrace.cli.limits import (
    EndOffset,
    end_offsets,
    until_clock_option,
    until_offset_option,
    until_option,
)
from tailrace.cli.misspelt import Choice
from tailrace.cli.progress_line import ProgressLine
from tailrace.cli.settings import Setting, is_typed
from tailrace.core.declare.plan import ON_ERROR, OnError
from tailrace.core.errors import MissingExtraError
from tailrace.history.rebuilding.chained import rebuild_chain
from tailrace.history.rebuilding.determinism import TwiceReport, rebuild_twice
from tailrace.history.rebuilding.driver import rebuild as run_rebuild
from tailrace.history.rebuilding.engines import Engine, LocalEngine
from tailrace.history.rebuilding.job import Order, Request
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.work_folder import UnitProgress
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import LATEST, which_where

DIFFERENT = 1
_STAGES = {
    "task": "replaying",
    "first": "reading and dealing",
    "shard": "handling",
    "merge": "merging",
    "canonical": "replaying",
    "trace": "looking for the first difference",
}


class _RenamedType(click.ParamType):
    name = "topic=other-topic"
    example = "movements=movements-again"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """The declared topic, and the one that is read."""
        topic, _, other = str(value).partition("=")
        if not topic or not other:
            self.fail(f"{value!r} does not name two topics; write movements=movements-again.", param, ctx)
        return topic, other


@click.command(cls=Command, short_help="Make a snapshot of an app from its history.")
@click.argument("apps", metavar="APP...", nargs=-1, required=True)
@click.option(
    "--chain",
    is_flag=True,
    help="Rebuild several apps, each from what the ones before it emit in this rebuild. Needs --outputs topic:SUFFIX.",
)
@log_option
@click.option(
    "--read",
    type=_RenamedType(),
    metavar="TOPIC=OTHER",
    multiple=True,
    help="Read an input from another topic; may be repeated.",
)
@click.option(
    "--archive", cls=Setting, metavar="URI", help="Read what the log has deleted from this archive of it."
)
@click.option(
    "--to",
    cls=Setting,
    setting="snapshots",
    metavar="URI",
    default=DEFAULT_SNAPSHOTS,
    show_default=True,
    help="Where the snapshot goes: a folder, or s3://bucket/prefix and the like.",
)
@from_snapshot_option
@click.option(
    "--engine",
    cls=Setting,
    type=Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="Where the work is done: in processes of this machine, or in Spark.",
)
@click.option(
    "--master",
    cls=Setting,
    metavar="URL",
    help="With --engine spark: the cluster (default: local[*]).",
)
@workers_option(None, "With --engine local: processes of this machine.")
@click.option(
    "--split",
    type=click.IntRange(1),
    help="Number of shards that share the keys of each partition (default: chosen by the rebuild).",
)
@until_offset_option
@until_option
@until_clock_option
@keys_option
@click.option(
    "--outputs",
    metavar="none|parquet:URI|topic:SUFFIX",
    default="none",
    show_default=True,
    help="Where to write the handlers' outputs: nowhere, to Parquet files, or to topics whose names have this suffix.",
)
@click.option(
    "--order",
    type=Choice(["auto", "tape", "canonical"]),
    default="auto",
    show_default=True,
    help="Order of the inputs: that of the service (tape), or by event time (canonical); auto: the tape if there is one.",
)
@click.option(
    "--on-error",
    type=Choice(ON_ERROR),
    default="stop",
    show_default=True,
    help="What to do with a failure that the service did not have: of a handler, or of decoding a record.",
)
@click.option(
    "--retry-failed",
    is_flag=True,
    help="Retry records and timers that failed in the service, in their original place; their redriven copies are skipped.",
)
@click.option("--after-deleted", is_flag=True, help="Skip the records that the log has deleted.")
@any_environment_option
@name_option
@click.option(
    "--work",
    cls=Setting,
    type=click.Path(file_okay=False),
    help="Folder for intermediate files (default: beside the snapshots).",
)
@click.option(
    "--twice",
    is_flag=True,
    help="Detect code that is not deterministic: rebuild twice in different ways; exit 1 if a key or an output differs.",
)
@click.option(
    "--restart", is_flag=True, help="Start an interrupted rebuild from the beginning instead of resuming it."
)
@json_option
def rebuild(**given: Any) -> int:
    """Make a snapshot of APP (package.module:app) from its history. Nothing of the service is changed or held up.

    A rebuild that was interrupted resumes with the same command. Several apps, in the order in which events pass through
    them, are rebuilt with --chain.
    """
    asked = _Asked(**given)
    asked.check()
    request = asked.request()
    reports: list[RebuildReport | TwiceReport]
    with ProgressLine() as line, _engines(asked) as engine_of:

        def on_progress(stage: str, progress: UnitProgress) -> None:
            line.report(partial(_progress, stage, progress))

        run = partial(run_rebuild, engine=engine_of(None), on_progress=on_progress, restart=asked.restart)
        if asked.twice:
            reports = [rebuild_twice(request, engine_of, on_progress=on_progress)]
        else:
            reports = [*rebuild_chain(request, asked.apps, run)] if asked.chain else [run(request)]
    with piped():
        for one in reports:
            click.echo(msgspec.json.encode(one) if asked.as_json else "\n".join(one.lines()))
    return DIFFERENT if any(isinstance(one, TwiceReport) and one.differs for one in reports) else 0


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What was asked for: the arguments and options of the command, by their names."""

    apps: tuple[str, ...]
    chain: bool
    folder: Path
    read: tuple[tuple[str, str], ...]
    archive: str | None
    to: str
    from_snapshot: str | None
    engine: str
    master: str | None
    workers: int | None
    split: int | None
    offsets: tuple[EndOffset, ...]
    until_ms: int | None
    clock_ms: int | None
    keys: tuple[str, ...]
    outputs: str
    order: Order
    on_error: OnError
    retry_failed: bool
    after_deleted: bool
    any_environment: bool
    name: str | None
    work: str | None
    twice: bool
    restart: bool
    as_json: bool

    def check(self) -> None:
        """Refuse what makes no sense together.

        Raises:
            click.UsageError: An option needs another one, or a place is within the log.
        """
        if len(self.apps) > 1 and not self.chain:
            raise click.UsageError("Several apps are rebuilt together with --chain; without it, name one.")
        if self.chain and (self.twice or len(self.apps) == 1):
            raise click.UsageError("--chain goes with two or more apps, and without --twice.")
        if self.master is not None and self.engine != "spark" and is_typed("master"):
            raise click.UsageError("--master goes with --engine spark.")
        outside_of_log(self.to, self.folder, "--to")
        kind, colon, rest = self.outputs.partition(":")
        if kind == "parquet" and colon:
            outside_of_log(rest, self.folder, "--outputs")
        if kind == "topic" and colon and not rest:
            raise click.BadParameter(
                "a suffix is what tells the new topics from the service's: topic:-new", param_hint="--outputs"
            )

    def request(self) -> Request:
        """The rebuild of the first app."""
        base_uri, base_id = (None, LATEST) if self.from_snapshot is None else which_where(self.from_snapshot)
        return Request(
            app=self.apps[0],
            read=dict(self.read),
            log=str(self.folder),
            to=self.to,
            archive=self.archive,
            base=base_uri,
            base_id=base_id,
            until_offsets=self._ends(),
            until_ms=self.until_ms,
            until_clock_ms=self.clock_ms,
            keys=self.keys,
            outputs=self.outputs,
            on_error=self.on_error,
            retry_failed=self.retry_failed,
            any_environment=self.any_environment,
            go_on_after_deleted=self.after_deleted,
            order=self.order,
            split=self.split,
            work=self.work,
            name=self.name,
        )

    def _ends(self) -> dict[str, dict[int, int]]:
        if not self.offsets:
            return {}
        plan = find_app(self.apps[0]).plan()
        return end_offsets(
            plan.app, [one.name for one in plan.inputs], self.offsets, lambda _: plan.partitions
        )


@contextmanager
def _engines(asked: _Asked) -> Generator[Callable[[int | None], Engine]]:
    """What makes an engine of a hash seed, for the length of the command."""
    if asked.engine == "local":
        yield lambda seed: LocalEngine(asked.workers, seed)
        return
    try:
        engines: Any = importlib.import_module("tailrace.spark.engine")
        sessions: Any = importlib.import_module("tailrace.spark.session")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the engine 'spark' needs {error.name}", hint="pip install 'tailrace[spark]'"
        ) from error
    with sessions.running(asked.master or "local[*]", attempts=sessions.ATTEMPTS) as spark:
        yield lambda seed: engines.SparkEngine(spark, seed)


def _progress(stage: str, progress: UnitProgress, seconds: float) -> str:
    share = progress.records / progress.of if progress.of else 0.0
    return f"{_STAGES[stage]}: {progress.records:,} of {progress.of:,} records ({share:.0%}), {seconds:.0f} s"
