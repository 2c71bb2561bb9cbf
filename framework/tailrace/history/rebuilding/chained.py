"""Rebuilds chained apps together: each app reads the outputs of the apps before it in this rebuild, not the recorded ones.

The outputs of an app go to topics with a suffix, with their watermarks, and the next app reads those instead of the
declared ones. The snapshots stand at the ends of the declared topics, so that all services can continue from them: the
records in these topics up to now are effects of the earlier code.

The work folders of finished apps are kept until the last app is finished. So a chain that was interrupted can be run again:
an app that is finished is resumed with nothing left to do, and its topics are not written twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Protocol

from msgspec.structs import replace

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.errors import OptionError, UsageError
from tailrace.history.app_history import AppHistory, origin_of
from tailrace.history.beginnings import renamed
from tailrace.history.dead_letters.letters import dead_letters, topic_of
from tailrace.history.rebuilding.job import Job, UnitResult
from tailrace.history.rebuilding.output_watermarks import TOPIC
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.request import Request
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.history.stretches import scan
from tailrace.log.interface import Log
from tailrace.log.opening import open_log
from tailrace.processes.app_loading import find_app


class Run(Protocol):
    """Rebuilds one app: ``driver.rebuild`` with an engine."""

    def __call__(self, request: Request, /, *, kept: list[WorkFolder] | None = None) -> RebuildReport:
        """See ``driver.rebuild``."""
        ...


def rebuild_chain(request: Request, apps: Sequence[str], run: Run) -> list[RebuildReport]:
    """Rebuild apps, in the order in which events pass through them. ``request`` has all options except the app.

    Raises:
        UsageError: The apps are no chain in this order, or the request does not fit a chain.
        TailraceError: Any error of ``rebuild``.
    """
    plans = [find_app(one).plan() for one in apps]
    links = links_of(plans)
    _check(request, plans, links)
    suffix = request.to.outputs.removeprefix(TOPIC)
    kept: list[WorkFolder] = []
    reports = [
        run(
            replace(
                request,
                app=app,
                source=replace(request.source, read={name: f"{name}{suffix}" for name in read}),
                to=replace(request.to, as_declared=bool(read)),
                order=request.order if not read else "auto",
            ),
            kept=kept,
        )
        for app, read in zip(apps, links, strict=True)
    ]
    for work in kept:
        with work.held():
            work.clear()
    return reports


def links_of(plans: Sequence[Plan]) -> list[list[str]]:
    """For each app, the inputs that the apps before it write.

    Raises:
        UsageError: A later app reads no topic of the apps before it, or an earlier app reads a topic that it writes.
    """
    links: list[list[str]] = []
    for at, plan in enumerate(plans):
        inputs = [one.name for one in plan.inputs if not one.is_inbox]
        own = plan.written
        before = {name for one in plans[:at] for name in one.written}
        links.append([name for name in inputs if name in before and name not in own])
        if at and not links[-1]:
            raise OptionError(
                f"the app {plan.app!r} reads no topic that the apps before it write",
                hint="Name the apps in the order in which events pass through them.",
            )
        for earlier in plans[:at]:
            if back := sorted(own & {one.name for one in earlier.inputs if one.name not in earlier.written}):
                raise OptionError(
                    f"the app {earlier.app!r} reads {back[0]!r}, which {plan.app!r} writes after it",
                    hint="Name the apps in the order in which events pass through them. Apps in a circle cannot be "
                    "rebuilt as a chain.",
                )
    return links


def _check(request: Request, plans: Sequence[Plan], links: Sequence[Sequence[str]]) -> None:
    if not request.to.outputs.startswith(TOPIC):
        raise OptionError(
            "the apps of a chain hand their outputs on in topics of their own",
            hint="Name a suffix for them: --outputs topic:-new.",
        )
    if (
        request.source.read
        or request.source.base is not None
        or request.limited
        or request.keys
        or request.source.archive
    ):
        raise OptionError(
            "a chain is rebuilt whole, from its beginning and from the log",
            hint="Leave out --read, --from-snapshot, --archive, --key and limits.",
        )
    with closing(open_log(request.source.log)) as log:
        known = log.topics()
        for at, read in enumerate(links):
            apps = [one.app.encode() for one in plans[:at]]
            for name in read:
                if name in known:
                    _check_writers(log, name, apps)
        if request.order != "canonical":
            for plan, read in zip(plans, links, strict=True):
                if not read and plan.changelog_topic in known:
                    _check_begins_with_log(log, plan)


def _check_begins_with_log(log: Log, plan: Plan) -> None:
    """Refuse an app whose tape begins with a snapshot: the next app would not get the outputs from before it."""
    history = AppHistory(plan, log, has_run=False)
    for number in range(plan.partitions):
        data = history.committed(number).cut
        if data is not None and (base := tape.decode_cut(data).base):
            raise UsageError(
                f"the app {plan.app!r} partition {number} began with the snapshot {base}: along the tape its outputs from "
                "before the snapshot are left out, and the next app would not get those",
                hint="Rebuild the chain with --order canonical, which begins with the log.",
            )


def _check_writers(log: Log, name: str, apps: Sequence[bytes]) -> None:
    """Refuse a topic with records that no app of the chain has written: these records would be missing."""
    for number in range(log.partitions(name)):
        for record in scan(log, name, number):
            if all(origin_of(record, app) is None for app in apps):
                raise UsageError(
                    f"{name!r} holds records that no app of the chain has written, the first at partition {number} "
                    f"offset {record.offset}, and the next app would not get those",
                    hint="Add the app that writes them to the chain, or rebuild link by link (--read).",
                )


def as_declared(job: Job, results: Sequence[UnitResult], log: Log, report: RebuildReport) -> list[UnitResult]:
    """The results with cuts at the ends of the declared topics, and with the dead letters that are settled there.

    The rebuild does not read the declared topics, but it handles the events in them: so their dead letters need no redrive,
    unless something failed in this rebuild. In that case the letter of the failed event cannot be determined.
    """
    handled: dict[int, dict[str, list[int]]] = {}
    topics = job.request.source.read
    for letter in dead_letters(log, job.app) if topic_of(job.app) in log.topics() else ():
        number, offset = letter.origin_partition, letter.origin_offset
        if letter.topic not in topics or letter.topic not in job.ends or number is None or offset is None:
            continue
        if offset < job.ends[letter.topic][number]:
            handled.setdefault(number, {}).setdefault(letter.topic, []).append(offset)
    if handled and any(one.failed_here or one.totals.refused for one in results):
        handled = {}
        report.note(
            "dead letters of the topics between the apps are not settled, as something failed in this rebuild: do not redrive "
            "those that it has handled"
        )
    return [_standing(job, one, handled.get(one.partition, {})) for one in results]


def _standing(job: Job, result: UnitResult, handled: dict[str, list[int]]) -> UnitResult:
    if not result.cut:
        return result
    names = {other: name for name, other in job.request.source.read.items()}
    cut = renamed(tape.decode_cut(result.cut), lambda name: names.get(name, name))
    cut.positions |= {
        name: job.ends[name][result.partition] for name in job.request.source.read if name in job.ends
    }
    # Offsets of handled records in the topics that were read are not those of the declared topics.
    settled = {name: offsets for name, offsets in result.handled.items() if name not in names}
    return replace(result, cut=tape.encode(cut), handled=settled | handled)
