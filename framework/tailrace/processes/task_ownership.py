"""Owning tasks on one machine: claimed before anything is touched, kept alive beside the work, given back at the end.

A claim decides who works; what protects the log is fencing (``tailrace.log.embedded``). The lease is renewed by a
thread, since a slice or a restore may take longer than it. A process that was stopped does not run its threads either:
its lease ends, another may take over, and when it wakes the first renewal, or the first commit, tells it.
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
"""Renewals in a lease."""
_PATIENCE_S = 1.0
"""Processes that start together stand in one another's way for a moment."""
_FOR_EVER_S = 1e9


class TaskOwnership:
    """Some tasks of an app, owned by this process until ``release``.

    With ``from_stopped`` they are taken from an owner that has not renewed its claim for ``lease_s``; without, only
    from nobody.

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
        """See that the tasks are still ours, now.

        Raises:
            FencedError: Another has taken one over.
        """
        if self._lost is None:
            # The thread that renews may not have run yet since the process woke.
            self._lost = next((number for number, one in self._claims.items() if not one.holds()), None)
        if self._lost is not None:
            raise FencedError(
                f"the task {self._app}/{self._lost} was taken over by another process: this one did not run for "
                "longer than its lease",
                hint="Nothing is lost: the new owner goes on from the last commit.",
            )

    def release(self) -> None:
        """Let others have them. May be called again."""
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
                    continue  # a disk that is full, say: the lease is several renewals long
                if not is_ours:
                    self._lost = number
                    return


def is_owned(log_folder: Path, transactional_id: str) -> bool:
    """Whether a live process owns the task that commits under an id; one that was stopped counts, as it may go on."""
    return owner_of(log_folder, transactional_id) is not None


def _claimed(log_folder: Path, app: str, number: int, steal_after_s: float, lease_s: float) -> Claim:
    deadline = monotonic() + _PATIENCE_S
    while True:
        found = claim(log_folder, f"{app}-{number}", lease_s=steal_after_s)
        if found is not None:
            return found
        if monotonic() > deadline:
            raise TaskOwnedError(
                f"the task {app}/{number} is owned by another process, which is alive",
                hint=f"Stop that worker first, or end it if it hangs. If it was stopped or frozen, try again after its "
                f"lease of {lease_s:g} s; what runs in another container, or as another user, is never ended for you: "
                "give this worker a --state of its own then.",
            )
        sleep(0.02)
