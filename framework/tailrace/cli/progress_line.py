"""How far a command has come: one line on a terminal, written over, and nothing where nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tailrace.processes.logs import CLEAR_LINE

_EVERY_S = 0.2


class ProgressLine:
    """The line, on standard error if that is a terminal and ``shown`` does not say otherwise; gone at the end of ``with``."""

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._begun_s = self._told_s = time.monotonic()

    def report(self, words: Callable[[float], str]) -> None:
        """Write the line anew, now and then; ``words`` are asked for with the seconds since it was begun."""
        now_s = time.monotonic()
        if not self._shown or now_s - self._told_s < _EVERY_S:
            return
        self._told_s = now_s
        self._write(words(now_s - self._begun_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._write("")

    def _write(self, line: str) -> None:
        sys.stderr.write(f"{CLEAR_LINE}{line}")
        sys.stderr.flush()
