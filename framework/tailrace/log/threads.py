"""Calls that may wait for brokers, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_R = TypeVar("_R")


def in_thread(name: str, call: Callable[[], _R]) -> Future[_R]:
    """Call something in a thread of its own, which does not keep the process from ending."""
    outcome = Future[_R]()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001  # raised where the result is asked for
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome
