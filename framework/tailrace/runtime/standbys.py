"""Standbys: warm copies of the state of tasks that other processes own, so that a task that moves here is restored from a short tail.

Theory. A standby is the store that the task itself would have here, in the same folder, filled from the committed changelog. So its
promotion is an ordinary restore. It must be closed before the task is given to the worker (``assigned``).

    state      what it does                                                       ends when
    checking   a thread looks whether the store is of this log's history          there is an answer
    filling    applies the changelog up to the last cut that was found, as a       that cut is applied
               restore does: the store names this cut, as its rows run ahead
    following  applies whole commits: rows and cut together                        it is released

- *It only reads.* It writes nothing to the log and runs no handler. It does not decode rows, so a process can follow the state of
  another version of the app.
- *It yields to the tasks.* ``look`` works for a slice, and then leaves the process at least three times as long to the tasks.
  What may wait for brokers is done in a thread, one such thing at a time.
- *Its errors never stop the service.* The standby is closed, a warning gives the reason, and it is opened again after a pause.
- *An upgrade* of the app ends a standby: its changelog is not the state any more (StateMovedError).
- *Deletions and history.* A store that is too old, or of another history, is emptied and filled again, as in a restore. While a
  standby follows, it notes the time now and then.

A state that is no longer a standby's stays on disk. A later restore or standby continues from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from typing import Final, NamedTuple

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import TailraceError
from tailrace.core.records import InputRecord
from tailrace.core.storage import Store
from tailrace.log.interface import LiveReader, ServiceLog
from tailrace.log.tasks import Tasks
from tailrace.log.threads import in_thread
from tailrace.runtime.clocks import Clock
from tailrace.runtime.companions import Companion
from tailrace.runtime.restore import Restore, finished
from tailrace.runtime.standby_placement import placement
from tailrace.state.store_cut import StoreCut

_log = logging.getLogger("tailrace.standbys")
_THREAD: Final = "tailrace-standby"

_SLICE_S: Final = 0.03
_SHARE: Final = 4
"""Standbys work for at most one part in so many of the time."""
_BATCH: Final = 1_000
_UNENDED: Final = 100_000
"""Records that may wait in memory for the end of their commit. With more, the standby is filled again as at its start."""
_PLACE_S: Final = 3.0
"""Time between two looks at who owns which task."""
_TELL_S: Final = 60.0
_RETRY_S: Final = 1.0
_RETRY_MOST_S: Final = 60.0
_LEAVE_S: Final = 2.0
"""How long ``close`` waits for a thread."""


class _Ground(NamedTuple):
    """The result of a check."""

    held: StoreCut
    """What the store says of itself; it is of this history, and not too old."""
    toward: InputRecord | None
    """The record of the last cut in the changelog, if it is not in the store."""


class Standby:
    """The copy of one task's state. ``restore`` has its store, and applies the changelog to it."""

    def __init__(self, restore: Restore, reader: LiveReader) -> None:
        self.number = restore.partition
        self.applied = 0
        """Records of the changelog applied since it was opened."""
        self.at_end = False
        """Whether it has been at the end of the changelog."""
        self._restore = restore
        self._reader = reader
        self._reads = False
        self._pending: list[InputRecord] = []
        """Records of a commit whose cut has not been read."""
        self._kept: StoreCut | None = None
        """The store's cut."""
        self._at_end_ms = 0
        """When it was last at the end of the changelog."""
        self._toward: InputRecord | None = None
        self._asked: Future[_Ground] | None = in_thread(_THREAD, self._check)

    @property
    def behind(self) -> int | None:
        """The number of offsets to read; None if it is not known yet."""
        return self._reader.behind(*self._restore.changelog) if self._reads else None

    @property
    def whole(self) -> StoreCut | None:
        """The cut of the store while it holds whole commits and nothing else; None while it is checked or filled."""
        return self._kept if self._reads and self._toward is None else None

    def hears_end(self) -> bool:
        """Whether the log says at present that nothing is behind what was applied. Waits for no answer."""
        return not self._pending and self.behind == 0 and self._reader.fetch(*self._restore.changelog, 0).idle

    @property
    def checking(self) -> bool:
        """Whether a thread is at work for it."""
        return self._asked is not None

    def step(self) -> bool:
        """Apply one batch; whether there was anything to do."""
        if self._asked is not None:
            if not self._asked.done():
                return False
            self._begin(self._asked.result())
        if self._restore.is_replaced():
            self._check_again()
            return False
        if not self.behind:
            if self.behind == 0:
                self._note_end()
            return False
        now_ms = self._restore.clock()
        if self._restore.may_have_missed(self._at_end_ms, now_ms):
            self._check_again()  # which empties it
            return False
        topic, partition = self._restore.changelog
        fetched = self._reader.fetch(topic, partition, _BATCH)
        self._pending += fetched.records
        if self._toward is not None:
            self._fill(self._toward)
        self._follow(fetched.next_offset)
        if len(self._pending) > _UNENDED:
            self._check_again()
        return True

    def close(self) -> None:
        """Stop, and close the store."""
        asked, self._asked = self._asked, None
        self._forget()
        try:
            self._restore.store.close()
        finally:
            if asked is not None:
                wait((asked,), _LEAVE_S)  # it ends at its next access to the store

    # --- checking

    def _check(self) -> _Ground:
        restore = self._restore
        now_ms = restore.clock()
        held = finished(restore.held(restore.end(), now_ms))
        toward = restore.last_cut()
        is_behind = toward is not None and toward.offset >= held.changelog_position
        if is_behind and restore.may_have_missed(held.at_end_ms, now_ms):
            held = finished(restore.emptied(now_ms))
        return _Ground(held, toward if is_behind else None)

    def _check_again(self) -> None:
        self._forget()
        self._asked = in_thread(_THREAD, self._check)

    def _begin(self, ground: _Ground) -> None:
        self._asked, self._pending = None, []
        self._kept, self._at_end_ms, self._toward = ground.held, ground.held.at_end_ms, ground.toward
        self._reader.seek(*self._restore.changelog, ground.held.changelog_position)
        self._reads = True

    def _forget(self) -> None:
        if self._reads:
            self._reader.forget(*self._restore.changelog)
        self._reads = False

    # --- applying

    def _fill(self, toward: InputRecord) -> None:
        """Apply what was read up to the last cut that was found, at once: nothing is waited for."""
        count = sum(one.offset <= toward.offset for one in self._pending)
        is_there = count < len(self._pending) or (count > 0 and self._pending[-1].offset == toward.offset)
        self._apply(count, None if is_there else toward.value)
        if is_there:
            self._toward = None

    def _follow(self, next_offset: int) -> None:
        """Apply the whole commits among what was read."""
        if self._toward is None:
            self._apply(self._restore.count_whole(self._pending), None)
        assert self._kept is not None
        if not self._pending and next_offset > self._kept.changelog_position:
            # Offsets without a record are passed, so that a restore from here has nothing to read.
            self._keep(next_offset)

    def _apply(self, count: int, toward: bytes | None) -> None:
        records, self._pending = self._pending[:count], self._pending[count:]
        if not records:
            return
        assert self._kept is not None
        held = msgspec.structs.replace(self._kept, at_end_ms=self._at_end_ms)
        self._kept = self._restore.apply(records, held, records[-1].offset + 1, toward)
        self.applied += len(records)

    def _note_end(self) -> None:
        if self._pending:
            return
        assert self._kept is not None
        self._at_end_ms = self._restore.clock()
        if abs(self._at_end_ms - self._kept.at_end_ms) > self._restore.settings.deletions_kept_ms // 24:
            self._keep(self._kept.changelog_position)
        if not self.at_end:
            self.at_end = True
            extra = {"app": self._restore.plan.app, "partition": self.number, "applied": self.applied}
            _log.info("a standby has the state of a task", extra=extra)

    def _keep(self, position: int) -> None:
        assert self._kept is not None
        self._kept = msgspec.structs.replace(
            self._kept, changelog_position=position, at_end_ms=self._at_end_ms
        )
        self._restore.store.write({}, self._kept.encode())


