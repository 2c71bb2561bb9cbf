"""Output of the demo: on a terminal a progress line that is overwritten, otherwise a line from time to time."""

from __future__ import annotations

import sys
import time

_CLEAR = "\r\x1b[K"
_EVERY_S, _EVERY_LASTING_S = 0.2, 10.0


class Console:
    """Standard output, with a progress line at its end."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._shown = False
        self._told_s = time.monotonic()

    def title(self, words: str) -> None:
        """Write the title of a part."""
        self.say(f"\n── {words} ──\n")

    def say(self, line: str = "") -> None:
        """Write a line that is not overwritten."""
        print(f"{self._cleared()}{line}", flush=True)
        self._told_s = time.monotonic()

    def progress(self, line: str) -> None:
        """Show the progress. Most calls are skipped, so it can be called often."""
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
