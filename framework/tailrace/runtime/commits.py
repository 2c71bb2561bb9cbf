"""A commit of the partitions that share a transaction: all stage, one commit decides, all complete.

Rules, by the point at which something fails::

    stage of one       it has failed, and what it appended cannot be taken out: the transaction is aborted. The others are
                       rolled back, if they had appended anything
    the commit         nothing of it is visible: all are rolled back (one that commits alone has failed)
    its outcome        not known: all are in doubt, and each looks in the log what became of it
    complete of one    the log has the commit, its store has not: it has failed. The others complete

So the failure of one partition costs the others at most their work since the last commit. A partition that has failed, or is in
doubt, trusts only the log. One that is rolled back continues from its store.

Each durable batch is reported once (``on_committed``), also if its store could not be written. One in doubt is reported when the
log has its cut after the partition's restore.

A partition whose log has a transaction for each writer (the embedded log) is a group of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tailrace.core.errors import CommitUnknownError
from tailrace.log.interface import Part, TopicPartition
from tailrace.runtime.lifecycle import State

if TYPE_CHECKING:
    from tailrace.runtime.partition import Partition


def commit_together(partitions: Sequence[Partition]) -> None:
    """Commit all that these partitions have taken since their last commits: those that are running, with anything to commit.

    They share a transaction, or there is one of them. Partitions of the same transaction that are left out must have nothing to
    commit. An unknown outcome is no error here: their state is IN_DOUBT, and restoring looks what became of it.

    Raises:
        FencedError: Another worker has taken over; nothing was committed.
        TailraceError: Nothing was committed, or one of the stores could not be written. The states of the partitions say which.
    """
    for one in partitions:
        one.notice_loss()
    ready = [one for one in partitions if one.state is State.RUNNING and one.dirty]
    if not ready:
        return
    try:
        parts = [one.stage() for one in ready]
        ends = _commit(parts, ready[0].plan.app)
    except CommitUnknownError:
        for one in ready:
            one.doubt()
        return
    except Exception as error:
        for one in partitions:
            one.not_committed(error)
        raise
    first: Exception | None = None
    for one in ready:
        try:
            one.complete(ends)
        except Exception as error:  # noqa: BLE001  # raised when the others have completed
            first = first or error
    if first is not None:
        raise first


def _commit(parts: Sequence[Part], group: str) -> Mapping[TopicPartition, int]:
    shared = parts[0].writer.shared
    if shared is not None:
        return shared.commit(parts, group)
    (part,) = parts
    return part.writer.commit(part.offsets, group, part.watermarks)
