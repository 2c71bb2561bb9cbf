"""``tailrace replay``: replay history; optionally compare, trace or debug."""

from __future__ import annotations

import os
import pdb  # noqa: T100  # to stop in a debugger is what --break is for
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from tailrace.cli.arguments import (
    any_environment_option,
    app_argument,
    json_option,
    keys_option,
    packed,
    partitions_option,
    past_options,
    piped,
    state_option,
    tell,
    until_option,
)
from tailrace.cli.commands import Command
from tailrace.cli.console import Part, progress, say
from tailrace.cli.showing import changes_as_dicts, printable
from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.observer import Call, Moment
from tailrace.core.engine.replay import Limits
from tailrace.core.engine.task import TaskSettings
from tailrace.history.comparing.replayed_state import LiveFolder
from tailrace.history.reading.generations import located
from tailrace.history.reading.named_keys import NamedKeys, named_keys
from tailrace.history.replay.replaying import replay as replayed
from tailrace.history.replay.report import ReplayOptions, ReplayReport, ReplayStatus
from tailrace.history.replay.trace import Trace
from tailrace.log.opening import Past, open_past
from tailrace.processes.app_loading import find_app
from tailrace.processes.environment import timezones_version

DIFFERENT = 1
_HASH_SEED = "PYTHONHASHSEED"


@click.command(cls=Command, short_help="Replay history; compare, trace or debug it.")
@app_argument
@packed("past", Past, *past_options)
@click.option(
    "--compare",
    is_flag=True,
    help="Compare state and outputs with those of the service; exit 1 if any differ.",
)
@state_option
@keys_option
@click.option("--trace", "traced", multiple=True, metavar="KEY", help="Show what happens to this key.")
@click.option("--break", "broken", multiple=True, metavar="KEY", help="Debug the handlers of this key.")
@until_option
@partitions_option
@any_environment_option
@json_option
def replay(
    *,
    app: str,
    past: Past,
    compare: bool,
    state: Path,
    keys: tuple[str, ...],
    traced: tuple[str, ...],
    broken: tuple[str, ...],
    until_ms: int | None,
    partitions: tuple[int, ...],
    any_environment: bool,
    as_json: bool,
) -> int:
    """Replay the history of APP (package.module:app) along its tape. The service is not changed.

    --compare also compares with the state folder of the service, if it exists. If a running service uses the
    folder, only its changelog is compared. --key limits the replay to some keys, and --trace and --break to
    theirs: nothing else is called or compared.
    """
    plan = find_app(app).plan()
    if compare and os.environ.get(_HASH_SEED, "random") not in ("", "random"):
        raise click.UsageError(
            f"{_HASH_SEED} is set: a replay with the hash seed of the service does not show what depends on the order of a set. Unset it "
            f"for the replay: env -u {_HASH_SEED} tailrace replay ..."
        )
    if keys and (traced or broken):
        raise click.UsageError("--trace and --break name the keys of the replay: leave --key out.")
    if as_json and (traced or broken):
        raise click.UsageError("--trace and --break write text: leave --json out.")
    named = {text: _keys_of(plan, text) for text in (*keys, *traced, *broken)}
    tracer = Tracer(
        plan,
        traced={key for text in traced for key in named[text].keys},
        stopped_at={key for text in broken for key in named[text].keys},
    )
    options = ReplayOptions(
        partitions=_partitions(plan, named.values(), partitions),
        keys=frozenset(key for one in named.values() for key in one.keys) or None,
        limits=Limits(watermark_ms=until_ms),
        compare=compare,
        any_environment=any_environment,
        observer=tracer if traced or broken else None,
        settings=TaskSettings(timezones=timezones_version(), scratch=TemporaryFile),
    )
    differs = False
    with piped():
        try:
            report = _run(plan, past, options, state)
        except DebuggerLeft:
            return 0
        differs = report.differences.count > 0
        for text, one in named.items():
            if report.met.isdisjoint(one.keys):
                report.note(f"the replay found nothing for the key {text!r}")
        if options.limits.any and not report.limit_reached:
            report.note("no limit was reached: history was replayed to the last commit")
        tell(_said(plan, report), _lines(plan, report, compared=compare), as_json=as_json)
    return DIFFERENT if differs else 0


class DebuggerLeft(BaseException):
    """The user quit the debugger. Not an ``Exception``, which would be a failure of the handler."""


class OutputFailed(BaseException):
    """The trace cannot be written any more. Not a failure of a handler either."""

    def __init__(self, why: OSError) -> None:
        super().__init__(why)
        self.why = why


class _Debugger(pdb.Pdb):
    """Records that the user quit, since ``runcall`` does not return this."""

    left = False

    def set_quit(self) -> None:
        """See ``bdb.Bdb``."""
        self.left = True
        super().set_quit()


