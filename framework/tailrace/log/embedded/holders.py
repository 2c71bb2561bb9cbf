"""Which process holds a lock: told in the lock's file, so that another can find it, look at it, and end it.

A process number alone says little: numbers are used again, begin anew with the machine, and mean something else in
another container. So a holder also says when its process was started, in which life of the machine, and in which
namespace of process numbers. Whoever cannot make sure of all of it leaves the process alone.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from select import poll
from typing import NamedTuple

_DYING_MS = 10_000


class Holder(NamedTuple):
    """A process, told apart from all others there ever were on this machine."""

    boot: bytes
    """The life of the machine that it is of: 36 bytes."""
    pid: int
    """0: nobody."""
    started: int
    """In the kernel's ticks since the machine's start."""
    namespace: int
    """Of process numbers: those of another namespace say nothing here."""


class Life(NamedTuple):
    """What the kernel says of a process now."""

    state: str
    ticks: int
    """Of processor time."""
    started: int

    @property
    def is_stopped(self) -> bool:
        """By a signal or a debugger: it does not run until somebody lets it go on."""
        return self.state in "Tt"


def myself() -> Holder:
    """This process."""
    life = _life(os.getpid())
    return Holder(boot(), os.getpid(), life.started if life else 0, _namespace())


def life_of(holder: Holder) -> Life | None:
    """What is known of a holder; None if it has ended, is this process, or cannot be told for sure."""
    if holder.pid in (0, os.getpid()) or holder.boot != boot() or holder.namespace != _namespace():
        return None
    life = _life(holder.pid)
    return life if life is not None and life.started == holder.started else None


def end(holder: Holder) -> bool:
    """End a holder's process and wait until it has ended; whether it has.

    Raises:
        PermissionError: It belongs to another user.
    """
    try:
        process = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return True
    try:
        # The descriptor is the process's for good; what it was opened for is looked at once more.
        if life_of(holder) is None:
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
        waiting = poll()
        waiting.register(process)
        return bool(waiting.poll(_DYING_MS))
    except ProcessLookupError:
        return True
    finally:
        os.close(process)


def boot() -> bytes:
    """The present life of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()[:36]
    except OSError:
        return bytes(36)


def _life(pid: int) -> Life | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may hold anything; what follows is numbered from the state, the third field.
    fields = line.rpartition(")")[2].split()
    return Life(fields[0], int(fields[11]) + int(fields[12]), int(fields[19]))


def _namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
