"""The tasks of apps: which process owns which. A task has at most one owner at a time, and only its owner works on it.

::

                        a log in a folder                        Kafka
    who decides         a claim of each process (a file lock)    the consumer group of the app
    a process gets      its share, until it leaves               some; they move when a process comes or goes
    a dead owner        frees its tasks at once                  frees them after ``session.timeout.ms``
    a suspended owner   keeps them                               keeps them for ``session.timeout.ms``

Ownership decides which process works. It does not protect the log: writers are fenced (see ``Writer``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

from tailrace.core.names import task_of

OnAssigned: TypeAlias = Callable[[Collection[int]], None]
OnRevoked: TypeAlias = Callable[[Collection[int], bool], None]


def nothing(*_: object) -> None:
    """The callback of a process that does nothing when tasks come and go."""


class Owner(msgspec.Struct, frozen=True):
    """The process that owns a task now. ``pid`` is 0 if it is unknown."""

    pid: int
    stopped: bool
    """Whether a signal or a debugger has suspended it, if that can be found out."""
    host: str = ""
    """Its host. Empty: this one."""

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host else ""
        return f"process {self.pid}{where}" if self.pid else (self.host or "an unknown process")


@dataclass(frozen=True, slots=True)
class AppTasks:
    """The tasks of an app, as ``Log.join`` needs them."""

    app: str
    tape: str
    """A topic with a partition per task."""
    count: int
    share: Collection[int] | None = None
    """The tasks that this process takes, where processes share them by themselves. None: all."""

    @property
    def numbers(self) -> list[int]:
        """The tasks of the share."""
        return sorted(range(self.count) if self.share is None else self.share)


class Tasks(ABC):
    """The tasks that this process owns, until ``close``. For one thread."""

    owned: Collection[int]
    """Their numbers at present. The same object all the time."""
    joined: bool
    """Whether the log has answered. It may have assigned nothing."""

    @abstractmethod
    def look(self) -> None:
        """Take new tasks, and give up those that go to others. Must be called often.

        Calls ``on_assigned`` with the numbers of new tasks, before any work; and ``on_revoked`` with those that go to other
        processes and whether they can still be committed, before another process gets them. Raises what these raise.

        Raises:
            FencedError: Another process has taken a task, on a log that gives up no task by itself.
            LogUnavailableError: The log does not answer.
        """

    @abstractmethod
    def check(self) -> None:
        """Check that this process still owns its tasks.

        Raises:
            FencedError: It does not.
            LogUnavailableError: The log does not answer.
        """

    @property
    def member_id(self) -> str:
        """The name of this process among the owners. Empty if it has none."""
        return ""

    def notes(self) -> Mapping[int, str]:
        """By task, the text that an owner left with it. May be called from any thread. A log whose tasks do not move keeps none."""
        return {}

    def leave_note(self, number: int, text: str) -> None:  # noqa: B027  # see ``notes``
        """Replace the note of an owned task."""

    @abstractmethod
    def close(self) -> None:
        """Give up the tasks; they are free at once. Work on them must have ended."""


class ClaimedTasks(Tasks):
    """Tasks that a process claims when it joins, and keeps until it leaves: all are assigned at the first ``look``, none is revoked."""

    def __init__(self, tasks: AppTasks, on_assigned: OnAssigned) -> None:
        self.joined = False
        self.owned: Collection[int] = tasks.numbers
        self.app = tasks.app
        self._on_assigned = on_assigned

    def look(self) -> None:
        """See ``Tasks.look``."""
        self.check()
        if not self.joined:
            self.joined = True
            self._on_assigned(self.owned)


class TaskLog(Protocol):
    """The part of a log that knows the owners of tasks."""

    @property
    def moves_tasks(self) -> bool:
        """Whether tasks move between processes while they run: any number of processes may start and stop at any time."""
        ...

    def join(
        self, tasks: AppTasks, on_assigned: OnAssigned = nothing, on_revoked: OnRevoked = nothing, /
    ) -> Tasks:
        """Take part in the work of an app. The callbacks are those of ``Tasks.look``.

        Raises:
            TaskOwnedError: Another process owns one of the tasks; where tasks move, ``look`` raises it.
            LogUnavailableError: The log does not answer.
        """
        ...

    def owner(self, app: str, number: int, /) -> Owner | None:
        """The process that owns a task now; None if there is none. Changes nothing.

        Kafka is not to be asked by a process that has joined an app: librdkafka 2.16 ends the process if the coordinator of a group
        restarts while it describes the group.
        """
        ...

    def reserve(self, app: str, numbers: Collection[int], /) -> AbstractContextManager[None]:
        """Check that no process of an app lives. In a folder, none can own one of these tasks inside the block; on Kafka, what dead owners
        of these tasks have left open is aborted.

        A process that has joined an app on Kafka must not ask, see ``owner``.

        Raises:
            TaskOwnedError: There is one, and the message names it.
        """
        ...

    @property
    def transaction_timeout_ms(self) -> int:
        """For how long a transaction may be open before the log aborts it. 0: without a limit."""
        ...

    def limit_patience(self, patience_s: float, /) -> None:
        """From now on, do not wait longer than this for a log that does not answer. May be called from a signal handler."""
        ...


def owner_of(log: TaskLog, transactional_id: str) -> Owner | None:
    """The owner of the task with this transactional id (``app-number``); None if there is none."""
    task = task_of(transactional_id)
    return None if task is None else log.owner(*task)


def is_owned(log: TaskLog, transactional_id: str) -> bool:
    """Whether a live process owns the task with this transactional id. A suspended process counts, as it may continue."""
    return owner_of(log, transactional_id) is not None
