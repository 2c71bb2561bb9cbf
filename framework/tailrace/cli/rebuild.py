"""``tailrace rebuild``: history run again into a snapshot that a service starts from."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from tailrace.cli.arguments import json_option, outside_of_log, piped
from tailrace.cli.misspelt import Choice
from tailrace.cli.progress_line import ProgressLine
from tailrace.cli.replay import TimeType
from tailrace.core.declare.plan import ON_ERROR
from tailrace.core.errors import MissingExtraError
from tailrace.runtime.rebuilding.chained import rebuild_chain
from tailrace.runtime.rebuilding.driver import rebuild as run_rebuild
from tailrace.runtime.rebuilding.engines import Engine, LocalEngine
from tailrace.runtime.rebuilding.job import Request
from tailrace.runtime.rebuilding.report import RebuildReport
from tailrace.runtime.rebuilding.twice import TwiceReport, rebuild_twice
from tailrace.runtime.rebuilding.work import Progress
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


class _OffsetType(click.ParamType):
    name = "topic:partition:offset"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int, int]:
        """The topic, the partition and the offset."""
        topic, *numbers = str(value).rsplit(":", 2)
        if not topic or len(numbers) != 2 or not all(one.isascii() and one.isdecimal() for one in numbers):
            self.fail(f"{value!r} is no offset of a partition; write departures:0:1234.", param, ctx)
        return topic, int(numbers[0]), int(numbers[1])


class _RenamedType(click.ParamType):
    name = "topic=other-topic"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """The declared topic, and the one that is read."""
        topic, _, other = str(value).partition("=")
        if not topic or not other:
            self.fail(f"{value!r} does not name two topics; write movements=movements-again.", param, ctx)
        return topic, other


@click.command(short_help="Make a snapshot of an app from its history.")
@click.argument("apps", metavar="APP...", nargs=-1, required=True)
@click.option(
    "--chain",
    is_flag=True,
    help="Rebuild several apps, each from what the ones before it emit in this rebuild. Needs --outputs topic:SUFFIX.",
)
@click.option(
    "--log",
    "--from",
    "log",
    type=click.Path(file_okay=False),
    default="data/log",
    show_default=True,
    help="Folder of the event log.",
)
@click.option(
    "--read",
    type=_RenamedType(),
    multiple=True,
    help="Read an input from a topic of another name; may be given for several.",
)
@click.option("--archive", metavar="URI", help="What the log has deleted is read from this archive of it.")
@click.option(
    "--to",
    metavar="URI",
    default="data/snapshots",
    show_default=True,
    help="Where the snapshot goes: a folder, or s3://bucket/prefix and the like.",
)
@click.option(
    "--from-snapshot", "base", metavar="URI[#ID]", help="Go on from a snapshot; the latest without ID."
)
@click.option("--engine", type=Choice(["local", "spark"]), default="local", show_default=True)
@click.option("--master", metavar="URL", help="With --engine spark: the cluster; local[*] without.")
@click.option("--processes", type=click.IntRange(1), help="Of this machine; as many as it has cores.")
@click.option(
    "--split", type=click.IntRange(1), default=1, help="Deal the keys of each partition to so many tasks."
)
@click.option(
    "--until-offset",
    "offsets",
    type=_OffsetType(),
    multiple=True,
    help="Stop before this record of an input; may be given for several.",
)
@click.option(
    "--until-time", "until_ms", type=TimeType(), help="Stop as soon as a task's watermark gets there."
)
@click.option(
    "--until-clock", "clock_ms", type=TimeType(), help="Stop before the service's clock went past this."
)
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Only this key; may be repeated.")
@click.option(
    "--outputs",
    metavar="none|parquet:URI|topic:SUFFIX",
    default="none",
    show_default=True,
    help="Where to write what the handlers emit: nowhere, as Parquet files, or into topics of names with a suffix.",
)
@click.option(
    "--order",
    type=Choice(["auto", "tape", "canonical"]),
    default="auto",
    show_default=True,
    help="Of the inputs: as the service had it, or by event time where there is no tape of it.",
)
@click.option(
    "--on-error",
    type=Choice(ON_ERROR),
    default="stop",
    show_default=True,
    help="What to do where a handler fails, or a record does not decode, and did not when it ran first.",
)
@click.option(
    "--retry-failed",
    is_flag=True,
    help="Run what had failed when it ran first again, in its place; what was redriven of it is passed over.",
)
@click.option(
    "--after-deleted", is_flag=True, help="Go on without what the log has deleted of its beginning."
)
@click.option(
    "--any-environment", is_flag=True, help="Also under another Python, msgspec or time zone data than then."
)
@click.option("--name", metavar="NAME", help="Make it a savepoint of this name.")
@click.option(
    "--work",
    type=click.Path(file_okay=False),
    help="Folder for what is under way; beside the snapshots without.",
)
@click.option(
    "--twice",
    is_flag=True,
    help="Find code that is not deterministic: run it again another way, and exit 1 if a key or an output differs.",
)
@click.option("--restart", is_flag=True, help="Begin anew what was interrupted, and do not go on with it.")
@json_option
def rebuild(
    *,
    apps: tuple[str, ...],
    chain: bool,
    log: str,
    read: tuple[tuple[str, str], ...],
    archive: str | None,
    to: str,
    base: str | None,
    engine: str,
    master: str | None,
    processes: int | None,
    split: int,
    offsets: tuple[tuple[str, int, int], ...],
    until_ms: int | None,
    clock_ms: int | None,
    keys: tuple[str, ...],
    outputs: str,
    order: Any,
    on_error: Any,
    retry_failed: bool,
    after_deleted: bool,
    any_environment: bool,
    name: str | None,
    work: str | None,
    twice: bool,
    restart: bool,
    as_json: bool,
) -> int:
    """Make a snapshot of APP (package.module:app) from its history. Nothing of the service is changed or held up.

    One that was interrupted is gone on with by the same command. Several apps, in the order in which events pass through
    them, are rebuilt with --chain.
    """
    first, *others = apps
    if others and not chain:
        raise click.UsageError("Several apps are rebuilt together with --chain; without it, name one.")
    if chain and (twice or not others):
        raise click.UsageError("--chain goes with two or more apps, and without --twice.")
    if master is not None and engine != "spark":
        raise click.UsageError("--master goes with --engine spark.")
    outside_of_log(to, Path(log), "--to")
    kind, colon, rest = outputs.partition(":")
    if kind == "parquet" and colon:
        outside_of_log(rest, Path(log), "--outputs")
    if kind == "topic" and colon and not rest:
        raise click.BadParameter(
            "a suffix is what tells the new topics from the service's: topic:-new", param_hint="--outputs"
        )
    base_uri, base_id = (None, LATEST) if base is None else which_where(base)
    until: dict[str, dict[int, int]] = {}
    for topic, partition, offset in offsets:
        until.setdefault(topic, {})[partition] = offset
    request = Request(
        app=first,
        read=dict(read),
        log=log,
        to=to,
        archive=archive,
        base=base_uri,
        base_id=base_id,
        until_offsets=until,
        until_ms=until_ms,
        until_clock_ms=clock_ms,
        keys=keys,
        outputs=outputs,
        on_error=on_error,
        retry_failed=retry_failed,
        any_environment=any_environment,
        go_on_after_deleted=after_deleted,
        order=order,
        split=split,
        work=work,
        name=name,
    )
    reports: list[RebuildReport | TwiceReport]
    with ProgressLine() as line, _engines(engine, master, processes) as engine_of:

        def tell(stage: str, progress: Progress) -> None:
            line.tell(partial(_progress, stage, progress))

        run = partial(run_rebuild, engine=engine_of(None), tell=tell, restart=restart)
        if twice:
            reports = [rebuild_twice(request, engine_of, tell=tell)]
        else:
            reports = [*rebuild_chain(request, apps, run)] if chain else [run(request)]
    with piped():
        for one in reports:
            click.echo(msgspec.json.encode(one) if as_json else "\n".join(one.lines()))
    return DIFFERENT if any(isinstance(one, TwiceReport) and one.differs for one in reports) else 0


@contextmanager
def _engines(
    name: str, master: str | None, processes: int | None
) -> Generator[Callable[[int | None], Engine]]:
    """What makes an engine of a hash seed, for the length of the command."""
    if name == "local":
        yield lambda seed: LocalEngine(processes, seed)
        return
    try:
        engines: Any = importlib.import_module("tailrace.spark.engine")
        sessions: Any = importlib.import_module("tailrace.spark.session")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the engine 'spark' needs {error.name}", mend="pip install 'tailrace[spark]'"
        ) from error
    with sessions.running(master or "local[*]", attempts=sessions.ATTEMPTS) as spark:
        yield lambda seed: engines.SparkEngine(spark, seed)


def _progress(stage: str, progress: Progress, seconds: float) -> str:
    share = progress.records / progress.of if progress.of else 0.0
    return f"{_STAGES[stage]}: {progress.records:,} of {progress.of:,} records ({share:.0%}), {seconds:.0f} s"
