"""Taking a snapshot of an app from its log, while the app runs, and without its help.

Theory. The ends that a log gives for all topics of an app are a consistent cut (see ``log.consistent_ends``):
whatever a task has read by its end of the changelog, was sent by then. What was sent by then and is not read,
is *in flight*: the messages are stored with the snapshot (see ``history.reading.in_flight``).

The changelog is compacted, so it holds each row about once: reading it to the end is reading the state. No
cleaning may run meanwhile, because it may remove the last record before the cut when there is a later one for
the same row.

An *incremental* snapshot reads the changelog from its parent's position. Deletions are kept for a limited
time only, so the parent must not be older than half of that time, as for a state folder that was not in use.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.errors import AlteredSnapshotError, SnapshotMismatchError
from tailrace.core.names import is_own
from tailrace.history.provenance.judging import does, judge, snapshot_provenance
from tailrace.history.provenance.topics import (
    abandoned_inputs,
    check_history,
    check_same_topics,
    note_of_topics,
)
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.app_topics import topics_of
from tailrace.history.reading.changelog import beginning, fold
from tailrace.history.reading.in_flight import InFlight
from tailrace.log.interface import OneCommitLog, TopicPartition
from tailrace.processes.environment import environment
from tailrace.state.provenance import provenance_in
from tailrace.state.snapshots import FileInfo, Manifest, Snapshot, Snapshots, TaskEntry, write_task

DELETIONS_KEPT_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class TakingOptions:
    """The kind of snapshot to take."""

    name: str | None = None
    """A name makes it a savepoint."""
    automatic: bool = False
    incremental: bool = False
    """Store only the changes since the latest snapshot, if that can be the parent."""
    outside_drains: bool = False
    """Wait until no task is within a drain."""


def take_snapshot(
    plan: Plan, log: OneCommitLog, snapshots: Snapshots, options: TakingOptions | None = None
) -> Manifest:
    """Take a snapshot of an app as of the last commit in the log, and publish it.

    The app may run meanwhile, in any number of workers. It is not stopped, and slowed only by the load on the
    machine. The rows of one task at a time are held in memory.
    Raises UnknownTopicError, SnapshotMismatchError, SnapshotError, OtherHistoryError or OffsetGoneError.
    """
    return _Taking(plan, log, snapshots, options or TakingOptions()).run()


class _Taking:
    def __init__(self, plan: Plan, log: OneCommitLog, snapshots: Snapshots, options: TakingOptions) -> None:
        self._log, self._snapshots, self._options = log, snapshots, options
        self._history = AppHistory(plan, log)
        self._plan = self._history.plan

    def run(self) -> Manifest:
        plan, options = self._plan, self._options
        with self._log.compaction_paused([plan.changelog_topic]):
            topics = topics_of(plan, self._log)
            noted = note_of_topics(self._log, topics)
            check_history(plan.app, self._log, plan.inputs)
            (_, ends), found = self._history.last_commits(
                partial(self._log.ends, topics), outside_drains=options.outside_drains
            )
            parent = self._parent() if options.incremental else None
            changelogs = ends[plan.changelog_topic]
            cuts = {number: one.cut for number, one in enumerate(found)}
            if not any(cuts.values()):
                raise SnapshotMismatchError(
                    f"the app {plan.app!r} has never committed: there is no state yet", hint="Run it first."
                )
            flight = InFlight(self._history, cuts, ends)
            left = abandoned_inputs(plan, self._log, changelogs)
            draft = self._snapshots.begin()
            tasks = [
                self._task(
                    number,
                    changelogs[number],
                    flight,
                    draft.folder_uri,
                    parent,
                    {name: at for name, at in one.items() if not is_own(name, plan.app)},
                )
                for number, one in left.items()
            ]
        check_same_topics(self._log, noted)
        manifest = Manifest(
            id=draft.id,
            app=plan.app,
            version=plan.version,
            partitions=plan.partitions,
            created_ms=draft.created_ms,
            kind="full" if parent is None else "incremental",
            parent=None if parent is None else parent.manifest.id,
            name=options.name,
            automatic=options.automatic,
            source="live",
            environment=environment(),
            ends=ends,
            tasks=tuple(tasks),
        )
        return self._snapshots.publish(manifest)

    def _parent(self) -> Snapshot | None:
        """The latest snapshot, if the changes since can be read from the changelog."""
        known = self._snapshots.list()
        if not known:
            return None
        try:
            parent = self._snapshots.open(known[-1].id)
        except AlteredSnapshotError:
            return None  # a full one does not need it
        manifest = parent.manifest
        age_ms = time.time_ns() // 1_000_000 - manifest.created_ms
        if manifest.source != "live" or manifest.partitions != self._plan.partitions:
            return None
        if not 0 <= age_ms <= DELETIONS_KEPT_MS // 2:  # the age of a snapshot from the future is unknown
            return None
        for task in manifest.tasks:
            place = TopicPartition(self._plan.changelog_topic, task.partition)
            start, end = self._log.start_offset(*place), self._log.end_offset(*place)
            if task.changelog_position is None or not start <= task.changelog_position <= end:
                return None
            # Check that it is the same history: another log with the same names could match by its offsets
            # alone.
            now = self._history.committed(task.partition).cut
            if task.cut and (now is None or _life(now) != _life(task.cut)):
                return None
            # If the log has lost its end since, it has continued with other records at the same offsets.
            found = (
                judge(self._plan, self._log, task.partition, tape.decode_cut(task.cut)) if task.cut else None
            )
            if found is not None and does("parent", found) != "take":
                return None
        return parent

    def _task(
        self,
        number: int,
        end: int,
        flight: InFlight,
        folder: str,
        parent: Snapshot | None,
        left: Mapping[str, int],
    ) -> TaskEntry:
        place = TopicPartition(self._plan.changelog_topic, number)
        base = None if parent is None else parent.manifest.task(number)
        if base is None:
            start = beginning(self._log, place)
        else:
            assert base.changelog_position is not None
            start = base.changelog_position
        changed, cut, position, headers = fold(self._log, place, start, end)
        if cut is None:
            # The task has not committed since the parent, or never. If never, it begins with empty state in
            # every start.
            cut, position = (b"", start) if base is None else (base.cut, start)
        schema = changed.pop(rows.SCHEMA_ROW, None) or (b"" if base is None else base.schema)
        deleted = sorted(row for row, value in changed.items() if value is None)
        for row in deleted:
            del changed[row]
        names = sorted(changed)
        files: tuple[FileInfo, ...] = write_task(
            folder,
            number,
            secrets.token_hex(4),
            zip(names, cast("Iterator[bytes]", map(changed.__getitem__, names)), strict=True),
            messages=flight.messages(number),
            deleted=None if parent is None else deleted,
        )
        reads = tape.decode_cut(cut).positions if cut else {}
        left = {name: at for name, at in left.items() if name not in reads}
        return TaskEntry(
            number,
            cut,
            position,
            schema,
            files,
            provenance=snapshot_provenance(self._log, number, cut, left, provenance_in(headers)),
            waiting=flight.waiting(number),
        )


def _life(cut: bytes) -> tuple[bytes, str]:
    decoded = tape.decode_cut(cut)
    return decoded.lineage, decoded.base
