"""Automatic snapshots of a running service at regular intervals. The newest are kept.

The owner of partition 0 starts a process for each snapshot. The process reads the log, so the service continues meanwhile.
The time of the last snapshot is read from the location of the snapshots, so a restarted service does not begin with one. A
failed snapshot is logged and tried again at the next interval; the service does not depend on it.

Most are incremental: they hold the changes since the one before. After a number of them a full one begins a new chain, so
that old ones can be deleted.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tailrace.core.errors import TailraceError
from tailrace.history.snapshots.taking import TakingOptions, take_snapshot
from tailrace.log.opening import open_log
from tailrace.log.options import LogOptions
from tailrace.processes.app_loading import find_app
from tailrace.processes.child_process import BackgroundProcess
from tailrace.processes.logs import LogFormat
from tailrace.runtime.companions import Companion
from tailrace.state.snapshots import Snapshots

_log = logging.getLogger("tailrace.snapshots")

_LINKS = 10
"""Maximum length of a chain. Reading a snapshot reads all of its chain."""


@dataclass(frozen=True, slots=True)
class SnapshotSchedule:
    """The interval and location of a service's snapshots. Can be pickled."""

    uri: str
    every_s: float = 600.0
    keep: int = 5
    """Automatic ones; savepoints stay."""


class AutomaticSnapshots(Companion):
    """Takes snapshots for a service."""

    name = "taking snapshots"

    def __init__(
        self,
        app: str,
        log: Path | str,
        options: LogOptions,
        schedule: SnapshotSchedule,
        log_format: LogFormat,
    ) -> None:
        self._arguments = (app, log, options, schedule)
        self._schedule = schedule
        self._beside = BackgroundProcess("snapshot", log_format, take_automatic)
        self._due_s = time.monotonic() + self._until_due_s(app)

    def look(self) -> None:
        """Begin a snapshot if it is time for one. Costs next to nothing otherwise."""
        if not self.is_here:
            return
        now_s = time.monotonic()
        if self._beside.is_busy:
            if self._beside.is_done:
                if code := self._beside.exit_code:
                    _log.warning("no snapshot was taken: its process died", extra={"exit_code": code})
                self._beside.close()
        elif now_s >= self._due_s:
            self._due_s = now_s + self._schedule.every_s
            self._beside.begin(*self._arguments)

    def close(self) -> None:
        """Stop a snapshot in progress. It is not published, and a later one removes its files."""
        self._beside.close()

    def _until_due_s(self, app: str) -> float:
        try:
            known = [one for one in Snapshots(self._schedule.uri, find_app(app).name).list() if one.automatic]
        except TailraceError as error:
            _log.warning("the snapshots cannot be listed: %s", error)
            return self._schedule.every_s
        if not known:
            return self._schedule.every_s
        ago_s = time.time() - known[-1].created_ms / 1_000
        # If the clock was ahead when the snapshot was taken, and was corrected, the next one is not delayed.
        return max(0.0, self._schedule.every_s - max(0.0, ago_s))


def take_automatic(app: str, log: Path | str, options: LogOptions, schedule: SnapshotSchedule) -> None:
    """Take one snapshot, and delete those that are not kept."""
    plan = find_app(app).plan()
    begun_s = time.monotonic()
    try:
        snapshots = Snapshots(schedule.uri, plan.app)
        links = 0
        for one in snapshots.list():
            links = links + 1 if one.kind == "incremental" else 0
        with closing(open_log(log, options)) as opened:
            taking = TakingOptions(automatic=True, incremental=links < _LINKS - 1)
            made = take_snapshot(plan, opened, snapshots, taking)
    except TailraceError as error:
        _log.warning("no snapshot was taken: %s", error, extra={"app": plan.app})
        return
    gone: list[str] = []
    try:
        gone = snapshots.keep(schedule.keep)
        snapshots.sweep()
    except TailraceError as error:
        _log.warning("old snapshots could not be deleted: %s", error, extra={"app": plan.app})
    _log.info(
        "a snapshot was taken",
        extra={
            "app": plan.app,
            "snapshot": made.id,
            "kind": made.kind,
            "rows": sum(file.rows for task in made.tasks for file in task.files),
            "deleted": len(gone),
            "took_s": round(time.monotonic() - begun_s, 1),
        },
    )
