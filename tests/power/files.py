"""What the tests of this folder know about the files and options of the embedded log. Nothing else here knows a file name of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tailrace.log.embedded import EmbeddedLog, LogOptions
from tailrace.log.embedded.lock import LOCK

POLICIES = ("commit",)
DURABLE = "commit"
"""The policy under which no commit that has returned is ever lost."""
_BOOT_BYTES = 36


def log_options(policy: Any) -> LogOptions:
    """Options of a process that uses the log."""
    return LogOptions(fsync=policy, fsync_interval_s=0.05)


def seal(log: EmbeddedLog) -> None:
    """Let the next cleaning see everything."""
    log.roll()


def after_reboot(log: Path) -> None:
    """Change what a log remembers of the machine's last boot: a crash state is opened on a machine that was not booted."""
    path = log / LOCK
    if not path.exists():
        return
    with path.open("r+b") as file:
        if os.fstat(file.fileno()).st_size >= _BOOT_BYTES:
            file.write(b"another boot".ljust(_BOOT_BYTES, b"."))
