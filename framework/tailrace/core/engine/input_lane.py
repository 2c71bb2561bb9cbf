"""One input of one task in a stage (see ``stage_order``): its buffered heads, and their places."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from tailrace.core.durations import A_DAY_MS, NO_WATERMARK
from tailrace.core.engine.intake import Intake, Source
from tailrace.core.engine.task import Task
from tailrace.core.engine.timers import FOREVER
from tailrace.core.records import Delivery, Head, InputRecord, Refused


@dataclass(frozen=True, slots=True)
class Stand:
    """The cut at which a task ends: the watermarks of its operators, and its clock."""

    marks: Mapping[int, int]
    clock_ms: int | None = None
    """No reading goes beyond it; None: there is no such limit."""


@dataclass(frozen=True, slots=True)
class PartitionHistory:
    """What the task of one partition reads in a stage: of each input (by name), the records before an offset in ``ends``.

    ``upstream``: per source, the watermarks that its writers have published, in ascending order, as pairs of
    the position where the watermark takes effect and the watermark; None: the writers hold no reader back. An
    inbox without an end in ``ends`` is not read.
    """

    source: Source
    ends: Mapping[str, int]
    upstream: Mapping[str, Sequence[tuple[int, int | None]]] = field(
        default_factory=dict[str, Sequence[tuple[int, int | None]]]
    )
    sent: Collection[str] = ()
    """The inputs with what earlier stages have sent, in the order of places."""
    again: Collection[str] = ()
    """Those that an earlier stage reads, too: it has refused what has to be refused."""
    redriven: tuple[int, int] | None = None
    """The offsets in the inbox between which there are redriven records only: they are read after all others."""
    first_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of reference data: the records up to this timestamp are read before all others."""
    stand: Stand | None = None
    """Where the operators end. None: each as far as its inputs go."""
    clock_ms: int = 0
    """The lowest clock reading at the end."""


class InputLane:
    """The records of one input, or of its redriven ones (``is_last``)."""

    def __init__(
        self,
        task: Task,
        number: int,
        past: PartitionHistory,
        offsets: tuple[int, int],
        window: int | None,
        *,
        is_last: bool = False,
        as_of_ms: int | None = None,
    ) -> None:
        plan = task.plan.inputs[number]
        start, self.end = offsets
        self.task, self.number, self.name, self.is_last = task, number, plan.name, is_last
        self._as_of_ms = as_of_ms
        self.is_reference = plan.is_reference
        """Whether its records come before the first event that is not earlier than their timestamps."""
        self._first_ms = past.first_ms.get(plan.name, NO_WATERMARK)
        self.sources = [number]
        if plan.is_inbox:
            self.sources = [*range(len(task.plan.inputs), len(task.plan.sources))]
        follows = plan.is_inbox or plan.watermark == "upstream"
        self.judged = not is_last and (bool(plan.moves) or plan.is_inbox or plan.broadcast)
        self.marks = deque(
            sorted(
                (
                    (at, source, mark if mark is None or as_of_ms is None else min(mark, as_of_ms))
                    for source in self.sources
                    for at, mark in (() if is_last else past.upstream.get(task.plan.sources[source], ()))
                ),
                key=itemgetter(0, 1),
            )
        )
        self._last_marks = [*self.marks]
        is_empty = start >= self.end
        self.falls_idle = (
            past.stand is not None or plan.broadcast or (not self.marks if follows else is_empty)
        )
        """Whether it holds nobody back from its end on."""
        self.sent, self._again = plan.name in past.sent and not is_last, plan.name in past.again
        self.heads: list[Head] = []
        self.times: list[int | None] = []
        """Times by which the heads are ordered; None for a head that goes at once."""
        self.stamps: list[int] = []
        """Clock readings of the heads. A timestamp that lies in the future is none."""
        self.at = self.taken = 0
        """The place of the next head, and the number of those before."""
        self._intake = Intake(task, number, past.source, start, window)

    def fill(self) -> bool:
        """Make the next head available; False at the end."""
        while self.at == len(self.heads):
            found = self._intake.window(self.end)
            if found is None:
                return False
            self.heads, records = found
            if self._again:
                kept = [at for at, head in enumerate(self.heads) if type(head[3]) is not Refused]
                records = self._only(kept, records)
            self.times = [head[1] for head in self.heads]
            if None in self.times:
                self.times = [_order_time(head) for head in self.heads]
            if self._as_of_ms is not None:
                records = self._up_to(self._as_of_ms, records)
            latest_ms = FOREVER if self.task.event_clock_ms is None else self.task.event_clock_ms + A_DAY_MS
            stamps = [record.timestamp_ms for record in records]
            self.stamps = [NO_WATERMARK if stamp > latest_ms else stamp for stamp in stamps]
            if self.is_reference:
                first_ms = self._first_ms
                self.times = [
                    None if time_ms is None else NO_WATERMARK if stamp <= first_ms else stamp
                    for time_ms, stamp in zip(self.times, stamps, strict=True)
                ]
            self.at = 0
            if self.sent:
                timed = zip(self.times, self.heads, strict=True)
                self._mark([at for at, head in timed if at is not None and not _waited(head)])
        return True

    def waited(self) -> bool:
        """Whether the next head has waited for its turn in an ordered operator when the stage began."""
        return self.sent and self.fill() and _waited(self.heads[self.at])

    def _mark(self, times: Sequence[int]) -> None:
        """At the last one of the heads, all events of what is sent that are earlier have been read."""
        for source in self.sources if times else ():
            at = len(self.marks) - len(self._last_marks)
            self.marks.insert(at, (self.heads[-1][0], source, max(times) - 1))

    def _up_to(self, as_of_ms: int, records: Sequence[InputRecord]) -> Sequence[InputRecord]:
        """Drop the heads from after a time. One without an event time goes by its timestamp. Returns what is left of
        the records.
        """
        kept = [
            at
            for at, (time_ms, record) in enumerate(zip(self.times, records, strict=True))
            if (record.timestamp_ms if time_ms is None else time_ms) <= as_of_ms
        ]
        self.times = [self.times[at] for at in kept]
        return self._only(kept, records)

    def _only(self, kept: Sequence[int], records: Sequence[InputRecord]) -> Sequence[InputRecord]:
        if len(kept) == len(self.heads):
            return records
        self.heads = [self.heads[at] for at in kept]
        return [records[at] for at in kept]

    def next_offset(self) -> int:
        """The offset up to which all records have been taken."""
        return self.heads[self.at][0] if self.fill() else self.end


def _waited(head: Head) -> bool:
    return type(head[3]) is Delivery and head[3].redriven >= 0


def _order_time(head: Head) -> int | None:
    if head[1] is not None or type(head[3]) is Refused:
        return head[1]
    assert head[4] is not None
    return head[4].timestamp_ms
