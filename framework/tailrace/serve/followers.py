"""Follows the changelog and the tables of an app, and answers questions from what it has read.

Each partition has a copy of the state, as a standby has it (``runtime.standbys``): the rows of whole commits. So an answer is of one
commit, however many rows that has. A partition of a table has a copy of its last records (``tables``).

    state      ends when                                           a question gets
    opening    the topics of the app are there                     503, and what is missing
    filling    all is applied that was committed at the start      503, and how far it is
    following  the log has lost rows, or an error                  the answer, with its age
    waiting    a pause is over; then it is opened again            503, and the error

A log that does not answer is no reason to stop: the answers become older, and say so. All calls come from one thread, as a store has
to be used by one. What may wait for brokers is done in other threads, by the standby and when a partition is opened.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, Final, TypeAlias

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Topic
from tailrace.core.errors import LogUnavailableError, TailraceError
from tailrace.core.storage import Store
from tailrace.history.reading.app_history import AppHistory
from tailrace.log.interface import LiveReader, StoredLog
from tailrace.log.threads import in_thread
from tailrace.runtime.restore import Restore
from tailrace.runtime.standbys import Standby
from tailrace.runtime.worker import system_clock
from tailrace.serve.answers import Answer, Answering, Question
from tailrace.serve.tables import TableRestore, TableRows
from tailrace.serve.unanswered import ELSEWHERE, FAILED, NOT_FOUND, NOT_YET, Unanswered
from tailrace.state.store_cut import StoreCut

_log = logging.getLogger("tailrace.serve")
_THREAD: Final = "tailrace-follower"
OpenState: TypeAlias = Callable[[Plan, int, str], Store]
"""Opens the store of a partition, by its number, of the state or of the table of a name."""
_RETRY_S: Final = 0.5
_RETRY_MOST_S: Final = 30.0


class PartitionReport(msgspec.Struct, frozen=True):
    """The state of one partition that is followed."""

    partition: int
    offset: int | None
    """The position in the changelog. None: it does not answer yet."""
    age_ms: int | None
    trouble: str
    """Why it does not answer, or why its answers become older. Empty: nothing is wrong."""
    table: str = ""
    """Of which table the partition is. Empty: of the state."""


class Follower:
    """Follows one partition of the state, or of ``table``. ``open_state`` gives the empty or earlier store of this follower, for the
    changelog that a plan was located at, or for the table of a name.
    """

    def __init__(
        self,
        plan: Plan,
        number: int,
        log: StoredLog,
        reader: LiveReader,
        open_state: OpenState,
        table: Topic[Any, Any] | None = None,
    ) -> None:
        self.number, self.table = number, table
        self.name = "" if table is None else table.name
        self._plan, self._log, self._reader, self._open_state = plan, log, reader, open_state
        self._opened: Future[AppHistory] | None = None
        self._standby: Standby | None = None
        self._answering: Answering | TableRows | None = None
        self._trouble = "it is being opened"
        self._retry_at_s = 0.0
        self._pause_s = _RETRY_S
        self._at_end_s: float | None = None
        """When the log last had nothing behind what is applied. Monotonic."""

    def step(self) -> bool:
        """Work for some milliseconds. Returns whether there was anything to do."""
        try:
            if self._standby is None:
                self._open()
                return False
            worked = self._standby.step()
            standby = self._standby
            if standby.whole is None:
                self._at_end_s = None
            elif standby.hears_end() or (worked and standby.behind == 0):
                self._at_end_s = time.monotonic()
                self._trouble, self._pause_s = "", _RETRY_S
            return worked
        except LogUnavailableError as error:
            self._note(error)  # the copy stays: its age grows
            return False
        except Exception as error:  # noqa: BLE001  # one partition does not stop the others
            self._stop(error)
            return False

    def report(self) -> PartitionReport:
        """How it stands."""
        try:
            whole, age_ms = self._ready()
        except Unanswered:
            return PartitionReport(self.number, None, None, self._reason(), self.name)
        trouble = self._trouble or str(self.doubt() or "")
        return PartitionReport(self.number, whole.changelog_position, age_ms, trouble, self.name)

    def doubt(self) -> TailraceError | None:
        """Why no key can be looked up in the table. Raises Unanswered: it is not known yet."""
        self._ready()
        return self._answering.doubt() if isinstance(self._answering, TableRows) else None

    def answer(self, question: Question) -> Answer:
        """The answer to a question. Raises Unanswered."""
        whole, age_ms = self._ready()
        assert self._answering is not None
        if whole.core is None:
            raise Unanswered(
                f"there is no instance of this key: partition {self.number} has no commit",
                status=NOT_FOUND,
                actor=question.of.name,
                key=question.key,
            )
        try:
            return self._answering.answer(
                question, whole.core, whole.changelog_position, age_ms, system_clock()
            )
        except Unanswered:
            raise
        except TailraceError as error:
            raise Unanswered(str(error), status=FAILED) from error

    def close(self) -> None:
        """Close the store."""
        standby, self._standby, self._answering = self._standby, None, None
        if standby is not None:
            standby.close()

    def _open(self) -> None:
        if self._opened is None:
            if time.monotonic() >= self._retry_at_s:
                self._opened = in_thread(_THREAD, self._check)
            return
        if not self._opened.done():
            return
        opened, self._opened = self._opened, None
        plan = opened.result().plan
        store = self._open_state(plan, self.number, self.name)
        parts = plan, self.number, self._log, self._reader, store, system_clock
        if self.table is None:
            restore, self._answering = Restore(*parts), Answering(self._plan, self.number, store)
        else:
            self._answering = TableRows(plan.app, self.table, self.number, plan.partitions, store)
            restore = TableRestore(*parts, rows=self._answering)
        self._standby = Standby(restore, self._reader)
        self._trouble = "its state is being restored"

    def _check(self) -> AppHistory:
        return AppHistory(self._plan, self._log)

    def _ready(self) -> tuple[StoreCut, int]:
        """The cut of the answers, and its age."""
        whole = None if self._standby is None else self._standby.whole
        if whole is None or self._at_end_s is None:
            of = f"table {self.name!r}" if self.name else repr(self._plan.app)
            raise Unanswered(
                f"partition {self.number} of {of} has no answers yet: {self._reason()}",
                status=NOT_YET,
                hint="Ask again later.",
            )
        return whole, int((time.monotonic() - self._at_end_s) * 1_000)

    def _reason(self) -> str:
        standby = self._standby
        if standby is None or (behind := standby.behind) is None:
            return self._trouble or "it is being read again"
        return f"its state is being restored: {standby.applied:,} records are applied, {behind:,} offsets are left"

    def _note(self, error: Exception) -> None:
        text = str(error) if isinstance(error, TailraceError) else repr(error)
        if text != self._trouble:
            self._trouble = text
            _log.warning("a follower: %s", text, extra={"app": self._plan.app, "partition": self.number})

    def _stop(self, error: Exception) -> None:
        self._note(error)
        self._at_end_s = None
        self._retry_at_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _RETRY_MOST_S)
        try:
            self.close()
        except Exception as closing:  # noqa: BLE001  # it is opened again
            _log.warning(
                "closing a follower: %s", closing, extra={"app": self._plan.app, "partition": self.number}
            )


class Followers:
    """The followers of a process. ``numbers``: the partitions that it answers for."""

    def __init__(self, plan: Plan, log: StoredLog, numbers: Collection[int], open_state: OpenState) -> None:
        self._plan = plan
        self._readers = log.live_reader(), log.live_reader()  # an error of a table does not stop the state
        self.all = [
            Follower(plan, number, log, self._readers[table is not None], open_state, table)
            for table in (None, *plan.tables.values())
            for number in (sorted(numbers) if table is None else range(plan.partitions))
        ]
        """Those of the state by partition, then those of tables."""
        self._by_table = {
            name: {one.number: one for one in self.all if one.name == name} for name in ("", *plan.tables)
        }

    def answer(self, question: Question) -> Answer:
        """The answer to a question. Raises Unanswered."""
        of = question.of if isinstance(question.of, Topic) else None
        followers = self._by_table["" if of is None else of.name]
        follower = followers.get(question.partition)
        if follower is None:
            here = ", ".join(map(str, followers))
            raise Unanswered(
                f"the key belongs to partition {question.partition} of {self._plan.app!r}, and this process follows {here}",
                status=ELSEWHERE,
                hint="Ask the process that follows it.",
            )
        for one in followers.values() if of is not None else ():
            if (doubt := one.doubt()) is not None:  # the key may be in another partition
                raise Unanswered(str(doubt), status=FAILED)
        return follower.answer(question)

    def reports(self) -> list[PartitionReport]:
        """How each partition stands."""
        return [one.report() for one in self.all]

    def close(self) -> None:
        """Close all stores, and the readers."""
        for close in (*(one.close for one in self.all), *(one.close for one in self._readers)):
            close()
