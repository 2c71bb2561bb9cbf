"""A task that can take no more, and has to commit before it stops.

If no more may wait in quarantine, what came before is committed first: only then can anybody see the failures, and decide about them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.core.engine.task import Task
from tailrace.core.records import Head


class CommitFirst:
    """Of one task. ``is_due``: it has to commit at once."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.committed()

    def committed(self) -> None:
        """A commit has everything so far."""
        self.is_due, self._at_commit = False, self._done

    @property
    def _done(self) -> tuple[int, int, int]:
        totals = self._task.totals
        return totals.records + totals.refused + totals.for_others, totals.drained, totals.failed

    def ask(self) -> bool:
        """Whether there is something to commit before the task stops. Then a commit is due."""
        self.is_due = self._done != self._at_commit
        return self.is_due

    def taken(self, number: int, heads: Sequence[Head], start: int) -> int:
        """The index of the first head of an input that the task has not taken."""
        position = self._task.positions[self._task.plan.inputs[number].name]
        return next((at for at in range(start, len(heads)) if heads[at][0] >= position), len(heads))
