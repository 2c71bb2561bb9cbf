"""Whether the log still has all that the tasks of an app have read, and whether a limit lies in what is left of their history.

A replay or a rebuild along the tape is refused if an input has lost records that it begins with, with the first one that is left. It
begins with a task's first record, or with the snapshot that the task was started from. What
the log will delete, by age, size or compaction, is noted by ``tailrace topics plan`` (``log.topic_rules``).
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.replay import Limits
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import KEPT_ELSEWHERE, OffsetGoneError, OptionError
from tailrace.history.reading.stretches import first
from tailrace.log.interface import Log
from tailrace.state.snapshots import Snapshot

ELSEWHERE = f"Read {KEPT_ELSEWHERE}, or rebuild it from a newer snapshot (tailrace rebuild --from-snapshot)."
BEFORE_SNAPSHOT = f"Read {KEPT_ELSEWHERE}, or start from a newer snapshot (--from-snapshot)."
WITHOUT_DELETED = (
    f"Read {KEPT_ELSEWHERE}, start from a newer snapshot (--from-snapshot), or continue without them "
    "(--after-deleted): state and outputs then differ from the service's."
)


def check_kept(
    log: Log, number: int, begins: Mapping[str, int], ends: Mapping[str, int], what: str, hint: str
) -> None:
    """Check that the log has all records that a task reads, by input, from where it begins to where it ends.
    Raises OffsetGoneError: the log has deleted the first of them.
    """
    known = log.topics()
    for name, began in begins.items():
        start = log.start_offset(name, number) if name in known else 0
        if began < start and began < ends.get(name, 0):
            raise gone(log, name, number, began, what, hint)


MAY_BE_EMPTY = (
    "On Kafka, these offsets may have held no record, but only transactions that were aborted, and markers of transactions: if you know that "
    "nothing was committed to the topic in that time, nothing is lost. "
)
"""What errors about deleted offsets add."""


def gone(log: Log, name: str, number: int, began: int, what: str, hint: str) -> OffsetGoneError:
    """The error for records that the log has deleted. ``what`` would begin with them: a replay, a rebuild."""
    start = log.start_offset(name, number)
    oldest = first(log, name, number)
    since = "" if oldest is None else f". The first one that it has is of {instant(oldest.timestamp_ms)}"
    return OffsetGoneError(
        f"the log has deleted offsets {began} to {start - 1}, which the {what} begins with{since}",
        topic=name,
        partition=number,
        offset=began,
        hint=hint,
    )


def check_after_beginning(
    plan: Plan,
    limits: Limits,
    number: int,
    snapshot: Snapshot | None,
    cut: tape.Cut | None,
    *,
    asked: bool = False,
) -> None:
    """Refuse limits that a task has passed in the snapshot that it begins with, at ``cut``.
    ``asked``: the snapshot was requested. Otherwise the tape begins with it. Raises OptionError.
    """
    if snapshot is None or cut is None:
        return
    marks = Watermarks(plan)
    marks.resume(cut)
    limit = limits.of(number)
    passed = [
        f"{name} at {cut.positions[name]}, after the limit {offset}"
        for name, offset in sorted(limit.offsets.items())
        if offset < cut.positions.get(name, 0)
    ]
    if limit.watermark_ms is not None and limit.watermark_ms <= marks.of_first_level:
        passed.append(
            f"the watermark at {instant(marks.of_first_level)}, at or after the limit {instant(limit.watermark_ms)}"
        )
    if passed:
        raise OptionError(
            f"partition {number} begins with the snapshot {snapshot.manifest.id}, which stands after the limit: {'; '.join(passed)}",
            hint="Name a limit after the snapshot, or begin with an earlier snapshot."
            if asked
            else "Name a limit after the snapshot. The tape has no history before it; a rebuild in stages "
            "(--order stages) has.",
        )
