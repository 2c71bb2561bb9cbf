"""A bounded run of one process: it stops when all is read and handled.

With ``--until-end`` that is all. With ``--end-of-input`` it then goes through the phases of the end of input. The messages of an
app, and the end of its input, move through all of its tasks together. So where tasks move between processes, the run must be the only process.
Several processes under a supervisor do the same, see ``supervisor``.
"""

from __future__ import annotations

import logging
import time

from tailrace.core.errors import TaskOwnedError, UsageError
from tailrace.log.tasks import TaskLog
from tailrace.runtime.companions import Companion
from tailrace.runtime.progress import last_phase

_log = logging.getLogger("tailrace.service")
_LOOK_S = 1.0
_ALONE_S = 60.0
"""For how long the run waits for tasks of processes that have died: longer than the default of session.timeout.ms."""


class BoundedRun(Companion):
    """Ends the phases of a bounded run."""

    name = "the bounded run"
    essential = True

    def __init__(self) -> None:
        self._alone_s = time.monotonic()

    def look(self) -> None:
        """Enter the next phase when the present one is over, or stop after the last one."""
        assert self.host is not None
        host, worker = self.host, self.host.worker
        is_alone = len(host.tasks.owned) == host.plan.partitions
        if is_alone:
            self._alone_s = time.monotonic()
        if not worker.quiet:
            return
        if not is_alone:
            if time.monotonic() - self._alone_s > _ALONE_S:
                raise _not_alone(host.plan.app)
        elif worker.phase == last_phase(host.plan, ends_input=host.options.end_of_input):
            worker.stop()
        else:
            worker.advance()


def await_alone(log: TaskLog, app: str) -> None:
    """Wait until no other process of the app runs. Joining would take tasks from a service that is to continue.
    Raises UsageError: there is one after a minute.
    """
    begun_s = time.monotonic()
    waits = False
    while True:
        try:
            with log.reserve(app, ()):
                return
        except TaskOwnedError:
            if time.monotonic() - begun_s > _ALONE_S:
                raise _not_alone(app) from None
        if not waits:
            waits = True
            _log.warning(
                "another process of the app runs, and a run to the end is for one process alone: this one waits for it",
                extra={"app": app, "wait_s": _ALONE_S},
            )
        time.sleep(_LOOK_S)


def _not_alone(app: str) -> UsageError:
    return UsageError(
        f"another process of {app!r} runs, and --until-end and --end-of-input are for one process alone",
        hint="Stop the other one, or run without the option.",
    )
