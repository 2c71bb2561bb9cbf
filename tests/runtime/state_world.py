"""A service on an event log in a folder, its states in memory, its snapshots beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.history.reading.beginnings import base_name
from tailrace.history.snapshots.start_from_snapshot import Start, start_from
from tailrace.history.snapshots.taking import TakingOptions, take_snapshot
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.progress import last_phase
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerHooks, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.state.snapshots import Manifest, Snapshots, write_task
from tailrace.state.store_cut import decode_store_cut
from tests.runtime.served import make_app
from tests.runtime.tallies import ticks

KEYS, ROUNDS = 40, 6
OFTEN = WorkerSettings(slice_records=20, partition=PartitionSettings(commit_interval_ms=1))


class World:
    """A log, the states of an app by its name, and snapshots."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = EmbeddedLog(folder / "log")
        self.app = make_app()
        self.plan = self.app.plan()
        self.stores: dict[tuple[str, int], MemoryStore] = {}
        prepare_log(self.log, self.plan, create_declared=True)

    def state(self, app: str, number: int) -> MemoryStore:
        return self.stores.setdefault((app, number), MemoryStore())

    def run(
        self,
        plan: Plan | None = None,
        *,
        numbers: range | None = None,
        start: Start | None = None,
        to_the_end: bool = False,
    ) -> None:
        """Until there is nothing to read; ``to_the_end`` fires the last timers too."""
        plan = plan or self.plan
        prepare_log(self.log, plan, create_declared=True)

        def begin(number: int) -> None:
            assert start is not None
            start_from(plan, number, self.log, start, 1)

        worker = Worker(
            plan,
            self.log,
            numbers or range(plan.partitions),
            lambda number: self.state(plan.app, number),
            settings=replace(OFTEN, bounded=True),
            hooks=WorkerHooks() if start is None else WorkerHooks(begin=begin),
        )
        worker.start()
        while True:
            if worker.turn() or not worker.quiet:
                continue
            if not to_the_end or worker.phase == last_phase(worker.plan):
                break
            worker.advance()
        worker.leave()

    def live(self, keys: int = KEYS, rounds: int = ROUNDS, first: int = 0) -> None:
        """Ticks come, and the app takes all of them."""
        self.log.append_all(ticks(keys, rounds, first))
        self.run()

    def snapshots(self, app: str = "tally") -> Snapshots:
        return Snapshots(str(self.folder / "snapshots"), app)

    def take(self, plan: Plan | None = None, **options: Any) -> Manifest:
        plan = plan or self.plan
        return take_snapshot(plan, self.log, self.snapshots(plan.app), TakingOptions(**options))

    def start(self, which: str = "latest", *, replace: bool = False) -> Start:
        found = self.snapshots().open(which)
        return Start(found, base_name(found, str(self.folder / "snapshots")), replace=replace)

    def rows(self, app: str = "tally") -> list[dict[bytes, bytes]]:
        found = (self.state(app, number) for number in range(self.plan.partitions))
        return [dict(store.scan(rows.STATE, rows.prefix_end(rows.STATE))) for store in found]

    def cut(self, number: int, app: str = "tally") -> tape.Cut:
        data = self.state(app, number).cut
        assert data is not None
        core = decode_store_cut(data).core
        assert core is not None
        return tape.decode_cut(core)


def of_snapshot(world: World, which: str = "latest", app: str = "tally") -> list[dict[bytes, bytes]]:
    found = world.snapshots(app).open(which)
    return [dict(found.rows(number)) for number in range(world.plan.partitions)]


def edited(snapshots: Snapshots, change: Callable[[bytes, bytes], bytes | None], **said: Any) -> Manifest:
    """A copy of the latest snapshot with other values."""
    found = snapshots.open()
    draft = snapshots.begin()
    tasks = []
    for task in found.manifest.tasks:
        changed = ((row, change(row, value)) for row, value in found.rows(task.partition))
        kept = ((row, value) for row, value in changed if value is not None)
        files = write_task(
            draft.folder_uri, task.partition, "a", kept, messages=found.messages(task.partition)
        )
        tasks.append(msgspec.structs.replace(task, files=files))
    made = msgspec.structs.replace(
        found.manifest, id=draft.id, created_ms=draft.created_ms,
        source="edited", tasks=tuple(tasks), checksum="", **said,
    )  # fmt: skip
    return snapshots.publish(made)
