"""The owners of tasks on an event log in memory."""

from __future__ import annotations

import os

from tailrace.core.errors import FencedError, TaskOwnedError
from tailrace.log.plain_log import PlainLog
from tailrace.log.tasks import AppTasks, ClaimedTasks, OnAssigned, OnRevoked, Owner, nothing


class MemoryTasks(ClaimedTasks):
    """Tasks of a ``MemoryLog``. ``owners`` has the owner of each task, by app and number."""

    def __init__(
        self, tasks: AppTasks, on_assigned: OnAssigned, owners: dict[tuple[str, int], MemoryTasks]
    ) -> None:
        super().__init__(tasks, on_assigned)
        self._owners = owners
        for number in self.owned:
            if (self.app, number) in owners:
                raise TaskOwnedError(f"the task {self.app}/{number} is owned already", hint="Close it first.")
        owners.update(((self.app, number), self) for number in self.owned)

    def check(self) -> None:
        """See ``Tasks.check``. Raises FencedError after ``MemoryLog.crash``."""
        for number in self.owned:
            if self._owners.get((self.app, number)) is not self:
                raise FencedError(f"the task {self.app}/{number} was taken over", hint="Nothing is lost.")

    def close(self) -> None:
        for number in self.owned:
            if self._owners.get((self.app, number)) is self:
                del self._owners[self.app, number]


class MemoryOwners(PlainLog):
    """The part of ``MemoryLog`` that knows the owners of tasks."""

    def __init__(self) -> None:
        self.owners: dict[tuple[str, int], MemoryTasks] = {}
        """By app and task."""

    def join(
        self, tasks: AppTasks, on_assigned: OnAssigned = nothing, _on_revoked: OnRevoked = nothing, /
    ) -> MemoryTasks:
        """Own the tasks at once. See ``TaskLog.join``."""
        return MemoryTasks(tasks, on_assigned, self.owners)

    def owner(self, app: str, number: int, /) -> Owner | None:
        """See ``TaskLog.owner``: this process, if a task has an owner."""
        return Owner(os.getpid(), stopped=False) if (app, number) in self.owners else None
