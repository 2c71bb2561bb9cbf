"""What a worker logs of its partitions: notices about their stored state, and why they wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from tailrace.core.engine.task import Task
from tailrace.core.errors import StateUnavailableError, TailraceError
from tailrace.core.suggestions import did_you_mean

_log = logging.getLogger("tailrace.worker")

_REASON_AGAIN_S = 60.0
"""How often the reason is logged for which partitions wait."""


class StateNotices:
    """Logs the notices about the stored state of tasks, most of it once, as it is the same for every task.

    ``dropped`` are the actors and collections whose state is to be deleted.
    """

    def __init__(self, dropped: Collection[str]) -> None:
        self._dropped = dropped
        self._noticed: set[str] = set()

    def look(self, task: Task, about: dict[str, object]) -> None:
        """Log it for a task that was restored. ``about`` goes with each line."""
        stored, dropped = task.stored, self._dropped
        if kept := [name for name in stored.orphans if name not in dropped]:
            _log.info("state that is no longer declared is kept", extra={**about, "kept": kept})
        for notice in stored.notices:
            if notice not in self._noticed:
                self._noticed.add(notice)
                _log.warning("%s", notice, extra=about)
        if unknown := sorted(set(dropped).difference(stored.orphans)):
            # No error: it has been dropped where this is a restart.
            meant = " ".join(filter(None, (did_you_mean(name, stored.orphans) for name in unknown)))
            _log.warning(
                "the state to drop does not exist, or was dropped before%s",
                f". {meant}" if meant else "",
                extra={**about, "drop": unknown, "undeclared": list(stored.orphans)},
            )


class WaitNotices:
    """Logs why partitions wait: each reason in full once in a while, and once for each partition."""

    def __init__(self) -> None:
        self._told_until_s: dict[str, float] = {}
        """By the reason for which partitions wait, and by partition and reason: until when it is not logged again."""

    def look(self, partition: int, error: TailraceError, about: dict[str, object]) -> None:
        """Log it for a partition that has to wait. ``about`` goes with the line."""
        reason, now_s = str(error), time.monotonic()
        new = [key for key in (reason, f"{partition} {reason}") if now_s >= self._told_until_s.get(key, 0.0)]
        if new:
            self._told_until_s.update(dict.fromkeys(new, now_s + _REASON_AGAIN_S))
            told = f": {reason}" if reason in new else " for the same reason"
            _log.warning("a partition waits%s", told, extra=about)


def log_departure(error: TailraceError, about: dict[str, object]) -> None:
    """Log why a partition that was given back has not committed, or has not written its state folder. ``about`` goes with the line."""
    if isinstance(error, StateUnavailableError):
        said = "a partition left without writing its state folder; its next owner restores it from the log"
    else:
        said = "a partition left without a commit"
    _log.warning("%s: %s", said, error, extra=about)
