"""Lines for whoever looks on: on a terminal one that is written over, else one now and then."""

from __future__ import annotations

import sys
import time

_CLEAR = "\r\x1b[K"
_EVERY_S, _EVERY_LASTING_S = 0.2, 10.0


class Console:
    """Standard output, and the line at its end that says how far things are."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._shown = False
        self._told_s = time.monotonic()

    def title(self, words: str) -> None:
        """Begin a part."""
        self.say(f"\n── {words} ──\n")

    def say(self, line: str = "") -> None:
        """A line that stays."""
        print(f"{self._cleared()}{line}", flush=True)
        self._told_s = time.monotonic()

    def progress(self, line: str) -> None:
        """How far things are. Call it as often as you like."""
        now_s = time.monotonic()
        if now_s - self._told_s < (_EVERY_S if self._terminal else _EVERY_LASTING_S):
            return
        if self._terminal:
            print(f"{_CLEAR}   {line}", end="", flush=True)
            self._shown = True
        else:
            print(f"   {line}", flush=True)
        self._told_s = now_s

    def _cleared(self) -> str:
        shown, self._shown = self._shown, False
        return _CLEAR if shown else ""
