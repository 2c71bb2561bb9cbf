"""A thread that names a handler that runs for too long, and ends a process that has not left in time.

It reads what the worker's thread works on and changes nothing there. The worker does nothing for it, so that it costs an event
nothing. With ``sample_s`` it also adds up the time of each handler, as estimated by samples. It samples at least five times within the shorter of the two limits, and at least once a second. It works as long as the
handler lets other threads run, as all Python code does, ``time.sleep``, and what waits for a socket or a file.

Leaving has one limit, ``grace_s`` after the signal to stop, for all that it needs: the handler that runs, a last commit, the
log. A fifth of it before, at most a second, the process ends without a commit, which is safe at any moment (law 3): the next start
repeats what was not committed. C code that holds the interpreter lock stops this thread too. For that case, ``faulthandler`` has a
thread that does not need the lock, and ends the process half-way between. It is started by the signal. Python sees the signal when the C code checks for
signals, as ``re`` does. If it never does, only SIGKILL ends the process; a supervisor sends it.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final, Self, TypeAlias

from tailrace.core.engine.at_work import AtWork

_log = logging.getLogger("tailrace.handlers")

_LONGEST_PAUSE_S: Final = 1.0
_SAMPLES: Final = 5
"""Within a limit."""
STUCK_S: Final = 60.0
"""A process with a handler that has run for this long is not alive any more (``/livez``)."""
_FRAMES: Final = 8
"""Of the traceback: the innermost."""
_LONGEST_MARGIN_S: Final = 1.0
"""Before the end of the grace period, for the end of the process itself."""
GIVEN_UP: Final = 1
"""The exit code of a process that has not left in time."""


def margin_of(grace_s: float) -> float:
    """How long before the end of the grace period a process gives up, in seconds."""
    return min(_LONGEST_MARGIN_S, grace_s / _SAMPLES)


Stuck: TypeAlias = tuple[dict[str, object], float]
"""A handler: its fields in a log line, and its start by ``time.monotonic``, which the processes of a machine share."""


class HandlerWatch:
    """See the head of this file. A context manager around the whole life of the process; only one can be active at a time."""

    def __init__(
        self, app: str, warning_s: float, grace_s: float, sample_s: float = _LONGEST_PAUSE_S
    ) -> None:
        self._app = app
        self._warning_s = warning_s
        self._grace_s = grace_s
        self._sample_s = sample_s
        self.seconds: dict[str, float] = {}
        """By handler: the time between samples that have found it at work."""
        self._leave_by_s: float | None = None
        self._ended = threading.Event()
        self._at_work: Callable[[], AtWork | None] = lambda: None
        self._worker = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="tailrace-handlers", daemon=True)
        self._nothing = -1
        """File descriptor of the null device."""
        self._now: AtWork | None = None
        self._since_s = 0.0
        self._is_named = False
        self.stuck: Stuck | None = None
        """The handler that has run for the time of a warning, at most for ``STUCK_S``, until it returns."""
        self.on_stuck: Callable[[Stuck | None], None] = lambda _stuck: None
        """Called, in the thread of the watch, with what ``stuck`` is from now on."""

    def __enter__(self) -> Self:
        self._nothing = os.open(os.devnull, os.O_WRONLY)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        if self._leave_by_s is not None:
            faulthandler.cancel_dump_traceback_later()
        self._thread.join()
        self._returned(time.monotonic())  # the process has left before the next sample
        os.close(self._nothing)

    def begin(self, at_work: Callable[[], AtWork | None]) -> None:
        """Watch the handlers that the calling thread runs. ``at_work`` gives the one that runs now; it is called in another thread."""
        self._worker = threading.get_ident()
        self._at_work = at_work

    def leave(self) -> None:
        """The process is to leave: the grace period begins, unless it has. May be called from a signal handler: it takes no lock."""
        if self._leave_by_s is None and not self._ended.is_set():
            margin_s = margin_of(self._grace_s)
            self._leave_by_s = time.monotonic() + self._grace_s - margin_s
            # The traceback is not JSON, so it goes nowhere: ``_give_up`` and the signal have named the handler.
            faulthandler.dump_traceback_later(self._grace_s - margin_s / 2, exit=True, file=self._nothing)

    def _watch(self) -> None:
        pause_s = min(self._sample_s, self._warning_s / _SAMPLES, self._grace_s / _SAMPLES)
        now_s = time.monotonic()
        while not self._ended.wait(self._pause_s(pause_s)):
            before_s, now_s = now_s, time.monotonic()
            found = self._at_work()
            if found is not None:
                self.seconds[found.handler] = self.seconds.get(found.handler, 0.0) + now_s - before_s
            if found != self._now:
                self._returned(now_s)
                self._now, self._since_s, self._is_named = found, now_s, False
            elif found is not None:
                runs_s = now_s - self._since_s
                if self.stuck is None and runs_s >= min(self._warning_s, STUCK_S):
                    self.stuck = found.fields(), self._since_s
                    self.on_stuck(self.stuck)
                if not self._is_named and runs_s >= self._warning_s:
                    self._is_named = True
                    self._name(found, now_s)
            if self._leave_by_s is not None and now_s >= self._leave_by_s:
                self._give_up(found)

    def _pause_s(self, pause_s: float) -> float:
        left_s = pause_s if self._leave_by_s is None else self._leave_by_s - time.monotonic()
        return max(0.0, min(pause_s, left_s))

    def _name(self, found: AtWork, now_s: float) -> None:
        frame = sys._current_frames().get(self._worker)  # the documented way to see another thread's frames
        where = "".join(traceback.format_stack(frame, _FRAMES))
        _log.warning(
            "%s has run for %.1f s and has not returned",
            found,
            now_s - self._since_s,
            extra={"app": self._app, **found.fields(), "traceback": where},
        )

    def _returned(self, now_s: float) -> None:
        if self.stuck is not None:
            self.stuck = None
            self.on_stuck(None)
        if self._now is not None and self._is_named:
            _log.warning(
                "%s has returned after %.1f s",
                self._now,
                now_s - self._since_s,
                extra={"app": self._app, **self._now.fields()},
            )

    def _give_up(self, found: AtWork | None) -> None:
        try:
            _log.error(
                "%s, and the grace period is over (--grace, %g s): the process ends without a commit. The next start repeats what "
                "was not committed",
                "the service has not left" if found is None else f"{found} has not returned",
                self._grace_s,
                extra={"app": self._app, "exit_code": GIVEN_UP, **({} if found is None else found.fields())},
            )
        finally:
            os._exit(GIVEN_UP)
