"""Events that wait and do not fit into memory: sorted runs of raw records in scratch files.

What waits is in the log, so a scratch file may be lost without harm: a task that starts again reads the log. A run is
read from its begin to its end, a frame of records at a time, so that a run costs little memory however long it is. As
in an external sort, runs of one tier are merged into one of the next when they have become many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import BinaryIO, Final, TypeAlias

import msgspec

from tailrace.core.durations import NO_WATERMARK
from tailrace.core.records import Head, InputRecord
from tailrace.core.unit_ids import Tail

Waiter: TypeAlias = tuple[int, int, Tail, int, Head]
"""The place: its time, the rank of the input, the tail. Then the number of the input, and the head. The place is unique."""
Stored: TypeAlias = tuple[int, int, Tail, int, InputRecord]
"""A waiter with its record instead of its head, as in a scratch file."""
Scratch: TypeAlias = Callable[[], BinaryIO]
"""Makes an empty file, open for writing and reading, that disappears when it is closed."""
Decode: TypeAlias = Callable[[int, Sequence[InputRecord]], list[Head]]

_IN_A_FRAME: Final = 64
MOST_OF_A_TIER: Final = 64
"""So many runs of one tier are merged into one."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Stored]).decode


def stored(waiters: Iterable[Waiter]) -> Iterator[Stored]:
    """Waiters as a run stores them. Each must have its record."""
    for time_ms, rank, tail, number, head in waiters:
        assert head[4] is not None
        yield time_ms, rank, tail, number, head[4]


class Run:
    """A sorted sequence of waiters in a scratch file."""

    __slots__ = ("_decode", "_file", "_frame", "_left", "last_ms", "tier")

    def __init__(self, items: Iterable[Stored], decode: Decode, scratch: Scratch, tier: int = 0) -> None:
        """Write the items, which are in order."""
        self.tier = tier
        self._decode, self._file = decode, scratch()
        self._frame: deque[Waiter] = deque()
        self._left = 0
        """The number of frames that were not read yet."""
        self.last_ms = NO_WATERMARK
        """The time of the place of its last waiter."""
        rest = iter(items)
        while frame := list(islice(rest, _IN_A_FRAME)):
            self.last_ms = frame[-1][0]
            data = _encode(frame)
            self._file.write(len(data).to_bytes(4, "big") + data)
            self._left += 1
        self._file.seek(0)

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # not if it could not be made
            self._file.close()

    def next(self) -> Waiter | None:
        """The next waiter; None after the last one."""
        if not self._frame and self._left:
            for number, group in groupby(self._read(), key=itemgetter(3)):
                some = list(group)
                heads = self._decode(number, [one[4] for one in some])
                self._frame += [(*one[:4], head) for one, head in zip(some, heads, strict=True)]
        return self._frame.popleft() if self._frame else None

    def rest(self) -> Iterator[Stored]:
        """All that ``next`` would return, without decoding it."""
        yield from stored(self._frame)
        while self._left:
            yield from self._read()

    def _read(self) -> list[Stored]:
        self._left -= 1
        return _decode(self._file.read(int.from_bytes(self._file.read(4), "big")))


def merged(runs: Sequence[tuple[Waiter, Run]]) -> Iterator[Stored]:
    """What is left of runs, each with the waiter that it has returned last, in order."""
    return merge(*(chain(stored((first,)), run.rest()) for first, run in runs))
