"""Follows the changelog of an app, and answers questions from what it has read.

Each partition has a copy of the state, as a standby has it (``runtime.standbys``): the rows of whole commits. So an answer is of one
commit, however many rows that has.

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
from typing import Final

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import LogUnavailableError, TailraceError
from tailrace.core.storage import Store
from tailrace.history.reading.app_history import AppHistory
from tailrace.log.interface import LiveReader, ServiceLog
from tailrace.log.threads import in_thread
from tailrace.runtime.restore import Restore
from tailrace.runtime.standbys import Standby
from tailrace.runtime.worker import system_clock
from tailrace.serve.answers import Answer, Answering, Question
from tailrace.serve.unanswered import ELSEWHERE, FAILED, NOT_FOUND, NOT_YET, Unanswered

_log = logging.getLogger("tailrace.serve")
_THREAD: Final = "tailrace-follower"
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


class Follower:
    """Follows one partition. ``open_state`` gives the empty or earlier store of this follower, for the
    changelog that a plan was located at.
    """

    def __init__(
        self,
        plan: Plan,
        number: int,
        log: ServiceLog,
        reader: LiveReader,
        open_state: Callable[[Plan, int], Store],
    ) -> None:
        self.number = number
        self._plan, self._log, self._reader, self._open_state = plan, log, reader, open_state
        self._opened: Future[AppHistory] | None = None
        self._standby: Standby | None = None
        self._answering: Answering | None = None
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
            if standby.whole is not None and (standby.hears_end() or (worked and standby.behind == 0)):
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
        whole = self._whole()
        if whole is None or self._at_end_s is None:
            return PartitionReport(self.number, None, None, self._reason())
        return PartitionReport(self.number, whole, self._age_ms(self._at_end_s), self._trouble)

    def answer(self, question: Question) -> Answer:
        """The answer to a question. Raises Unanswered."""
        whole = None if self._standby is None else self._standby.whole
        if whole is None or self._answering is None or self._at_end_s is None:
            raise Unanswered(
                f"partition {self.number} of {self._plan.app!r} has no answers yet: {self._reason()}",
                status=NOT_YET,
                hint="Ask again later.",
            )
        if whole.core is None:
            raise Unanswered(
                f"there is no instance of this key: partition {self.number} has no commit",
                status=NOT_FOUND,
                actor=question.actor.name,
                key=question.key,
            )
        try:
            return self._answering.answer(
                question, whole.core, whole.changelog_position, self._age_ms(self._at_end_s), system_clock()
            )
        except Unanswered:
            raise
        except TailraceError as error:
            raise Unanswered(error.what, status=FAILED, hint=error.hint) from error

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
        store = self._open_state(plan, self.number)
        restore = Restore(plan, self.number, self._log, self._reader, store, system_clock)
        self._answering = Answering(self._plan, self.number, store)
        self._standby = Standby(restore, self._reader)
        self._trouble = "its state is being restored"

    def _check(self) -> AppHistory:
        return AppHistory(self._plan, self._log)

    def _whole(self) -> int | None:
        whole = None if self._standby is None else self._standby.whole
        return None if whole is None else whole.changelog_position

    def _reason(self) -> str:
        standby = self._standby
        if standby is None or (behind := standby.behind) is None:
            return self._trouble
        return f"its state is being restored: {standby.applied:,} records are applied, {behind:,} offsets are left"

    def _age_ms(self, at_end_s: float) -> int:
        return int((time.monotonic() - at_end_s) * 1_000)

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

    def __init__(
        self, plan: Plan, log: ServiceLog, numbers: Collection[int], open_state: Callable[[Plan, int], Store]
    ) -> None:
        self._plan = plan
        self._reader = log.live_reader()
        self._followers = {
            number: Follower(plan, number, log, self._reader, open_state) for number in sorted(numbers)
        }

    def step(self, number: int) -> bool:
        """Work on one partition; see ``Follower.step``."""
        return self._followers[number].step()

    @property
    def numbers(self) -> list[int]:
        """The partitions that are followed."""
        return [*self._followers]

    def answer(self, question: Question) -> Answer:
        """The answer to a question. Raises Unanswered."""
        follower = self._followers.get(question.partition)
        if follower is None:
            here = ", ".join(map(str, self._followers))
            raise Unanswered(
                f"the key belongs to partition {question.partition} of {self._plan.app!r}, and this process follows {here}",
                status=ELSEWHERE,
                hint="Ask the process that follows it.",
            )
        return follower.answer(question)

    def reports(self) -> list[PartitionReport]:
        """How each partition stands."""
        return [one.report() for one in self._followers.values()]

    def close(self) -> None:
        """Close all stores, and the reader."""
        for one in self._followers.values():
            one.close()
        self._reader.close()
