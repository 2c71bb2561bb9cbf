"""What the page of `tailrace dev` does beyond that of `tailrace serve`: it kills the worker, and replays. On loopback only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from tailrace.serve.page.history import DIFFERENCES, Replays
from tailrace.serve.unanswered import FAILED, Unanswered

_PATIENCE_S: Final = 30.0
EQUAL: Final = "0 bytes differ from the live run."
DIFFERENT: Final = (
    "the results differ. If the code has changed since the first event, this is what the new code would have done. If it has not, a handler "
    "uses something else than its event, its state and ctx."
)


class Note(msgspec.Struct, frozen=True):
    """What the session says of its worker."""

    worker: int | None
    """Its process number; None if it has failed."""
    trouble: str
    """Why code is not in use, or why there is no worker; empty: nothing is wrong."""
    state: str
    """The folder of its state."""


_decode = msgspec.json.Decoder(Note).decode


def write_note(file: Path, note: Note) -> None:
    """Replace the note."""
    made = file.with_suffix(".new")
    made.write_bytes(msgspec.json.encode(note))
    made.replace(file)


class Dev:
    """What a person can do to the session."""

    def __init__(self, file: Path, replays: Replays) -> None:
        self._file, self._replays = file, replays
        self.done = ""
        """What the last action has come to."""

    @property
    def note(self) -> Note:
        """What the session says of its worker now."""
        return _decode(self._file.read_bytes())

    def kill(self, owners: Callable[[], Collection[int]]) -> None:
        """Kill the worker with SIGKILL, and wait until another one owns all tasks, by ``owners``. Raises Unanswered."""
        before = self.note.worker
        if before is None:
            raise Unanswered("there is no worker: it has failed", status=FAILED)
        begun_s, owned = time.monotonic(), {*owners()}
        try:
            os.kill(before, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has just ended
        while time.monotonic() - begun_s < _PATIENCE_S:
            now = self.note.worker
            if now not in (None, before) and not owned & (own := {*owners()}) and 0 not in own:
                took_s = time.monotonic() - begun_s
                self.done = f"Process {before} was killed with SIGKILL. {took_s:.1f} s later process {now} has resumed from the last commit."
                return
            time.sleep(0.05)
        raise Unanswered(f"process {before} was killed, and no other has resumed", status=FAILED)

    def replay(self) -> None:
        """Replay all that the app has done, and compare. Raises Unanswered."""
        lines = self._replays.compared(self.note.state)
        said = EQUAL if f"{DIFFERENCES}none" in lines else DIFFERENT
        self.done = "\n".join((f"Replay: {said}", "", *lines))
