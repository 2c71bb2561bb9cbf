"""A task that follows its tape: its store stays open between rounds, so a round costs what has happened since the one before.

Theory. A ``Follower`` is a replay and its store. Each ``advance`` drives the task from where it stands to a later commit of the
same tape, by the one driver (``reading.driving``). Between two rounds nothing is open but the store: each round brings its own
log. These hold after each round:

    state      equals that of a whole rebuild up to the same commit
    ``taken``  has every row that was written since it was called last, with its value now, or None if it is gone
    a failure  the follower is of no more use: close it, and begin another at the last published snapshot

It may be given up at any moment, as nothing depends on it: what a round has made is durable when its snapshot is published.
``Followers`` keeps those of a rebuild's rounds: one is used only if the next round begins with the snapshot that the last one
has published, and by the same code.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Replay, Source
from tailrace.core.errors import UsageError
from tailrace.core.records import InputRecord
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.driving import TapeSink, drive_along_tape
from tailrace.history.reading.stretches import scan
from tailrace.history.reading.tape_records import tape_records
from tailrace.history.rebuilding.code_digest import changed
from tailrace.history.rebuilding.failures import Failed
from tailrace.history.rebuilding.job import Job
from tailrace.log.interface import TopicPartition
from tailrace.state import MemoryStore, RocksStore, StateIdentity, StateMemory

_AT_ONCE = 10_000


class Follower:
    """The task of one partition along its tape. ``make`` gives the replay, which begins with the rows in ``store``; its failures
    are decided by ``failed``.
    """

    def __init__(
        self,
        store: RocksStore | MemoryStore,
        failed: Failed,
        source: Source,
        make: Callable[[Source], Replay],
    ) -> None:
        self.store, self.failed = store, failed
        self._source = source
        self._written: set[bytes] = set()
        self._tape_offset: int | None = None
        """Of the last tape record that was read: the next round begins with it."""
        self.replay = make(self._read)

    def _read(self, name: str, start: int, stop: int) -> Sequence[InputRecord]:
        return self._source(name, start, stop)

    def advance(self, history: AppHistory, stop: int, sink: TapeSink, source: Source) -> bool:
        """Drive the task up to tape record ``stop`` (exclusive). The sink writes to the store, and notes what. Returns False if a
        limit has stopped it. Raises what ``drive_along_tape`` raises.
        """
        task = self.replay.task
        if stop < task.tape_number:
            raise UsageError(f"the task stands at tape record {task.tape_number}, behind {stop}")
        self._source = source
        tapes = takewhile(lambda one: one.number < stop, self._tapes(history))
        return drive_along_tape(self.replay, tapes, stop, sink)

    def _tapes(self, history: AppHistory) -> Iterator[tape.TapeRecord]:
        place = TopicPartition(history.plan.tape_topic, self.replay.task.partition)

        def noted() -> Iterator[InputRecord]:
            for record in scan(history.log, *place, self._tape_offset):
                self._tape_offset = record.offset
                yield record

        return tape_records(place, noted())

    def note(self, written: Iterable[bytes]) -> None:
        """Note rows that are written."""
        self._written.update(row for row in written if row[:1] == rows.STATE)

    def taken(self) -> Iterator[tuple[bytes, bytes | None]]:
        """The rows written since the last call, ascending, with their values now; None: it is gone."""
        names, self._written = sorted(self._written), set()
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            yield from zip(some, self.store.get_many(some), strict=True)

    def close(self) -> None:
        """Close the store."""
        self.store.close()


class _Stands(NamedTuple):
    snapshot: str
    code: dict[str, str]
    follower: Follower


class Followers:
    """Those of the partitions of an app, kept in one process, with their stores in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._memory = folder, StateMemory()
        self._kept: dict[int, _Stands] = {}

    def taken(self, job: Job, number: int) -> Follower | None:
        """The follower that stands at the base of a job, for its caller to use and to keep again. Another one is closed."""
        found = self._kept.pop(number, None)
        if found is None or (found.snapshot == job.base and not changed(found.code, job.code)):
            return None if found is None else found.follower
        found.follower.close()
        return None

    def store(self, job: Job, number: int, attempt: str) -> RocksStore | MemoryStore:
        """An empty store for a new follower."""
        if job.request.execution.store == "memory":
            return MemoryStore()
        folder = self._folder / f"{number}-{attempt}"
        return RocksStore(folder, StateIdentity(job.app, number), self._memory)

    def keep(self, job: Job, number: int, follower: Follower) -> None:
        """Keep a follower that stands at the end of a job."""
        self._kept[number] = _Stands(job.snapshot, job.code, follower)


_followers: dict[Path, Followers] = {}


def followers_in(folder: Path) -> Followers:
    """The followers of this process whose stores are in a folder. What a killed process has left there is removed."""
    if folder not in _followers:
        shutil.rmtree(folder, ignore_errors=True)
        _followers[folder] = Followers(folder)
    return _followers[folder]
