"""What a stage sends to later ones: files of records in the order of their places, merged by those that read them.

Theory. Outputs come in the order in which operators have made them. They are held until the task has published a watermark that no
more of them will be behind, then sorted and written to the *main* file of their topic and partition. What is behind that watermark
all the same, and what is held too long, goes to *runs*: sorted files of their own. So each file is in order, and a reader merges
them.

    place      (event time, tail): see ``engine.ordering``
    channel    the messages to different actors are in different files, as different stages may read them
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import Final, TypeAlias, cast

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import InputPlan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.failure import FAILURES
from tailrace.core.engine.timers import FOREVER
from tailrace.core.records import CHANNEL, Headers, InputRecord, Output
from tailrace.core.unit_ids import ORIGIN_HEADER, RecordIds, is_from_outside
from tailrace.core.values.partitioner import partition_of
from tailrace.history.rebuilding.blocks import BlockReader, BlockWriter
from tailrace.history.rebuilding.work_folder import WorkFolder

_IN_A_FRAME: Final = 1_000
_HELD: Final = 200_000
"""Most records that are held in memory."""

Sent: TypeAlias = tuple[int, bytes, int, bytes | None, bytes | None, Headers]
"""Event time, tail of the place, timestamp, key, value, headers."""
SentTo: TypeAlias = tuple[str, int]
"""Where records are sent: a topic or a channel, and a partition."""
_place = itemgetter(0, 1)


class SentFile(msgspec.Struct, frozen=True):
    """A file of records that were sent: where to, its name in the folder of blocks, and the number of its records."""

    to: SentTo
    name: str
    count: int


def sent_of(to: InputPlan, one: Output | InputRecord, tail: bytes) -> Sent:
    """A record of an own input. One that cannot be decoded goes by its timestamp, and is refused where it is read."""
    time_ms = one.timestamp_ms
    if to.time_of is not None and one.value is not None:
        try:
            found = to.time_of(to.decode(one.value))
            time_ms = time_ms if found is None else found
        except FAILURES:
            pass
    return time_ms, tail, one.timestamp_ms, one.key, one.value, one.headers


def channel_of(to: InputPlan, value: bytes | None) -> str:
    """The channel of a message; of any other record, its topic."""
    if not to.is_inbox:
        return to.name
    try:
        return f"{to.name}{CHANNEL}{rows.decode_envelope(value or b'')[0]}"
    except (msgspec.MsgspecError, ValueError):
        return to.name


class SendsWriter:
    """Sorts what one unit sends into files. ``unit``: its name and attempt, of which the files have theirs."""

    def __init__(
        self, work: WorkFolder, unit: str, own: Mapping[str, InputPlan], partitions: int, app: str
    ) -> None:
        self._work, self._unit, self._own, self._partitions = work, unit, own, partitions
        self._ids = RecordIds("", 0, app)
        self._held: defaultdict[SentTo, list[Sent]] = defaultdict(list)
        self._main: dict[SentTo, BlockWriter] = {}
        self._reached: dict[SentTo, int] = {}
        self._counts: defaultdict[SentTo, int] = defaultdict(int)
        self._files: list[SentFile] = []
        self._number = 0

    def take(self, outputs: Sequence[Output]) -> None:
        """Accept outputs; those that the app does not read are ignored."""
        for one in outputs:
            if (to := self._own.get(one.topic)) is not None:
                place = channel_of(to, one.value), partition_of(one.key or b"", self._partitions)
                self._held[place].append(sent_of(to, one, self._ids.tail_of(one)))

    def flush(self, marks: Callable[[str], int | None]) -> None:
        """Write all up to the watermark of each topic or channel."""
        for place, held in self._held.items():
            mark = marks(place[0])
            if not held or (mark is None and len(held) < _HELD):
                continue
            held.sort(key=_place)
            behind = bisect_right(held, self._reached.get(place, NO_WATERMARK), key=itemgetter(0))
            self._run(place, held[:behind])
            rest = held[behind:]
            stop = 0 if mark is None else bisect_right(rest, mark, key=itemgetter(0))
            if stop:
                self._write(self._main_file(place), rest[:stop])
                self._counts[place] += stop
            if mark is not None:
                self._reached[place] = max(mark, self._reached.get(place, mark))
            rest = rest[stop:]
            if len(rest) >= _HELD:
                self._run(place, rest)
                rest = []
            self._held[place] = rest

    def finish(self) -> list[SentFile]:
        """Write the rest, and return the files."""
        self.flush(lambda _: FOREVER)
        for place, file in self._main.items():
            file.close()
            self._files.append(SentFile(place, file.path.name, self._counts[place]))
        return self._files

    def _run(self, place: SentTo, some: Sequence[Sent]) -> None:
        if some:
            with self._file() as file:
                self._write(file, some)
            self._files.append(SentFile(place, file.path.name, len(some)))

    def _main_file(self, place: SentTo) -> BlockWriter:
        if place not in self._main:
            self._main[place] = self._file()
        return self._main[place]

    def _file(self) -> BlockWriter:
        self._number += 1
        return BlockWriter(self._work.blocks / f"{self._unit}-sent-{self._number}")

    @staticmethod
    def _write(file: BlockWriter, some: Sequence[Sent]) -> None:
        for start in range(0, len(some), _IN_A_FRAME):
            file.write(some[start : start + _IN_A_FRAME])


def sorted_apart(work: WorkFolder, unit: str, some: Iterable[Sent]) -> list[Iterator[Sent]]:
    """Records in any order, as sequences that are each in order: what does not fit into memory, from files."""
    found: list[Iterator[Sent]] = []
    rest = iter(some)
    while held := sorted(islice(rest, _HELD), key=_place):
        if len(held) < _HELD:
            found.append(iter(held))
            break
        name = f"{unit}-others-{len(found)}"
        with BlockWriter(work.blocks / name) as file:
            SendsWriter._write(file, held)
        found.append(sent_in(work, name))
    return found


def sent_in(work: WorkFolder, name: str) -> Iterator[Sent]:
    """The records of a file."""
    return chain.from_iterable(BlockReader[list[Sent]](work.blocks / name, list[Sent]))


def merged(parts: Iterable[Iterable[Sent]], first: int) -> Iterator[InputRecord]:
    """Records in the order of their places, with offsets from ``first`` on."""
    for number, (_, tail, *fields, headers) in enumerate(merge(*parts, key=_place), first):
        more = ((ORIGIN_HEADER, tail),) if is_from_outside(tail) else ()
        yield InputRecord(
            number, *cast("tuple[int, bytes | None, bytes | None]", fields), headers=(*headers, *more)
        )
