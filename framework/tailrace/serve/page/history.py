"""What ``tailrace replay`` writes: the history of a key, or how a replay compares. By that command, in a process of its own.

A replay calls the handlers of the app, and may take long: one runs at a time, for a limited time, and can be killed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.serve.unanswered import FAILED, NOT_YET, Unanswered

_PATIENCE_S: Final = 60.0
_LINES: Final = 400
DIFFERENCES: Final = "differences: "
"""The line of a comparison begins so that says how many there are."""
_LONGEST: Final = 2_000
"""Characters of a line."""


class Trace(NamedTuple):
    """The last lines of a trace."""

    lines: list[str]
    left_out: int
    """Lines before them."""


class Replays:
    """Replays of an app. ``app`` is its reference, ``log`` the place of its log."""

    def __init__(self, app: str, log: Path | str) -> None:
        self._app, self._log = app, str(log)
        self._running = threading.Lock()

    def trace(self, key: str, partition: int) -> Trace:
        """The trace of a key. Waits for it. Raises Unanswered."""
        return self._alone(f"--trace={key}", f"--partition={partition}")

    def compared(self, state: str) -> list[str]:
        """What a comparison of all partitions has found. Waits for it. Raises Unanswered."""
        return self._alone("--compare", f"--state={state}").lines

    def _alone(self, *options: str) -> Trace:
        if not self._running.acquire(blocking=False):
            raise Unanswered("another replay runs", status=NOT_YET, hint="Ask again later.")
        try:
            return self._replay(options)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the key
            raise Unanswered(f"the replay cannot be started: {error}", status=FAILED) from None
        finally:
            self._running.release()

    def _replay(self, options: Sequence[str]) -> Trace:
        command = [sys.executable, "-m", "tailrace", "replay", self._app, f"--log={self._log}", *options]
        with subprocess.Popen(  # noqa: S603  # this program; the key is one argument, and no shell reads it
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            limit = threading.Timer(_PATIENCE_S, process.kill)
            limit.start()
            try:
                kept, count = deque[str](maxlen=_LINES), 0
                while line := process.stdout.readline(_LONGEST):
                    kept.append(line.rstrip("\n"))
                    count += 1
                code = process.wait()
            finally:
                limit.cancel()
                process.kill()
        if code == -signal.SIGKILL:
            raise Unanswered(
                f"the replay took longer than {_PATIENCE_S:.0f} s and was ended",
                status=FAILED,
                hint="Run tailrace replay on the command line.",
            )
        if code and not any(line.startswith(DIFFERENCES) for line in kept):
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed"
            raise Unanswered(f"the replay {how}: {' '.join(kept)[-_LONGEST:]}", status=FAILED)
        return Trace([*kept], count - len(kept))
