"""The start of an app from a snapshot, before its tasks run.

Theory. The tasks of an app may be in several processes; ``history.snapshots.start_from_snapshot`` has the rules of one task. Two
rules are of all tasks together:

- *All tasks begin with the same snapshot.* Processes that start at different times would find different snapshots to be the latest.
  So a supervisor settles the id for its children, and where tasks move between machines the snapshot must be named: ``URI#SNAPSHOT``.
- *No task takes a record before all have begun*: the messages in flight, which come with the snapshot, are before those that tasks send.
  So a process begins its tasks, and waits until the log has the beginnings of all tasks. Only then its worker runs. If a process dies
  here, another gets its tasks and begins them. One that starts later finds that all have begun.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import FencedError, LogUnavailableError
from tailrace.history.snapshots.start_from_snapshot import Start, open_start
from tailrace.log.interface import OneCommitLog
from tailrace.processes.app_loading import find_app
from tailrace.runtime.options import ServiceOptions
from tailrace.state.snapshots import which_where

_log = logging.getLogger("tailrace.service")
_LOOK_S = 0.5
"""Between two looks whether the tasks of other processes have begun."""
_NAP_S = 0.02


def snapshot_start(options: ServiceOptions, plan: Plan, log: OneCommitLog) -> Start | None:
    """How the tasks begin with the snapshot of ``--from-snapshot``; None: without one.
    Raises SnapshotError: there is none, or it is damaged.
    """
    if not options.from_snapshot:
        return None
    # Under another name it begins with the state of the app that it is another name of.
    original = find_app(options.app.partition("@")[0]).name
    return open_start(
        options.from_snapshot, original, plan, log, replace=options.replace_state, replaced=options.replaced
    )


def with_snapshot_settled(options: ServiceOptions, plan: Plan, log: OneCommitLog) -> ServiceOptions:
    """The same options with the id of the snapshot, for processes that look later: it may not be the latest by then.
    Raises SnapshotError: there is none, or it is damaged.
    """
    start = snapshot_start(options, plan, log)
    if start is None:
        return options
    uri, _ = which_where(options.from_snapshot)
    return replace(options, from_snapshot=f"{uri}#{start.snapshot.manifest.id}")


def begin_all(
    begin: Callable[[int], None],
    all_begun: Callable[[], bool],
    owned: Collection[int],
    wait: Callable[[float], bool],
) -> None:
    """Begin the tasks that this process owns, until all tasks have begun.

    ``owned`` may change meanwhile. ``wait`` takes seconds, and returns False if the process is to stop.
    Raises SnapshotError or SnapshotMismatchError: the snapshot does not fit the app, its history, or this log.
    """
    begun: set[int] = set()
    look_at_s = 0.0
    while True:
        for number in sorted(set(owned) - begun):
            try:
                begin(number)
            except (FencedError, LogUnavailableError) as error:
                _log.warning("a task does not begin yet: %s", error, extra={"partition": number})
                if not wait(_LOOK_S):
                    return
                break
            begun.add(number)
            look_at_s = 0.0
        if time.monotonic() >= look_at_s:
            if all_begun():
                return
            look_at_s = time.monotonic() + _LOOK_S
        if not wait(_NAP_S):
            return
