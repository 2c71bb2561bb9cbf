"""What the runtime measures with each commit, beside handlers: its dead letters by reason, and how long records took to be committed.

The measurements go with the batch of the commit, so what is aborted is in none of them. They cost a commit some microseconds, and a
record nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tailrace.core.declare.plan import Plan
from tailrace.core.declare.user_metrics import Measurement
from tailrace.core.engine.failure import REASON_HEADER
from tailrace.core.engine.tape import Totals
from tailrace.core.records import InputRecord, RawOutput

DEAD_LETTER: Final = "dead-letter"
"""The kind of a measurement: its name is the reason of a dead letter, its value their number."""
DELAY: Final = "delay"
"""The same: its name is an input, its value the seconds from the timestamp of a record to its commit."""


class CommitMeasures:
    """Of one task, from one commit to the next. ``totals`` are those of the task, which it counts up."""

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
