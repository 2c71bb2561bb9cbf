"""The start of an app on Kafka: options that are refused, and the start from a snapshot, before its tasks run.

Theory of a start from a snapshot. The tasks of the app are in several processes, which come and go; ``history.snapshots.start_from_snapshot`` has the rules of one
task. Two rules are of all tasks together:

- *All tasks begin with the same snapshot.* Processes that start at different times would find different snapshots to be the latest, and
  nobody decides for all of them. So the snapshot must be named: ``URI#SNAPSHOT``.
- *No task takes a record before all have begun*: the messages in flight, which come with the snapshot, are before those that tasks send.
  So a process begins the tasks that the group gives it, and waits until the log has the beginnings of all tasks. Only then its worker
  runs. If a process dies here, the group gives its tasks to others, which begin them.

A process that starts later finds that all have begun, and starts at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from contextlib import closing

from tailrace.core.durations import spelled
from tailrace.core.errors import FencedError, LogUnavailableError, OptionError
from tailrace.core.storage import Store
from tailrace.runtime.service import ServiceOptions

_log = logging.getLogger("tailrace.starting")
_LOOK_S = 0.5
"""Between two looks whether the tasks of other processes have begun."""
_NAP_S = 0.02


def check_snapshot_named(options: ServiceOptions) -> None:
    """Refuse a snapshot that is not named.

    Raises:
        OptionError: It is the latest one of a place.
    """
    if options.from_snapshot and not options.from_snapshot.partition("#")[2]:
        raise OptionError(
            "on Kafka --from-snapshot needs the name or id of a snapshot: processes that start at different times would find different "
            "ones to be the latest",
            hint=f"Name it: {options.from_snapshot}#SNAPSHOT. `tailrace snapshot list` shows what is there.",
        )


def check_commit_interval(interval_ms: int, timeout_ms: int) -> None:
    """Refuse an interval of commits for which transactions would be open too long: brokers abort them, and nothing would ever be committed.

    Raises:
        OptionError: It is longer than half of the time-out of a transaction.
    """
    if interval_ms > timeout_ms // 2 > 0:
        raise OptionError(
            f"--commit-interval is {spelled(interval_ms)}, and Kafka aborts a transaction that is open for {spelled(timeout_ms)}",
            hint="Commit at least twice in that time; or set TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS to twice the interval or more, "
            "within the brokers' transaction.max.timeout.ms (15 minutes by default).",
        )


def begin_all(
    begin: Callable[[int, Store], None],
    all_begun: Callable[[], bool],
    owned: Callable[[], Collection[int]],
    open_store: Callable[[int], Store],
    steer: Callable[[], None],
    is_stopping: Callable[[], bool],
) -> None:
    """Begin the tasks that this process owns, until all tasks have begun, or it is to stop.

    Raises:
        SnapshotError, SnapshotMismatchError: The snapshot does not fit the app, its history, or this log.
    """
    begun: set[int] = set()
    look_at_s = 0.0
    while not is_stopping():
        steer()
        for number in sorted(set(owned()) - begun):
            try:
                with closing(open_store(number)) as store:
                    begin(number, store)
            except (FencedError, LogUnavailableError) as error:
                _log.warning("a task does not begin yet: %s", error, extra={"partition": number})
                time.sleep(_LOOK_S)
                break
            begun.add(number)
            look_at_s = 0.0
        if time.monotonic() >= look_at_s:
            if all_begun():
                return
            look_at_s = time.monotonic() + _LOOK_S
        time.sleep(_NAP_S)
