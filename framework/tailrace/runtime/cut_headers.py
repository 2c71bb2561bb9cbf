"""The headers of a task's cuts; see ``history.reading.cut_notes``."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.core.declare.plan import Plan
from tailrace.core.records import Headers, InputRecord
from tailrace.history.reading.left_inputs import abandoned_header
from tailrace.history.reading.same_topics import note_of_topics, noted_header
from tailrace.log.interface import Log
from tailrace.runtime.task_notes import versions_header


class CutHeaders:
    """What goes with the cuts of a task that continues from the cut ``last``.

    From here on, commits are refused if a topic that the task reads or writes is deleted and created again.
    """

    def __init__(self, plan: Plan, log: Log, partition: int, last: InputRecord | None) -> None:
        self._plan, self._log, self._partition = plan, log, partition
        known = log.topics()
        used = {*plan.outputs, plan.changelog_topic, plan.tape_topic, *(one.name for one in plan.inputs)}
        note = note_of_topics(log, used & known.keys())
        self.has_notes = bool(note)
        """Whether the log wants notes."""
        self._kept = abandoned_header(plan, last)
        if note:
            self._kept += versions_header(plan, last)

    def of(self, positions: Mapping[str, int]) -> Headers:
        """The headers of a cut. ``positions``: by input, up to where it has no record that is not in the cut."""
        if not self.has_notes:
            return self._kept
        return noted_header(self._plan, self._log, self._partition, positions) + self._kept
