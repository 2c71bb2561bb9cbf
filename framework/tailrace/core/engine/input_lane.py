"""One input of one task in canonical order (see ``canonical``): its buffered heads, and their places."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Literal, TypeAlias

from tailrace.core.durations import A_DAY_MS, NO_WATERMARK
from tailrace.core.engine.intake import Intake, Source
from tailrace.core.engine.task import Task
from tailrace.core.engine.timers import FOREVER
from tailrace.core.records import Head, InputRecord, Refused

RecordOrigin: TypeAlias = Literal["sent", "others"]
"""Origin of a record of an own input: this app sent it, or others wrote it."""


def written_by_others(_name: str, _record: InputRecord, /) -> RecordOrigin:
    """Treat no record as this app's."""
    return "others"


@dataclass(frozen=True, slots=True)
class PartitionHistory:
    """The records that one partition reads in canonical order: of each input (by name), those before an offset in ``ends``.

    ``upstream``: per source, the watermarks that its writers have published, in ascending order, as pairs of
    the position where the watermark takes effect and the watermark; None: the writers hold no reader back. An
    inbox without an end in ``ends`` is not read.
    """

    source: Source
    ends: Mapping[str, int]
    upstream: Mapping[str, Sequence[tuple[int, int | None]]] = field(
        default_factory=dict[str, Sequence[tuple[int, int | None]]]
    )
    record_origin: Callable[[str, InputRecord], RecordOrigin] = written_by_others
    """For own inputs that are delivered: records that the app sent are left out."""
    idle: Collection[str] | None = None
    """The inputs from outside that are idle from their ends on; None: as the clock decides."""
    sent: Collection[str] = ()
    """Own inputs that hold all that the app sends, in the order of event time: see ``rounds``."""


class InputLane:
    """``delivered``: the tasks deliver the records of this input; the lane has only the records that others have
    written to it.
    """

    def __init__(
        self,
        task: Task,
        number: int,
        past: PartitionHistory,
        end: int,
        window: int | None,
        *,
        delivered: bool,
        as_of_ms: int | None = None,
    ) -> None:
        plan = task.plan.inputs[number]
        self.task, self.number, self.name, self.end = task, number, plan.name, end
        self.delivered, self._as_of_ms = delivered, as_of_ms
        self.withheld = False
        """Whether there were records from after ``as_of_ms``, which the lane leaves out."""
        self._inbox, self.is_broadcast = plan.is_inbox, plan.broadcast
        self.sources = [number]
        if plan.is_inbox:
            self.sources = [*range(len(task.plan.inputs), len(task.plan.sources))]
        follows = plan.is_inbox or plan.watermark == "upstream"
        self.judged = bool(plan.moves) or (plan.is_inbox and bool(self.sources))
        if delivered and follows:
            self.judged = False
        self.marks = deque(
            sorted(
                (
                    (at, source, mark if mark is None or as_of_ms is None else min(mark, as_of_ms))
                    for source in self.sources
                    for at, mark in (() if delivered else past.upstream.get(task.plan.sources[source], ()))
                ),
                key=itemgetter(0, 1),
            )
        )
        self.by_clock = not follows
        """Whether ``idle_after`` decides when this input becomes idle."""
        self.idle_after_ms = (FOREVER if self.marks else 0) if follows else plan.idle_after_ms
        """How far the clock must advance after the lane's end before the lane becomes idle; see "idle" above.
        """
        if past.idle is not None and not follows:
            self.idle_after_ms = 0 if plan.name in past.idle else FOREVER
        self.sent = plan.name in past.sent
        self._last_marks = [*self.marks]
        self.resting_since_ms: int | None = None
        """The clock when the lane ended; None before the end, and before the first clock reading."""
        self.heads: list[Head] = []
        self.times: list[int | None] = []
        """Times by which the heads are ordered; None for a head that goes at once."""
        self.stamps: list[int] = []
        """Clock readings of the heads. A message has none, nor has a timestamp that lies in the future."""
        self.at = self.count = 0
        """The place of the next head, and the number of all heads so far."""
        self.is_last = plan.is_inbox and (delivered or not task.plan.has_messages)
        """Whether it is read after all others, as it has redriven records only. Messages that are recorded do not wait for these."""
        self._past = past
        self._intake = Intake(task, number, past.source, task.positions[plan.name], window)

    def fill(self) -> bool:
        """Make the next head available; False at the end."""
        while self.at == len(self.heads):
            found = self._intake.window(self.end)
            if found is None:
                return False
            self.heads, records = found
            self.times = [head[1] for head in self.heads]
            if None in self.times:
                self.times = [_order_time(head) for head in self.heads]
            latest_ms = FOREVER if self.task.event_clock_ms is None else self.task.event_clock_ms + A_DAY_MS
            self.stamps = [
                NO_WATERMARK if self._inbox or record.timestamp_ms > latest_ms else record.timestamp_ms
                for record in records
            ]
            self.at = 0
            if self._as_of_ms is not None:
                records = self._up_to(self._as_of_ms, records)
            if self.delivered:
                self._leave_out(records)
            self.count += len(self.heads)
            if self.sent and (times := [one for one in self.times if one is not None]):
                self._mark(max(times))
        return True

    def _mark(self, last_ms: int) -> None:
        """At the last one of the heads, all events of what is sent that are earlier have been read."""
        for _, source, mark in self._last_marks:
            if mark is not None:
                at = len(self.marks) - len(self._last_marks)
                self.marks.insert(at, (self.heads[-1][0], source, min(mark, last_ms - 1)))

    def _up_to(self, as_of_ms: int, records: Sequence[InputRecord]) -> Sequence[InputRecord]:
        """Drop the heads from after a time. One without an event time goes by its timestamp. Returns what is left of
        the records.
        """
        kept = [
            at
            for at, (time_ms, record) in enumerate(zip(self.times, records, strict=True))
            if (record.timestamp_ms if time_ms is None else time_ms) <= as_of_ms
        ]
        self.withheld |= len(kept) < len(records)
        self.heads = [self.heads[at] for at in kept]
        self.times = [self.times[at] for at in kept]
        self.stamps = [self.stamps[at] for at in kept]
        return [records[at] for at in kept]

    def _leave_out(self, records: Sequence[InputRecord]) -> None:
        """Drop an own input's records that the app sent."""
        kept = [at for at, one in enumerate(records) if self._past.record_origin(self.name, one) != "sent"]
        self.heads = [self.heads[at] for at in kept]
        self.times = [self.times[at] for at in kept]
        self.stamps = [self.stamps[at] for at in kept]

    def next_offset(self) -> int:
        """The offset up to which all records have been taken."""
        return self.heads[self.at][0] if self.fill() else self.end


def _order_time(head: Head) -> int | None:
    if head[1] is not None or type(head[3]) is Refused:
        return head[1]
    assert head[4] is not None
    return head[4].timestamp_ms
