"""``tailrace`` with the given arguments, in a process that kills itself after the first call of a function of a move."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tailrace.cli.main import main
from tailrace.history.moving import copying, moving

STEPS = {
    "arriving": (moving, "note_move"),
    "reading": (copying.TopicCopy, "_read"),
    "leaving": (moving.Moving, "_leave"),
    "state": (copying, "_write"),
    "watermarks": (moving.Moving, "_publish"),
    "positions": (moving.Moving, "_commit_positions"),
    "ends": (moving.Moving, "_compare_ends"),
}


def kill_after(step: str) -> None:
    owner, name = STEPS[step]
    call = getattr(owner, name)

    def killing(*arguments: Any, **options: Any) -> None:
        call(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, killing)


if __name__ == "__main__":
    kill_after(sys.argv.pop(1))
    main()
