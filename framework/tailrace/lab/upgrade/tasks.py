"""What a version's own process does for an upgrade: see ``lab.side``."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from functools import partial
from typing import TypeAlias

from msgspec.structs import replace

from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.errors import WorkerLostError
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.beginnings import check_not_edited, rows_of, taped_beginning
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import Where, opened_engine
from tailrace.history.rebuilding.planning import RebuildPlan, plan_rebuild
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.request import Request
from tailrace.history.snapshots.same_moment import check_same_moment
from tailrace.history.snapshots.taking import TakingOptions, take_snapshot
from tailrace.history.status.last_failure import LastFailure, failures_since
from tailrace.log.opening import open_log
from tailrace.state.snapshots import Snapshots, TaskEntry

_log = logging.getLogger("tailrace.upgrade")
_NAP_S = 0.05
_SELDOM_S = 0.5
_FAILURES = 5
_AGAIN_S = 60.0
"""Longer than a supervisor waits before it starts a process again."""
SnapshotAt: TypeAlias = tuple[str, str]
"""The URI of snapshots, and the id of one."""


def advance(_: Plan, request: Request, where: Where) -> RebuildReport:
    """Rebuild."""
    with opened_engine(where) as engine:
        return rebuild(request, engine)


def planned(_: Plan, request: Request) -> RebuildPlan:
    """The plan of a rebuild."""
    return plan_rebuild(request)


def check_beginning(plan: Plan, log: str) -> None:
    """Raises SnapshotMismatchError: the history begins with a state that the log does not lead to."""
    with closing(open_log(log)) as opened:
        history = AppHistory(plan, opened)
        for number in range(plan.partitions):
            for _ in check_not_edited(history, number, history.committed(number).cut):
                pass  # a note of a rebuild


def keep(plan: Plan, log: str, uri: str, name: str) -> str:
    """Take a snapshot of the present state, outside of drains, unless it was taken. Returns its id."""
    snapshots = Snapshots(uri, plan.app)
    if found := _named(snapshots, name):
        return found
    options = TakingOptions(name=name, incremental=True, outside_drains=True)
    with closing(open_log(log)) as opened:
        return take_snapshot(plan, opened, snapshots, options).id


def _named(snapshots: Snapshots, name: str) -> str | None:
    return next((one.id for one in snapshots.list() if one.name == name), None)


def kept_beginning(plan: Plan, log: str, uri: str, kept: str, name: str) -> str:
    """The state ``kept``, as a state with which the app's present history begins. Returns its id.

    It stands at the same moment as the snapshot that has replaced it, so what follows on the tape follows it as well.
    """
    snapshots = Snapshots(uri, plan.app)
    if found := _named(snapshots, name):
        return found
    manifest, draft = snapshots.open(kept).manifest, snapshots.begin()
    with closing(open_log(log)) as opened:
        history = AppHistory(plan, opened)
        tasks = tuple(_begun(history, one) for one in manifest.tasks)
    made = replace(
        manifest,
        id=draft.id,
        created_ms=draft.created_ms,
        kind="incremental",
        parent=kept,
        name=name,
        tasks=tasks,
    )
    return snapshots.publish(made).id


def _begun(history: AppHistory, entry: TaskEntry) -> TaskEntry:
    end = history.committed(entry.partition).cut
    if not entry.cut or end is None:
        return replace(entry, files=(), changelog_position=None)
    mine, begun = (
        tape.decode_cut(entry.cut),
        taped_beginning(history, entry.partition, tape.decode_cut(end)).decoded,
    )
    assert begun is not None
    cut = replace(
        mine,
        positions={name: begun.positions.get(name, at) for name, at in mine.positions.items()},
        now=begun.now,  # the tape has the differences of the clock
        lineage=begun.lineage,
        totals=begun.totals,
        tape=begun.tape,
        base=begun.base,
        identity=begun.identity,
    )
    return replace(entry, cut=tape.encode(cut), files=(), changelog_position=None)


def verify(plan: Plan, made: SnapshotAt, old: SnapshotAt, under_way: list[str], *, timers: bool) -> None:
    """Check that a snapshot of new stands where one of old does, in all tasks, and that no timer is lost.
    ``under_way``: see ``check_same_moment``. Raises SnapshotMismatchError.
    """
    found, kept = (Snapshots(uri, plan.app).open(which) for uri, which in (made, old))
    for task in kept.manifest.tasks:
        if task.cut:
            live_rows = partial(rows_of, kept, task.partition) if timers else None
            live = tape.decode_cut(task.cut)
            check_same_moment(plan, found, task.partition, live, live_rows, under_way=under_way)


def counted_rows(plan: Plan, uri: str, snapshot: str) -> int:
    """The number of rows of a snapshot."""
    found = Snapshots(uri, plan.app).open(snapshot)
    return sum(len(keys) for number in range(plan.partitions) for keys, _ in found.chunks(number))


def await_begun(plan: Plan, log: str, uri: str, snapshot: str, failed_from: int) -> None:
    """Wait until all tasks have begun with a snapshot. ``failed_from``: see ``failures_since``.
    Raises WorkerLostError: processes have failed, and either often, or since then nobody has owned a task for a minute.
    """
    left = {task.partition for task in Snapshots(uri, plan.app).open(snapshot).manifest.tasks if task.cut}
    failed, owned_s = list[LastFailure](), 0.0
    with closing(open_log(log)) as opened:
        history = AppHistory(plan, opened)
        while left := {number for number in left if not _has_begun(history, number, snapshot)}:
            found = [*failures_since(opened, plan.app, failed_from)]
            for one in found[len(failed) :]:
                _log.warning("a process of version %r has failed: %s", plan.version, _said(one))
            if len(found) > len(failed) or any(opened.owner(plan.app, number) for number in left if found):
                failed, owned_s = found, time.monotonic()
            if len(failed) >= _FAILURES or (failed and time.monotonic() - owned_s > _AGAIN_S):
                raise WorkerLostError(
                    f"processes of version {plan.version!r} have failed before they had begun with the new state "
                    f"({counted(len(failed), 'failure')}), the last one by: {_said(failed[-1])}",
                    hint=f"Correct that, start version {plan.version!r} again, and run this command again: it resumes, and nothing else "
                    "may run. When it has ended, --rollback returns.",
                )
            time.sleep(_SELDOM_S if failed else _NAP_S)


def _said(one: LastFailure) -> str:
    return f"{one.error} ({one.place})" if one.place else one.error


def _has_begun(history: AppHistory, number: int, snapshot: str) -> bool:
    cut = history.committed(number).cut
    return cut is not None and tape.decode_cut(cut).base == snapshot
