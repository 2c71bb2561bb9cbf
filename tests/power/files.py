"""What the tests of this folder know about the embedded log. Nothing else here knows an option or a file of it."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tailrace.log.options import LogOptions

POLICIES = ("interval", "commit")
DURABLE = "commit"
"""The policy under which no commit that has returned is ever lost."""
DAMAGED = ("log", "log", "state", "snapshots")
"""The folders whose files are corrupted, the log's twice as often."""
COMMITS = "log/log.sqlite-wal"
"""The file whose sync makes durable all commits before it, whatever the policy."""
PACKAGE = "tailrace.log.embedded."
ANOTHER_BOOT = b"another boot".ljust(36, b".")


def log_options(policy: Any) -> LogOptions:
    """Options of a process that uses the log."""
    chosen: Any = policy or DURABLE
    return LogOptions(fsync=chosen, fsync_interval_s=0.05)


@contextmanager
def after_reboot() -> Generator[None]:
    """Let the log believe that the machine was booted since it was written, as it is after a power cut."""
    known = [
        module for name, module in sys.modules.items() if name.startswith(PACKAGE) and hasattr(module, "boot")
    ]
    assert known
    patches = [patch.object(module, "boot", lambda: ANOTHER_BOOT) for module in known]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()
