"""A snapshot of an app under test, and the log that a service reads on in when it starts from it.

It is taken and started from as a real one (``history.snapshots.taking``,
``history.snapshots.start_from_snapshot``), in a temporary folder. A real service starts from an older
snapshot in another log, where the app has no state yet: what it had emitted after the snapshot would be there
twice in its own. So a start gets a log of its own, a copy of the one that the snapshot was taken of:

    what comes from outside                    all of it, also what came after the snapshot
    what the app wrote into other topics       what it had written up to the snapshot
    its changelog, tape, dead letters, inbox,  empty: the start writes what the snapshot holds
    topics behind ``repartition=True``

Offsets are those of the copied log, so the positions in the snapshot hold.
"""

from __future__ import annotations

import shutil
import weakref
from copy import copy
from tempfile import mkdtemp

from tailrace.core.declare.app import App
from tailrace.core.declare.plan import Plan
from tailrace.core.names import is_own, transactional_id
from tailrace.core.records import InputRecord
from tailrace.history.reading.app_history import origin_of
from tailrace.history.reading.app_topics import internal_topics
from tailrace.history.reading.beginnings import base_name
from tailrace.history.snapshots.migrating import Migrating
from tailrace.history.snapshots.start_from_snapshot import Start
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.state.snapshots import Snapshots
from tailrace.testing.memory_log import MemoryLog


class HarnessSnapshot:
    """The committed state of an app in a harness, taken by ``Harness.snapshot``.

    Its folder is deleted with the last reference.
    """

    def __init__(self, plan: Plan, log: MemoryLog, now_ms: int) -> None:
        self.app = plan.app
        """The name of the app that it was taken of."""
        self.now_ms = now_ms
        """Where the clock stood."""
        self._plan = plan
        self._log = log
        self._ends = log.ends(log.topics())
        self._published = {topic: len(log.published(topic)) for topic in log.topics()}
        self._before: HarnessSnapshot | None = None
        """The one that this one was migrated from: its folder is also that of this one."""
        self._folder = mkdtemp(prefix="tailrace-snapshot-")
        # A TemporaryDirectory that is forgotten warns; this is the ordinary end of a snapshot.
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.id = take_snapshot(plan, log, Snapshots(self._folder, plan.app)).id

    def __repr__(self) -> str:
        return f"<snapshot {self.id} of the app {self.app!r}>"

    def migrated(self, app: App) -> HarnessSnapshot:
        """The state in the form of ``app``, by the migrations of its actors, as ``tailrace snapshot migrate`` makes it.

        Raises:
            UsageError: A migration fails for some keys.
            IncompatibleStateError, SnapshotMismatchError: The state cannot be migrated by this code.
        """
        plan, snapshots = app.plan(), Snapshots(self._folder, self.app)
        base = snapshots.open(self.id)
        versions = dict.fromkeys(range(self._plan.partitions), base.manifest.version)
        made = copy(self)
        made._before = self
        made.id = Migrating(plan, snapshots, base, versions).publish().id
        return made

    def start(self, timezones: str) -> Start:
        """What a service starts from."""
        snapshot = Snapshots(self._folder, self.app).open(self.id)
        return Start(snapshot, base_name(snapshot, self._folder), timezones=timezones)

    def fork(self) -> MemoryLog:
        """The log to start in; see the head of this file."""
        log, before = (
            MemoryLog(markers=self._log.markers, max_record_bytes=self._log.max_record_bytes),
            self._log,
        )
        app, own = self.app.encode(), internal_topics(self._plan)
        writers = {transactional_id(self.app, number) for number in range(self._plan.partitions)}
        for topic, settings in before.topics().items():
            log.create_topic(topic, settings)
            if topic in own or is_own(topic, self.app):
                continue
            ends = self._ends.offsets.get(topic, [0] * settings.partitions)
            for number, end in enumerate(ends):

                def is_kept(record: InputRecord, end: int = end) -> bool:
                    return record.offset < end or origin_of(record, app) is None

                log.at(topic, number).take_over(before.at(topic, number), is_kept)
            known = self._published.get(topic, 0)
            for count, (one, at) in enumerate(before.published(topic)):
                if count < known or one.publisher not in writers:
                    log.publish(topic, one, at)
        return log
