"""Ownership of tasks on one machine: a file lock for each task, which the death of its owner frees at once.

An owner that is suspended (SIGSTOP, a debugger) keeps its tasks until it is continued or ended. A process
that wants them gets an error with its process id.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from urllib.parse import quote

from tailrace.core.errors import FencedError, TaskOwnedError
from tailrace.core.names import transactional_id
from tailrace.log.embedded.failures import failing
from tailrace.log.embedded.holders import lockers
from tailrace.log.embedded.lock import FileLock
from tailrace.log.tasks import AppTasks, ClaimedTasks, OnAssigned, Owner, nothing

OWNERS = "owners"
_PATIENCE_S = 1.0
"""For how long a claim is retried: processes that start together may block each other for a moment."""


class EmbeddedTasks(ClaimedTasks):
    """The tasks of a process, claimed when it is made.

    Raises:
        TaskOwnedError: Another process owns one of them; none is claimed then.
        LogUnavailableError: The log's folder cannot be written.
    """

    def __init__(self, folder: Path, tasks: AppTasks, on_assigned: OnAssigned = nothing) -> None:
        super().__init__(tasks, on_assigned)
        self._folder = folder
        self._claims = {number: FileLock(_path(folder, tasks.app, number)) for number in self.owned}
        try:
            with failing(folder, f"claiming the tasks of {tasks.app!r}"):
                (folder / OWNERS).mkdir(exist_ok=True)
                for number in self._claims:
                    self._claim(number)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """See ``Tasks.check``. A lock file that is deleted frees the task, too."""
        for number, one in self._claims.items():
            if not one.is_open_at_its_path():
                raise FencedError(
                    f"this process does not own the task {self.app}/{number} any more: it has given it up, or the folder of the "
                    f"log, {str(self._folder)!r}, was replaced or removed",
                    hint="Stop the services of a log before its folder is replaced, and start them again afterwards.",
                )

    def close(self) -> None:
        for one in self._claims.values():
            one.close()

    def _claim(self, number: int) -> None:
        if not self._claims[number].acquire(_PATIENCE_S):
            owner = owner_of(self._folder, self.app, number) or Owner(0, stopped=False)
            pid = owner.pid or "of another user or container"
            way = f" (`kill -CONT {pid}`, `kill -KILL {pid}`)" if owner.stopped else ""
            raise TaskOwnedError(
                f"the task {self.app}/{number} is owned by another process ({pid}), which is "
                f"{'stopped' if owner.stopped else 'alive'}",
                hint=f"Stop that worker first. If it is stopped, continue or end it{way}; if it hangs, end it.",
            )


def owner_of(folder: Path, app: str, number: int) -> Owner | None:
    """The owner of a task; None if there is none. Changes nothing, and needs no write permission.
    Raises LogUnavailableError: the folder cannot be read.
    """
    path = _path(folder, app, number)
    with failing(folder, f"looking who owns the task {app}/{number}"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            # Held only for a moment. A process that wants to claim it meanwhile retries.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            return next((Owner(*one) for one in lockers(path)), Owner(0, stopped=False))
        finally:
            os.close(descriptor)


def _path(folder: Path, app: str, number: int) -> Path:
    return folder / OWNERS / (quote(transactional_id(app, number), safe="") + ".lock")
