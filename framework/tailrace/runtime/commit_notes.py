"""What a task notes with its commits besides their batch: offsets without a record, watermarks, and what the runtime measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from tailrace.core.declare.plan import Plan, Published
from tailrace.core.declare.user_metrics import Measurement
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.failure import REASON_HEADER
from tailrace.core.engine.tape import Totals
from tailrace.core.engine.task import Task
from tailrace.core.records import InputRecord, RawOutput

NONE_PASSED: Final[Mapping[str, int]] = MappingProxyType({})
_ALONE_MS: Final = 60_000
"""After this time since the last commit, passed offsets are committed alone."""


class PassedOffsets:
    """Offsets behind the position of a running task that hold no record. ``known``: those noted by the last commit. ``is_noted``:
    whether commits note them.

    Theory. The position of a task is the one after its last record. Offsets without a record (on Kafka: markers of transactions, records
    of aborted ones) may be between it and the end of the input, and the log deletes them as it deletes records. The next start would
    then find that something was deleted unread. So each commit notes, on a log that gives its topics ids, up to which offset
    each input had no record behind the position.

    Such offsets may also come when there is nothing else to commit. So after a while a commit is made for them alone.
    """

    __slots__ = ("_at", "_grew", "_is_noted", "_now", "noted")

    def __init__(self, known: Mapping[str, int], *, is_noted: bool) -> None:
        self._is_noted = is_noted
        self.noted = known
        """By input: the positions that the last commit has noted."""
        self._now = dict(known)
        self._at: dict[str, int] = {}
        """By input: up to where the last commit says that there is no further record."""
        self._grew = False

    def begin(self, name: str, position: int) -> int:
        """Where to read on in an input. Called before the first ``note``."""
        self._at[name] = max(position, self.noted.get(name, 0))
        return self._at[name]

    def note(self, name: str, offset: int) -> None:
        """All records of an input that were read are taken, and it has no other before this offset."""
        self._now[name] = offset
        self._grew = self._grew or offset > self._at.get(name, offset)

    def are_due(self, since_ms: int) -> bool:
        """Whether to commit, this long after the last commit, although there may be nothing else to commit."""
        return self._is_noted and self._grew and since_ms >= _ALONE_MS

    def commit(self, positions: Mapping[str, int], *, is_noted: bool) -> Mapping[str, int]:
        """The positions to note with a cut that has these positions."""
        now = self._now
        self.noted = {name: max(position, now.get(name, 0)) for name, position in positions.items()}
        self._at = dict(self.noted)
        self._grew, self._is_noted = False, is_noted
        return self.noted


class PublishedWatermarks:
    """The watermarks that the commits of a task publish. ``before``: the last ones, by topic and channel; None: it holds no reader back.

    A commit publishes the watermarks that the task has reached. If they differ from the last published ones, that alone is a reason
    for a commit, since a task whose source became idle, or that was restored, may have nothing else to commit.
    """

    __slots__ = ("_last", "_task", "owed")

    def __init__(self, task: Task, before: Mapping[str, int | None]) -> None:
        self._task = task
        self._last = dict(before)
        # A task that has never committed holds everybody back as it is, unless it was retired.
        self.owed = bool(before or any(task.positions.values())) and self._differ()
        """Whether the next commit publishes anything new, as far as was known at the last commit."""

    def wanted(self) -> dict[str, int | None]:
        """What the next commit publishes."""
        wanted = self._task.publications()
        # What it no longer writes holds nobody back any more.
        wanted |= {name: None for name in self._last if name not in wanted}
        for one in self._task.plan.published:
            if wanted[one.name] is None:
                # Its last watermark first, by a commit of its own: readers take it before they let go.
                reached = self._reached(one)
                last = self._last.get(one.name, NO_WATERMARK)
                if last is not None and last < reached:
                    wanted[one.name] = reached
        return wanted

    def promised(self) -> dict[str, int]:
        """What others go by that was published before. Where nobody is held back now, it is what was published before that."""
        said, found = self._task.publications(), dict[str, int]()
        for one in self._task.plan.published:
            if one.name in self._last:
                marks = (self._last[one.name], said[one.name], self._reached(one))
                found[one.name] = next(mark for mark in marks if mark is not None)
        return found

    def committed(self, published: Mapping[str, int | None]) -> None:
        """A commit has published these."""
        self._last |= published
        self.owed = self._differ()

    def _differ(self) -> bool:
        return any(self._last.get(name, NO_WATERMARK) != mark for name, mark in self.wanted().items())

    def _reached(self, one: Published) -> int:
        marks = self._task.watermarks.of_operator
        return min(marks[writer] for writer in one.writers) - one.out_of_order_ms


DEAD_LETTER: Final = "dead-letter"
"""The kind of a measurement: its name is the reason of a dead letter, its value their number."""
DELAY: Final = "delay"
"""The same: its name is an input, its value the seconds from the timestamp of a record to its commit."""


class CommitMeasures:
    """What is measured of a task with each commit, beside handlers: its dead letters by reason, and how long records took to be committed.

    The measurements go with the batch of the commit, so what is aborted is in none of them. They cost a commit some microseconds,
    and a record nothing. ``totals`` are those of the task, which it counts up.
    """

    def __init__(self, totals: Totals, plan: Plan) -> None:
        self._totals, self._topic = totals, plan.dead_letters_topic
        self._known = totals.failed + totals.refused
        self._reasons = Counter[str]()

    def sent(self, outputs: Iterable[RawOutput]) -> None:
        """Count the dead letters among outputs. They are looked at only if there are any."""
        known = self._totals.failed + self._totals.refused
        if known != self._known:
            self._known = known
            letters = [dict(headers) for topic, *_, headers in outputs if topic == self._topic]
            self._reasons.update(one[REASON_HEADER].decode() for one in letters if REASON_HEADER in one)

    def of_commit(
        self, taken: Sequence[tuple[str, InputRecord | None, InputRecord | None]], now_ms: int
    ) -> Iterator[Measurement]:
        """The measurements of a commit. ``taken``: by input, the first and the last record that it has taken."""
        for reason, count in self._reasons.items():
            yield Measurement(DEAD_LETTER, reason, count)
        for name, first, last in taken:
            for record in (first,) if first is last else (first, last):
                if record is not None:
                    yield Measurement(DELAY, name, max(0, now_ms - record.timestamp_ms) / 1_000)

    def committed(self) -> None:
        """The commit is durable."""
        self._reasons.clear()
