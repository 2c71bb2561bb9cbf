"""Ownership of tasks on one machine: claimed before any work, renewed in the background, released at the end.

A claim decides which process works. Fencing protects the log (``tailrace.log.embedded``). A thread renews the lease, since a
slice or a restore may take longer than the lease. A stopped process (SIGSTOP) does not run its threads either: its lease
expires, and another process may take over. When it runs again, its first renewal or commit fails.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path
from time import monotonic, sleep

from tailrace.core.errors import FencedError, TaskOwnedError
from tailrace.log.embedded import Claim, claim, owner_of

LEASE_S = 10.0
_BEATS = 5
"""Number of renewals per lease."""
_PATIENCE_S = 1.0
"""For how long a claim is retried: processes that start together may block each other for a moment."""
_FOR_EVER_S = 1e9


class TaskOwnership:
    """Some tasks of an app, owned by this process until ``release``.

    With ``from_stopped`` a task is also taken from an owner that has not renewed its claim for ``lease_s``. Without it, only
    tasks without an owner are taken.

    Raises:
        TaskOwnedError: Another process owns one of them.
        LogUnavailableError: The log's folder cannot be written.
    """

    def __init__(
        self,
        log_folder: Path,
        app: str,
        numbers: Collection[int],
        *,
        lease_s: float = LEASE_S,
        from_stopped: bool = True,
    ) -> None:
        self._app = app
        self._folder = log_folder
        self._folder_then = _which(log_folder)
        self._claims: dict[int, Claim] = {}
        self._lost: int | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, args=(lease_s / _BEATS,), daemon=True)
        try:
            for number in sorted(numbers):
                lease = lease_s if from_stopped else _FOR_EVER_S
                self._claims[number] = _claimed(log_folder, app, number, lease, lease_s)
        except BaseException:
            self._let_go()
            raise
        self._thread.start()

    def check(self) -> None:
        """Check that this process still owns the tasks.

        Raises:
            FencedError: Another process has taken one over, or the log's folder was replaced.
        """
        if self._lost is None:
            # After a stop of the process, the renewing thread may not have run yet.
            self._lost = next((number for number, one in self._claims.items() if not one.holds()), None)
        if self._lost is None:
            return
        if _which(self._folder) != self._folder_then:
            raise FencedError(
                f"the folder of the log, {str(self._folder)!r}, was replaced or removed while the task {self._app}/{self._lost} "
                "ran on it",
                hint="Stop the services of a log before its folder is replaced, and start them again afterwards.",
            )
        raise FencedError(
            f"the task {self._app}/{self._lost} was taken over by another process: this one did not run for "
            "longer than its lease",
            hint="Nothing is lost: the new owner continues from the last commit.",
        )

    def release(self) -> None:
        """Release the tasks for other processes. Can be called repeatedly."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._let_go()

    def _let_go(self) -> None:
        for one in self._claims.values():
            one.release()

    def _renew(self, every_s: float) -> None:
        while not self._done.wait(every_s):
            for number, one in self._claims.items():
                try:
                    is_ours = one.renew()
                except OSError:
                    continue  # such as a full disk: the lease lasts for several renewals
                if not is_ours:
                    self._lost = number
                    return


def _which(folder: Path) -> tuple[int, int] | None:
    """The identity of the folder that is at this path now; None if there is none."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_owned(log_folder: Path, transactional_id: str) -> bool:
    """Whether a live process owns the task with this transactional id. A stopped process counts, as it may continue."""
    return owner_of(log_folder, transactional_id) is not None


def _claimed(log_folder: Path, app: str, number: int, steal_after_s: float, lease_s: float) -> Claim:
    deadline = monotonic() + _PATIENCE_S
    while True:
        found = claim(log_folder, f"{app}-{number}", lease_s=steal_after_s)
        if found is not None:
            return found
        if monotonic() > deadline:
            owner = owner_of(log_folder, f"{app}-{number}")
            pid = owner.pid if owner is not None else 0
            is_stopped = owner is not None and owner.is_stopped
            raise TaskOwnedError(
                f"the task {app}/{number} is owned by another process{f' ({pid})' if pid else ''}, which is "
                f"{'stopped' if is_stopped else 'alive'}",
                hint=f"Stop that worker first, or end it if it hangs{f' (`kill -KILL {pid}`)' if is_stopped else ''}. If it was "
                f"stopped or frozen, a worker with a --state of its own takes its tasks over after its lease of {lease_s:g} s.",
            )
        sleep(0.02)
