"""What a task starts from: nothing, a snapshot that was asked for, or the one that its tape says it was started from."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tailrace.core.engine import tape
from tailrace.core.engine.tape import Cut
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.storage import Store
from tailrace.history.beginnings import base_parts, base_record, begun_cut, fill, rows_of
from tailrace.history.comparing.cut_differences import is_on_tape
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.past import HistorySource
from tailrace.state.snapshots import Snapshot, Snapshots
from tailrace.state.store_cut import FORMAT, StoreCut


class TaskOrigin(msgspec.Struct, frozen=True):
    """A snapshot, and the cut with which a task goes on from it. What comes before ``cut.tape`` on the tape is done."""

    uri: str
    app: str
    id: str
    cut: bytes

    def open(self) -> Snapshot:
        """The snapshot. Raises what ``Snapshots.open`` raises."""
        return Snapshots(self.uri, self.app).open(self.id)


def origin_of_task(job: Job, past: HistorySource, number: int) -> TaskOrigin | None:
    """What the task of a partition starts from; None: nothing.

    Raises:
        SnapshotMismatchError: What was asked for is not of the task's history.
        SnapshotError: It is not there, or damaged.
    """
    target = job.targets[number].cut
    if target is None:
        return None
    seeded = _seeded(past, number, tape.decode_cut(target))
    request = job.request
    if job.base is None:
        return seeded
    assert request.source.base is not None
    entry = Snapshots(request.source.base, job.app).open(job.base).manifest.task(number)
    if not entry.cut:
        return seeded
    cut, end = tape.decode_cut(entry.cut), tape.decode_cut(target)
    known = "" if seeded is None else seeded.id
    if (cut.lineage, cut.base) != (end.lineage, known) or cut.tape > end.tape:
        raise SnapshotMismatchError(
            f"the snapshot {job.base} is not of the history of app {job.app!r} partition {number} in this log, or from "
            "after its last commit",
            hint="Take one that was made of this log, or rebuild from the beginning.",
        )
    _check_commit(past, number, cut, job.base)
    return TaskOrigin(request.source.base, job.app, job.base, entry.cut)


def _check_commit(past: HistorySource, number: int, cut: Cut, snapshot: str) -> None:
    """A snapshot that stopped at a limit may stand in the midst of what one commit was caused by: nothing goes on there."""
    if is_on_tape(past.plan, past.log, number, cut) is False:
        raise SnapshotMismatchError(
            f"the snapshot {snapshot} stands within commit {cut.tape - 1} of app {past.plan.app!r} partition {number}, or after "
            "another one than this log has under that number",
            hint="A rebuild along the tape goes on from a commit. Take a snapshot that was not stopped by a limit, or "
            "go on in canonical order (--order canonical).",
        )


def _seeded(past: HistorySource, number: int, end: Cut) -> TaskOrigin | None:
    """The snapshot that the task was last started from, by its tape."""
    if not end.base:
        return None
    found = base_record(past.tapes(number, end.tape))
    if found is None or found.base is None:
        raise SnapshotMismatchError(
            f"partition {number} was started from the snapshot {end.base}, and its tape does not say where that is",
            hint="A part of the tape is missing: rebuild from a snapshot (--from-snapshot).",
        )
    uri, app, name = base_parts(found.base)
    manifest = Snapshots(uri, app).open(name).manifest
    begun = begun_cut(past.plan.app, manifest, number, found, end.base)
    return TaskOrigin(uri, app, name, tape.encode(begun))


def load(
    origin: TaskOrigin, number: int, store: Store, wanted: Callable[[bytes], bool] = lambda _: True
) -> StoreCut:
    """Fill an empty store with the rows of a snapshot that are wanted. One that is killed on the way is known by its cut."""
    cut = StoreCut(FORMAT, 0, 0, origin.cut)
    fill(store, (pair for pair in rows_of(origin.open(), number) if wanted(pair[0])), cut)
    return cut
