"""What is on its way to a task at a consistent cut: sent by then, and not read.

In an internal topic of the app, these are the records at or after the task's position that their writer had written by
its own commit in the cut. The number of an output tells that, and not its offset: see ``log.consistent_ends``. A record
that no task of this app has written came with the start from a snapshot, so it was sent before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrace.core.engine import tape
from tailrace.core.names import is_own
from tailrace.core.records import InputRecord
from tailrace.history.reading.app_history import AppHistory, origin_of
from tailrace.history.reading.stretches import scan


class InFlight:
    """The records on their way to the tasks at a cut: ``cuts`` by partition, and ``ends`` by topic, as of ``OneCommitLog.ends``."""

    def __init__(
        self, history: AppHistory, cuts: Mapping[int, bytes | None], ends: Mapping[str, list[int]]
    ) -> None:
        self._history = history
        self._ends = ends
        decoded = {number: tape.decode_cut(cut) for number, cut in cuts.items() if cut}
        self._positions = {number: cut.positions for number, cut in decoded.items()}
        self._sent = {number: cut.totals.outputs for number, cut in decoded.items()}

    def records(self, topic: str, number: int) -> Iterator[InputRecord]:
        """The records on their way to a task in one topic."""
        app = self._history.plan.app.encode()
        start = self._positions.get(number, {}).get(topic)
        if start is None:
            start = self._history.log.start_offset(topic, number)
        end = max(start, self._ends[topic][number])
        for record in scan(self._history.log, topic, number, start, end, whole=True):
            origin = origin_of(record, app)
            if origin is None or origin[1] < self._sent.get(origin[0], 0):
                yield record

    def messages(self, number: int) -> Iterator[InputRecord]:
        """The messages to the actors of a task that has committed."""
        inbox = self._history.plan.inbox_topic
        if inbox in self._ends and number in self._positions:
            yield from self.records(inbox, number)

    def waiting(self, number: int) -> dict[str, int]:
        """By internal topic that the app reads: the number of records on their way to a task."""
        plan = self._history.plan
        names = [one.name for one in plan.inputs if is_own(one.name, plan.app) and one.name in self._ends]
        return {name: sum(1 for _ in self.records(name, number)) for name in names}
