"""Since when an app can be replayed: whether the log has all that its tasks have read, and whether it will keep it.

    an input                                    a replay or a rebuild along the tape
    has lost records that it begins with        is refused, with the first record that the log still has, and its time
    deletes records by age or size              is noted: it is possible until the log deletes what it begins with
    is compacted                                the same. Along the tape a record that is missing is an error (``core.engine.replay``)

A task begins with its first record, or with the snapshot that it was started from. An archive holds what the log has deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrace.core.declare.plan import Plan
from tailrace.core.durations import spelled
from tailrace.core.engine.describe_rows import instant
from tailrace.core.errors import OffsetGoneError
from tailrace.history.reading.stretches import first
from tailrace.log.interface import Log

ELSEWHERE = "Rebuild it from an archive (--archive), or from a newer snapshot (--from-snapshot)."
BEFORE_SNAPSHOT = "Read an archive (--archive), or start from a newer snapshot (--from-snapshot)."
WITHOUT_DELETED = (
    "Read an archive (--archive), start from a newer snapshot (--from-snapshot), or continue without them "
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


def until_when(plan: Plan, log: Log) -> Iterator[str]:
    """Notes about inputs that the log will not keep whole."""
    known = log.topics()
    for one in plan.inputs:
        settings = known.get(one.name)
        if settings is None:
            continue
        kept: list[str] = []
        if settings.retention_ms is not None:
            kept.append(f"records for {spelled(settings.retention_ms)}")
        if settings.retention_bytes is not None:
            kept.append(f"{settings.retention_bytes:,} bytes of a partition")
        if settings.compacted:
            kept.append("the last record of each key")
        if kept:
            yield (
                f"{one.name} keeps only {' and '.join(kept)}: once the log has removed a record, this history is replayed from an "
                "archive or a snapshot alone"
            )
