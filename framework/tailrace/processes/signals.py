"""How a process is told to stop: SIGTERM or Ctrl-C once, in good order; Ctrl-C twice, at once. And who is not told."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

INTERRUPTED = 130
"""The exit code of a process that left at once."""


@contextmanager
def stop_signals(
    stop: Callable[[], None], at_once: Callable[[], None] | None = None
) -> Generator[None, None, None]:
    """While in here, the first SIGTERM or Ctrl-C calls ``stop``; a second Ctrl-C calls ``at_once`` and ends the process.

    Both are called from a signal handler, between any two steps of the main thread. What is not committed by then is
    done again by who starts next, so there is nothing that leaving at once could break.
    """
    interrupts = 0

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        if number == signal.SIGINT:
            interrupts += 1
            if interrupts > 1:
                if at_once is not None:
                    at_once()
                os._exit(INTERRUPTED)
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held_back(*numbers: signal.Signals) -> Generator[None]:
    """Processes started meanwhile do not hear these, or Ctrl-C, from their first instruction on: it is for their parent.

    They inherit that the signals are held back, and may let them through when they know what to do then. The parent hears
    them when the processes have been started: nothing is lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # it would not hear them anyway
        return
    # It would be started on the way otherwise, and let the signals through when it is.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers or {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
