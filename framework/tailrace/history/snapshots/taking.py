"""Taking a snapshot of an app from its log: of one that runs, too, and without a word to it.

Theory. A commit of the embedded log is one step for all topics. So the changelogs of all tasks up to the ends of *one
commit* are a consistent cut: whatever a task had sent by then is in the inboxes up to the same commit, and what a receiver
has not taken of it lies between its cut's position and the inbox's end. These messages are stored with the snapshot.

The changelog is compacted, so it holds each row about once; reading it to the end is reading the state. Cleaning is held
off meanwhile, as it may take the record that was the last before the cut once there is a later one.

An *incremental* snapshot reads the changelog from where its parent stood. Deletions are only there for a while, so the
parent must not be older than half of that, as for a state folder that was away.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.errors import (
    AlteredSnapshotError,
    IncompleteSnapshotError,
    SnapshotMismatchError,
)
from tailrace.core.records import InputRecord
from tailrace.history.app_history import AppHistory
from tailrace.history.app_topics import topics_of
from tailrace.history.changelog import fold
from tailrace.history.comparing.cut_differences import is_on_tape
from tailrace.history.stretches import scan
from tailrace.log.interface import OneCommitLog, TopicPartition
from tailrace.processes.environment import environment
from tailrace.state.snapshots import FileInfo, Manifest, Snapshot, Snapshots, TaskEntry, write_task

DELETIONS_KEPT_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class TakingOptions:
    """What kind of snapshot is taken."""

    name: str | None = None
    """Makes it a savepoint."""
    automatic: bool = False
    incremental: bool = False
    """Only what has changed since the latest one, where that can be built upon; else a full one."""
    deletions_kept_ms: int = DELETIONS_KEPT_MS


@dataclass(frozen=True, slots=True)
class TakingStatus:
    """How far it has come."""

    partition: int
    partitions: int
    rows: int
    """Of the changelogs read so far."""


def take_snapshot(
    plan: Plan,
    log: OneCommitLog,
    snapshots: Snapshots,
    options: TakingOptions | None = None,
    *,
    on_progress: Callable[[TakingStatus], None] | None = None,
) -> Manifest:
    """Take a snapshot of an app as of the last commit in the log, and publish it.

    The app may run meanwhile, in any number of workers; it is neither stopped nor slowed but by the machine's load. The
    rows of one task at a time are held in memory.

    Raises:
        UnknownTopicError: The app has never run on this log.
        SnapshotMismatchError: It has never committed.
        SnapshotError: The place cannot be written, or the name is taken.
    """
    return _Taking(plan, log, snapshots, options or TakingOptions(), on_progress).run()


class _Taking:
    def __init__(
        self,
        plan: Plan,
        log: OneCommitLog,
        snapshots: Snapshots,
        options: TakingOptions,
        on_progress: Callable[[TakingStatus], None] | None,
    ) -> None:
        self._plan, self._log, self._snapshots, self._options, self._tell = (
            plan,
            log,
            snapshots,
            options,
            on_progress,
        )
        self._history = AppHistory(plan, log)
        self._read = 0

    def run(self) -> Manifest:
        plan, options = self._plan, self._options
        with self._log.uncleaned():
            position, ends = self._log.ends(topics_of(plan, self._log))
            parent = self._parent() if options.incremental else None
            if not any(self._history.committed(number).cut for number in range(plan.partitions)):
                raise SnapshotMismatchError(
                    f"the app {plan.app!r} has never committed: there is no state yet", hint="Run it first."
                )
            draft = self._snapshots.begin()
            tasks = [self._task(number, ends, draft.folder_uri, parent) for number in range(plan.partitions)]
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
            position=position,
            ends=ends,
            tasks=tuple(tasks),
        )
        return self._snapshots.publish(manifest)

    def _parent(self) -> Snapshot | None:
        """The latest snapshot, if what has changed since can be read from the changelog."""
        known = self._snapshots.list()
        if not known:
            return None
        try:
            parent = self._snapshots.open(known[-1].id)
        except (AlteredSnapshotError, IncompleteSnapshotError):
            return None  # a full one does not need it
        manifest = parent.manifest
        age_ms = time.time_ns() // 1_000_000 - manifest.created_ms
        if manifest.source != "live" or manifest.partitions != self._plan.partitions:
            return None
        if (
            not 0 <= age_ms <= self._options.deletions_kept_ms // 2
        ):  # one from the future is of an age that is not known
            return None
        for task in manifest.tasks:
            place = TopicPartition(self._plan.changelog_topic, task.partition)
            start, end = self._log.start_offset(*place), self._log.end_offset(*place)
            if task.changelog_position is None or not start <= task.changelog_position <= end:
                return None
            # Of the same life: another log of the same names would fit the offsets and nothing else.
            now = self._history.committed(task.partition).cut
            if task.cut and (now is None or _life(now) != _life(task.cut)):
                return None
            # A log that has lost its end since has gone on otherwise under the same offsets.
            if (
                task.cut
                and is_on_tape(self._plan, self._log, task.partition, tape.decode_cut(task.cut)) is False
            ):
                return None
        return parent

    def _task(
        self, number: int, ends: dict[str, list[int]], folder: str, parent: Snapshot | None
    ) -> TaskEntry:
        place = TopicPartition(self._plan.changelog_topic, number)
        start, base = self._log.start_offset(*place), None
        if parent is not None:
            base = parent.manifest.task(number)
            assert base.changelog_position is not None
            start = base.changelog_position
        changed, cut, position = fold(self._log, place, start, ends[place.topic][number], self._note_read)
        if cut is None:
            # It has not committed since, or never: then it begins with nothing wherever it is started.
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
            messages=self._under_way(number, cut, ends),
            deleted=None if parent is None else deleted,
        )
        return TaskEntry(number, cut, position, schema, files)

    def _note_read(self, place: TopicPartition, count: int) -> None:
        self._read += count
        if self._tell is not None:
            self._tell(TakingStatus(place.partition, self._plan.partitions, self._read))

    def _under_way(self, number: int, cut: bytes, ends: dict[str, list[int]]) -> Iterator[InputRecord]:
        """The messages between where the task has read its inbox and its end."""
        inbox = self._plan.inbox_topic
        if inbox is None or not cut:
            return
        at, end = tape.decode_cut(cut).positions.get(inbox, 0), ends[inbox][number]
        yield from scan(self._log, inbox, number, at, end, whole=True)


def _life(cut: bytes) -> tuple[bytes, str]:
    decoded = tape.decode_cut(cut)
    return decoded.lineage, decoded.base
