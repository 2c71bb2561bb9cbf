"""The error with which a process of an app has ended last, noted in the topic ``<app>.last-failure``.

A commit cannot note it, as what failed is not committed. So the process appends it when its worker has left; the topic is created then, and
keeps the last record. A process that is killed notes nothing, nor does one that cannot reach the log. A failure is over
when its task has committed again; of one that names no task, when all have.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from tailrace.core.errors import (
    FencedError,
    LogUnavailableError,
    ReplacedVersionError,
    TailraceError,
    TaskOwnedError,
)
from tailrace.core.names import last_failure_of
from tailrace.core.records import InputRecord, Output
from tailrace.history.reading.stretches import last, scan
from tailrace.log.interface import Log, StoredLog, TopicSettings

_log = logging.getLogger("tailrace.service")
_NOT_NOTED: Final = (FencedError, ReplacedVersionError, TaskOwnedError, LogUnavailableError)
"""Others run the app, and it has not failed; or nothing can be noted."""
_LONGEST: Final = 1_000


class LastFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a process of an app has ended: its place as far as it is known, and the error in one line."""

    at_ms: int
    error: str
    partition: int | None = None
    actor: str | None = None
    handler: str | None = None
    timer: str | None = None
    topic: str | None = None
    offset: int | None = None
    key: str | None = None

    @property
    def place(self) -> str:
        """The place in words; empty if it is not known."""
        names = ("partition", "actor", "handler", "timer", "topic", "offset", "key")
        return ", ".join(f"{name} {value}" for name in names if (value := getattr(self, name)) is not None)


_last_failure = msgspec.json.Decoder(LastFailure)


def note_failure(log: StoredLog, app: str, error: Exception) -> None:
    """Note why this process ends. If that is not possible, it is logged."""
    if isinstance(error, _NOT_NOTED):
        return
    try:
        what = error.what if isinstance(error, TailraceError) else f"{type(error).__name__}: {error}"
        key = getattr(error, "key", None)
        names = ("partition", "actor", "handler", "timer", "topic", "offset")
        found = LastFailure(
            time.time_ns() // 1_000_000,
            " ".join(what.split())[:_LONGEST],
            key=None if key is None else str(key)[:_LONGEST],
            **{name: getattr(error, name, None) for name in names},
        )
        topic = last_failure_of(app)
        log.create_topic(topic, TopicSettings(1, compacted=True))
        log.append_all([Output(topic, b"last", msgspec.json.encode(found), found.at_ms)], 0)
    except Exception as why:  # noqa: BLE001  # the failure itself is to be raised
        _log.warning("`tailrace status` will not show this failure: %s", why, extra={"app": app})


def last_failure(log: Log, app: str, commits: Iterable[tuple[int, int | None]]) -> LastFailure | None:
    """The last failure that is not over. ``commits``: the tasks, each with the time of its last commit."""
    topic = last_failure_of(app)
    record = last(log, topic, 0) if topic in log.topics() else None
    if (found := _failure_in(record)) is None:
        return None
    concerned = [at_ms or 0 for number, at_ms in commits if found.partition in (None, number)]
    return None if concerned and min(concerned) > found.at_ms else found


def failures_end(log: Log, app: str) -> int:
    """Where ``failures_since`` finds those that are noted from now on."""
    topic = last_failure_of(app)
    return log.end_offset(topic, 0) if topic in log.topics() else 0


def failures_since(log: Log, app: str, start: int) -> Iterator[LastFailure]:
    """The failures noted at or after an offset."""
    topic = last_failure_of(app)
    yield from filter(None, map(_failure_in, scan(log, topic, 0, start) if topic in log.topics() else ()))


def _failure_in(record: InputRecord | None) -> LastFailure | None:
    """None: there is none, or the record is of another program."""
    try:
        return None if record is None else _last_failure.decode(record.value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