class Standbys(Companion):
    """The standbys of a process. ``owners`` gives the member id of the owner of each task that has one."""

    name = "keeping standbys"
    essential = True  # a task must not begin while a standby has its store open

    def __init__(
        self,
        plan: Plan,
        log: ServiceLog,
        count: int,
        tasks: Tasks,
        *,
        open_state: Callable[[int], Store],
        owners: Callable[[], dict[int, str]],
        clock: Clock,
    ) -> None:
        self._plan = plan
        self._log = log
        self._count = count
        self._open_state = open_state
        self._owners = owners
        self._tasks = tasks
        self._clock = clock
        self._reader: LiveReader | None = None
        self._wanted: list[int] = []
        self._open: dict[int, Standby] = {}
        self._asked: Future[dict[int, str]] | None = None
        self._place_at_s = self._next_s = self._told_s = 0.0
        self._retry: dict[int, tuple[float, float]] = {}
        """By task: when it is opened again, and the pause after the next failure."""

    def look(self) -> None:
        """Work for a slice, if it is time."""
        begun_s = time.monotonic()
        if begun_s < self._next_s:
            return
        try:
            self._look_at_group(begun_s)
            self._open_next(begun_s)
            for standby in [*self._open.values()]:
                self._work(standby, begun_s + _SLICE_S)
            self._tell(begun_s)
        finally:
            now_s = time.monotonic()
            self._next_s = now_s + (now_s - begun_s) * (_SHARE - 1)

    def assigned(self, numbers: Collection[int], /) -> None:
        """Close the standbys of tasks that come to this process."""
        for number in numbers:
            if (standby := self._open.get(number)) is not None:
                _log.info(
                    "a standby becomes a task",
                    extra={**self._of(number), "behind": standby.behind, "applied": standby.applied},
                )
                self._close(standby)
        self._wanted = [number for number in self._wanted if number not in numbers]

    def close(self) -> None:
        """Close all."""
        self._wanted = []
        for standby in [*self._open.values()]:
            self._close(standby)
        if self._asked is not None:
            wait((self._asked,), _LEAVE_S)
        if self._reader is not None:
            self._reader.close()

    @property
    def behind(self) -> dict[int, int | None]:
        """By standby that is open, the number of offsets to read; None: it is being checked."""
        return {one.number: one.behind for one in self._open.values()}

    def _look_at_group(self, now_s: float) -> None:
        if self._asked is None:
            if now_s >= self._place_at_s:
                self._place_at_s = now_s + _PLACE_S
                self._asked = in_thread(_THREAD, self._owners)
        elif self._asked.done():
            answer, self._asked = self._asked, None
            try:
                self._place(answer.result())
            except TailraceError as error:
                _log.warning(
                    "it is not known which standbys to keep: %s", error, extra={"app": self._plan.app}
                )

    def _place(self, owners: dict[int, str]) -> None:
        """Keep the standbys that are this process's by now, and no others."""
        me = self._tasks.member_id
        if not me or len(owners) < self._plan.partitions:
            return
        members: dict[str, list[int]] = {me: [*self._tasks.owned]}
        for number, member in owners.items():
            if number not in self._tasks.owned and member != me:
                members.setdefault(member, []).append(number)
        placed = placement(members, self._count)
        wanted = [number for number, standbys in placed.items() if me in standbys]
        if sorted(wanted) == sorted(self._wanted):
            return
        self._wanted = wanted
        self._retry = {number: one for number, one in self._retry.items() if number in wanted}
        for number in [*self._open]:
            if number not in wanted:
                self._close(self._open[number])
        _log.info("this process keeps standbys", extra={"app": self._plan.app, "partitions": sorted(wanted)})

    def _open_next(self, now_s: float) -> None:
        """Open one that is missing, if no other is being checked."""
        if any(one.checking for one in self._open.values()):
            return
        for number in self._wanted:
            if number not in self._open and now_s >= self._retry.get(number, (0.0, 0.0))[0]:
                try:
                    if self._reader is None:
                        self._reader = self._log.live_reader()
                    restore = Restore(
                        self._plan, number, self._log, self._reader, self._open_state(number), self._clock
                    )
                    self._open[number] = Standby(restore, self._reader)
                except Exception as error:  # noqa: BLE001  # a standby never stops the service
                    self._defer(number, error)
                return

    def _work(self, standby: Standby, until_s: float) -> None:
        try:
            while time.monotonic() < until_s and standby.step():
                pass
        except Exception as error:  # noqa: BLE001  # a standby never stops the service
            self._close(standby)
            self._defer(standby.number, error)
            return
        if standby.at_end:
            self._retry.pop(standby.number, None)

    def _defer(self, number: int, error: Exception) -> None:
        _, pause_s = self._retry.get(number, (0.0, _RETRY_S))
        self._retry[number] = time.monotonic() + pause_s, min(2 * pause_s, _RETRY_MOST_S)
        _log.warning(
            "a standby waits: %s",
            error if isinstance(error, TailraceError) else repr(error),
            extra={**self._of(number), "retry_ms": int(pause_s * 1_000)},
        )

    def _close(self, standby: Standby) -> None:
        self._open.pop(standby.number, None)
        try:
            standby.close()
        except Exception as error:  # noqa: BLE001  # a standby never stops the service
            _log.warning("closing a standby: %s", error, extra=self._of(standby.number))

    def _tell(self, now_s: float) -> None:
        if self._open and now_s - self._told_s >= _TELL_S:
            self._told_s = now_s
            behind = {str(number): count for number, count in self.behind.items()}
            _log.info("standbys", extra={"app": self._plan.app, "behind": behind})

    def _of(self, number: int) -> dict[str, object]:
        return {"app": self._plan.app, "partition": number}
