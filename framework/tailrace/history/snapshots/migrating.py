"""The state of a snapshot in the form of the present code, by its migrations: a new snapshot upon the other one.

Theory. The new snapshot stands where the other one does, has other rows, and is of source "edited". So a service starts from it as
from any state that was edited: with ``--replace-state``, if it stands at the same moment, in one commit of each task. From then
on its tape begins there. A migration never happens within a history, so a replay has nothing to repeat, and no reader of the
state meets rows of two forms. A start with rows that were not migrated is refused (``evolution``).

Every key is tried, also after one has failed. Nothing is published unless all have passed. Rows are read and written one key
after the other, so memory does not depend on their number.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby

import msgspec

from tailrace.core import rows
from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.schema import decode_schemas, encode_schemas
from tailrace.core.engine import tape
from tailrace.core.engine.migrating import ActorMigration
from tailrace.core.errors import SnapshotMismatchError, UsageError
from tailrace.history.reading.tape_records import last_version
from tailrace.history.snapshots.taking import TakingOptions, take_snapshot
from tailrace.log.interface import OneCommitLog, TopicPartition
from tailrace.state.snapshots import Manifest, Place, Snapshot, Snapshots, TaskEntry, write_task

_NAMED = 10
"""How many keys that fail are named."""


class Migrating:
    """The migration of a snapshot. ``versions``: of the app, by partition, that have written its state.

    Raises SnapshotMismatchError or IncompatibleStateError: the state cannot be migrated by this code.
    """

    def __init__(self, plan: Plan, snapshots: Snapshots, base: Snapshot, versions: Mapping[int, str]) -> None:
        self._plan, self._snapshots, self._base = plan, snapshots, base
        self.keys, self.changed = Counter[str](), Counter[str]()
        """By actor: its keys, and those whose rows change."""
        self.failed, self.failures = 0, list[str]()
        """The number of keys that failed, and a line for each of the first."""
        self._schemas = {
            one.partition: decode_schemas(one.schema) for one in base.manifest.tasks if one.schema
        }
        self._tasks = {
            number: {
                actor.name: ActorMigration(actor, stored[actor.name], versions[number])
                for actor in plan.actors
                if actor.name in stored
            }
            for number, stored in self._schemas.items()
        }
        self.migrations = dict[str, list[str]]()
        """By actor, those that are due, for a person. Those of another task are the same, or the last ones of them."""
        for name, one in (pair for some in self._tasks.values() for pair in some.items()):
            if len(one.due) > len(self.migrations.get(name, ())):
                self.migrations[name] = [*map(str, one.due)]
        if self.migrations:
            for task in base.manifest.tasks:
                self._check(task)

    def _check(self, task: TaskEntry) -> None:
        cut, inbox = tape.decode_cut(task.cut) if task.cut else None, self._plan.inbox_topic
        waits = cut is not None and any(inbox in one.lows for one in cut.ordered.values())
        sent = (task.waiting or {}).get(inbox) or next(self._base.messages(task.partition), None)
        if waits or sent:
            raise SnapshotMismatchError(
                f"messages of {self._plan.app!r} are under way in partition {task.partition}",
                hint="These are not migrated. Let the code that ran there last handle them (--until-end).",
            )

    def check(self) -> None:
        """Migrate all keys, and write nothing."""
        for task in self._base.manifest.tasks:
            deque(self._rows(task, []), maxlen=0)

    def publish(self, name: str | None = None) -> Manifest:
        """Write the new snapshot. Raises UsageError: some keys fail, and there is none."""
        base, draft = self._base.manifest, self._snapshots.begin()
        tasks = tuple(self._task(task, draft.folder_uri) for task in base.tasks)
        if self.failed:
            Place.at(draft.folder_uri).remove_folder()
            hint = "Nothing was published. Correct the migration, and run it again."
            raise UsageError(self.said_of_failures, hint=hint)
        made = msgspec.structs.replace(
            base,
            id=draft.id,
            version=self._plan.version,
            created_ms=draft.created_ms,
            kind="incremental",
            parent=base.id,
            name=name,
            automatic=False,
            source="edited",
            tasks=tasks,
            notes=(*base.notes, f"migrated: {counted(self.changed.total(), 'key')} changed"),
        )
        return self._snapshots.publish(made)

    @property
    def said_of_failures(self) -> str:
        """The keys that failed, for a person."""
        return f"{counted(self.failed, 'key')} failed, the first: {'; '.join(self.failures)}"

    def _task(self, task: TaskEntry, folder: str) -> TaskEntry:
        if task.partition not in self._schemas:
            return msgspec.structs.replace(task, files=())
        gone = list[bytes]()
        some = self._rows(task, gone)
        files = write_task(folder, task.partition, "migrated", some, deleted=(row for row in gone))
        now = {name: one.schema for name, one in self._tasks[task.partition].items()}
        schema = encode_schemas(self._schemas[task.partition] | now)
        return msgspec.structs.replace(task, schema=schema, files=files)

    def _rows(self, task: TaskEntry, gone: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a task that change, ascending; those that it has no more are added to ``gone``."""
        due = {name: one for name, one in self._tasks.get(task.partition, {}).items() if one.due}
        for prefix, some in groupby(self._base.rows(task.partition), lambda pair: rows.key_prefix(pair[0])):
            parts = rows.read_state_row(prefix)
            one = due.get(parts.actor)
            if one is None:
                continue
            found = {row[len(prefix) :]: value for row, value in some}
            self.keys[parts.actor] += 1
            try:
                now = one.rows(parts.key, found)
            except Exception as error:  # noqa: BLE001  # the user's function fails for this key
                self.failed += 1
                if self.failed <= _NAMED:
                    key = one.actor.key_codec.decode(parts.key)
                    self.failures.append(f"{parts.actor} {key!r}: {type(error).__name__}: {error}")
                continue
            self.changed[parts.actor] += now != found
            gone += [prefix + rest for rest in sorted(found.keys() - now.keys())]
            yield from ((prefix + rest, now[rest]) for rest in sorted(now) if now[rest] != found.get(rest))


def migrating_from_log(plan: Plan, log: OneCommitLog, snapshots: Snapshots) -> Migrating:
    """The migration of the state as of the last commit, of which a snapshot is taken. The app may run.

    Raises what ``take_snapshot`` and ``Migrating`` raise.
    """
    versions = _versions(plan, log)
    made = take_snapshot(_written_by(plan, versions), log, snapshots, TakingOptions())
    return Migrating(plan, snapshots, snapshots.open(made.id), versions)


def as_written(plan: Plan, log: OneCommitLog) -> Plan:
    """The plan with the version that has written the state, so that a snapshot notes that one, whichever code takes it."""
    return _written_by(plan, _versions(plan, log))


def _written_by(plan: Plan, versions: Mapping[int, str]) -> Plan:
    return replace(plan, version=max(filter(None, versions.values()), default=plan.version))


def _versions(plan: Plan, log: OneCommitLog) -> dict[int, str]:
    """By partition, the version of the app that has written the state of its task."""
    if plan.tape_topic not in log.topics():
        return {}
    places = [TopicPartition(plan.tape_topic, number) for number in range(plan.partitions)]
    return {place.partition: last_version(log, place) for place in places}
