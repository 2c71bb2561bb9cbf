"""Sends from many threads in few commits.

A commit takes about as long for one event as for a thousand. So each thread leaves its records and waits for its turn. The thread
whose turn it is commits all records that are there by then. A send is in one commit as a whole: a reader sees all of its events or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Final
from uuid import uuid4

from tailrace.core.errors import (
    CommitUnknownError,
    RecordTooLargeError,
    TailraceError,
    UnknownTopicError,
    UsageError,
)
from tailrace.core.records import Output
from tailrace.log.interface import StoredLog, TopicPartition, Writer

_MOST: Final = 10_000
"""Records of a commit, unless one send has more."""
_REFUSALS: Final = (RecordTooLargeError, UnknownTopicError, UsageError)
"""After these a writer has appended nothing of what it was given."""


class _Send:
    """The records of one call, and what has become of them."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        self.outputs = outputs
        self.done = False
        self.error: TailraceError | None = None
        self.ends: Mapping[TopicPartition, int] = {}


class Sending:
    """Appends records for any number of threads, until it is closed."""

    def __init__(self, log: StoredLog) -> None:
        self._log = log
        self._pending: list[_Send] = []
        self._mutex, self._turn = Lock(), Lock()
        self._writer: Writer | None = None
        self._closed = False

    def send(self, outputs: Sequence[Output]) -> Mapping[TopicPartition, int]:
        """Append records in one commit. Returns the new ends of their partitions. Raises what ``Writer`` does."""
        mine = _Send(outputs)
        with self._mutex:
            if self._closed:
                raise UsageError("this client is closed", hint="Make another one.")
            self._pending.append(mine)
        with self._turn:
            while not mine.done:
                self._commit()
        if mine.error is not None:
            raise mine.error
        return mine.ends

    def close(self) -> None:
        """Commit what is pending, and release the writer."""
        with self._mutex:
            self._closed = True
        with self._turn:
            while self._pending:
                self._commit()
            self._release()

    def _commit(self) -> None:
        """Commit the next sends. An exception that is no answer of the log, such as Ctrl-C in this thread, leaves theirs unknown."""
        sends: list[_Send] = []
        ends: Mapping[TopicPartition, int] = {}
        error: TailraceError | None = CommitUnknownError("the thread that committed was interrupted")
        try:
            self._take(sends)
            if self._writer is None:
                self._writer = self._log.writer(f"client-{uuid4().hex}")
            for one in sends:
                try:
                    self._writer.append(one.outputs)
                except _REFUSALS as refused:
                    one.error = refused
            ends = self._writer.commit()
            error = None
        except TailraceError as failed:
            error = failed
        finally:
            for one in sends:
                one.error, one.ends, one.done = one.error or error, ends, True
            if error is not None:
                self._release()

    def _take(self, sends: list[_Send]) -> None:
        with self._mutex:
            taken, count = 0, 0
            while taken < len(self._pending) and (not taken or count < _MOST):
                count += len(self._pending[taken].outputs)
                taken += 1
            sends += [one for one in self._pending[:taken] if not one.done]
            del self._pending[:taken]

    def _release(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
