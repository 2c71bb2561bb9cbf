"""One partition of the in-memory log: what is committed, what is undecided, and how it is decided."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from tailrace.core.records import InputRecord
from tailrace.log.interface import TopicPartition

_offset = attrgetter("offset")


class Transaction:
    """Open, or ended and then kept or not."""

    __slots__ = ("ended", "kept", "written")

    def __init__(self) -> None:
        self.ended = False
        self.kept = False
        self.written: dict[Partition, int] = {}
        """The offset after its last record, per partition it wrote."""


class _Chunk(NamedTuple):
    transaction: Transaction | None
    records: list[InputRecord]


class Partition:
    """The records below the last stable offset, and the chunks from there on."""

    __slots__ = ("end", "place", "records", "start", "undecided")

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.records: list[InputRecord] = []
        self.undecided: deque[_Chunk] = deque()
        self.start = 0
        self.end = 0

    @property
    def last_stable(self) -> int:
        """Where the first open transaction begins, or the end."""
        return self.undecided[0].records[0].offset if self.undecided else self.end

    def take_over(self, before: Partition, is_kept: Callable[[InputRecord], bool] | None) -> None:
        """Hold the records of another, at the same offsets: all or those kept, no open transactions."""
        found = before.records.copy()
        for transaction, records in before.undecided:
            if transaction is None or (transaction.ended and transaction.kept):
                found += records
        self.records = found if is_kept is None else list(filter(is_kept, found))
        self.start, self.end = before.start, before.end

    def append(self, records: list[InputRecord], transaction: Transaction | None) -> None:
        """Add records whose offsets follow ``end``; ``transaction`` None is a producer that uses none."""
        if not records:
            return
        self.end = records[-1].offset + 1
        if transaction is not None:
            transaction.written[self] = self.end
        elif not self.undecided:
            self.records += records
            return
        self.undecided.append(_Chunk(transaction, records))

    def settle(self) -> None:
        """Move over what no open transaction hides any more."""
        while self.undecided:
            transaction, records = self.undecided[0]
            if transaction is not None and not transaction.ended:
                return
            self.undecided.popleft()
            if transaction is None or transaction.kept:
                self.records += records
