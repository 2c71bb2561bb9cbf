"""Signals that stop a process: SIGTERM or one Ctrl-C, cleanly; a second Ctrl-C, at once. Also: blocking them for children."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

INTERRUPTED = 130
"""The exit code of a process that stopped at once."""


@contextmanager
def stop_signals(
    stop: Callable[[], None], at_once: Callable[[], None] | None = None, *, interrupts: bool = True
) -> Generator[None, None, None]:
    """Inside the block, SIGTERM and the first Ctrl-C call ``stop``; a second Ctrl-C calls ``at_once`` and ends the process.

    Without ``interrupts`` only SIGTERM does, and after the block it is ignored: the process leaves already. A SIGTERM that was
    blocked since the start of the process arrives now. Both are called from a signal handler. Stopping at once is safe: the next start repeats the work that was not committed.
    """
    times = 0

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal times
        if number == signal.SIGINT:
            times += 1
            if times > 1:
                if at_once is not None:
                    at_once()
                os._exit(INTERRUPTED)
        stop()

    handled = (signal.SIGTERM, signal.SIGINT) if interrupts else (signal.SIGTERM,)
    before = {number: signal.signal(number, handle) for number in handled}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if interrupts else signal.SIG_IGN)


@contextmanager
def closing_on_sigterm() -> Generator[None]:
    """Inside the block, SIGTERM ends the process by an exception, as Ctrl-C does, so that what is open is closed first."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def held_back(*numbers: signal.Signals) -> Generator[None]:
    """Block these signals (default: Ctrl-C) for processes started inside the block, from their first instruction on.

    The children inherit the blocked signals, and may unblock them when they are ready to handle them. The parent receives
    pending signals at the end of the block, so none is lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread only
        return
    # Otherwise it would be started inside the block, and its start unblocks the signals.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers or {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
