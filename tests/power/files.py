"""What the tests of this folder know about the embedded log. Nothing else here knows an option or a file of it."""

from __future__ import annotations

from typing import Any

from tailrace.log.options import LogOptions

POLICIES = ("interval", "commit")
DURABLE = "commit"
"""The policy under which no commit that has returned is ever lost."""
COMMITS = "log/log.sqlite-wal"
"""The file whose sync makes durable all commits before it, whatever the policy."""


def log_options(policy: Any) -> LogOptions:
    """Options of a process that uses the log."""
    chosen: Any = policy or DURABLE
    return LogOptions(fsync=chosen, fsync_interval_s=0.05)