class Tracer(Trace):
    """Shows the handler calls for the keys ``traced``; opens a debugger before those for ``stopped_at``."""

    def __init__(self, plan: Plan, *, traced: Collection[Any], stopped_at: Collection[Any]) -> None:
        super().__init__(plan, traced, _say)
        self._stopped_at = stopped_at
        self._debugger: _Debugger | None = None

    def call(self, call: Call, handler: Callable[..., None], *arguments: Any) -> None:
        """See ``Observer.call``."""
        moment = call.moment
        if moment.key in self._stopped_at:
            say((f"before {call.handler}: ", "yellow"), *self.headline(moment), err=True)
            self._debug(handler, *arguments)
        else:
            handler(*arguments)

    def _debug(self, handler: Callable[..., None], *arguments: Any) -> None:
        """Call a handler in the debugger, which stops at its first line."""
        if self._debugger is None:
            self._debugger = _Debugger()
        self._debugger.runcall(handler, *arguments)
        if self._debugger.left:
            raise DebuggerLeft


def _say(*parts: Part, begins: Moment | None = None) -> None:  # noqa: ARG001  # all lines go to one place
    """Write a line without control characters. A closed pipe must not count as a failure of the handler."""
    try:
        say(*(printable(one) if isinstance(one, str) else (printable(one[0]), one[1]) for one in parts))
    except OSError as error:
        raise OutputFailed(error) from None


def _run(plan: Plan, past: Past, options: ReplayOptions, state: Path) -> ReplayReport:
    begun_s = time.monotonic()
    try:
        with (
            progress(shown=options.observer is None) as report_progress,
            closing(open_past(past)) as log,
            closing(LiveFolder(state, located(plan, log))) as live,
        ):

            def on_progress(status: ReplayStatus) -> None:
                report_progress(*_progress(status, time.monotonic() - begun_s))

            states = live.states if options.compare else None
            report = replayed(plan, log, options, live=states, on_progress=on_progress)
            report.note(*(live.notes if not options.limits.any else ()))
            return report
    except OutputFailed as failed:
        raise failed.why from None


def _keys_of(plan: Plan, text: str) -> NamedKeys:
    try:
        return named_keys(plan, (text,))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--key, --trace and --break") from None


def _partitions(plan: Plan, named: Iterable[NamedKeys], given: tuple[int, ...]) -> list[int]:
    if given and max(given) >= plan.partitions:
        raise click.BadParameter(
            f"{plan.app!r} has the partitions 0 to {plan.partitions - 1}", param_hint="--partition"
        )
    of_keys = {number for one in named for number in one.partitions} or set(range(plan.partitions))
    numbers = sorted(of_keys & set(given) if given else of_keys)
    if not numbers:
        said = ", ".join(map(str, sorted(of_keys)))
        raise click.BadParameter(f"the named keys belong to partition {said}", param_hint="--partition")
    return numbers


def _progress(status: ReplayStatus, seconds: float) -> tuple[str, int, int]:
    said = (
        f"partition {status.partition}: commit {status.commit:,} of {status.commits:,}, "
        f"{status.records:,} records, {status.records / max(seconds, 1e-3):,.0f} records/s"
    )
    return said, status.commit, status.commits


def _lines(plan: Plan, report: ReplayReport, *, compared: bool) -> Iterator[Part]:
    rate = report.records / report.seconds if report.seconds else 0
    yield (
        f"replayed {plan.app}: {counted(report.partitions, 'partition')}, "
        f"{counted(report.commits, 'commit')}, "
        f"{counted(report.records, 'record')}, {counted(report.timers, 'timer')}, "
        f"{counted(report.outputs, 'output')} "
        f"in {report.seconds:.1f} s ({rate:,.0f} records/s)"
    )
    yield from (f"note: {note}" for note in report.notes)
    if not compared:
        return
    yield f"compared with {', '.join(report.compared) or 'nothing'}: {counted(report.rows, 'row')} of state"
    found = report.differences
    if not found.count:
        yield "differences: none", "green"
        return
    yield f"differences: {found.count:,}", "red"
    for one in found.shown:
        yield printable(one.where), "bold"
        yield from (f"    {printable(line)}" for line in one.lines())
        if one.detail:
            yield f"    {one.detail}"
    if found.count > len(found.shown):
        yield f"and {found.count - len(found.shown):,} more"


def _said(plan: Plan, report: ReplayReport) -> dict[str, object]:
    counts = ["partitions", "commits", "records", "timers", "outputs", "rows", "compared", "notes"]
    return {
        "app": plan.app,
        **{name: getattr(report, name) for name in counts},
        "seconds": round(report.seconds, 3),
        "differences": report.differences.count,
        "first": [
            {
                "kind": one.kind,
                "partition": one.partition,
                "where": one.where,
                "source": one.names[0],
                "actor": one.actor,
                "topic": one.topic,
                "key": one.key,
                "changes": changes_as_dicts(one.changes, "was", "is"),
                "detail": one.detail,
            }
            for one in report.differences.shown
        ],
    }
