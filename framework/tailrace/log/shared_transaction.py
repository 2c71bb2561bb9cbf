"""One transaction for several writers: what the tasks of a process on Kafka append and commit together.

Theory. A transaction on Kafka belongs to a producer, and a commit takes about as long for one task as for sixteen. So the tasks of a
process share a producer. Each has a *writer*, under whose name it publishes watermarks. A commit makes the records of all writers
visible at once, so these rules hold:

1. A commit has a part of every writer that has appended since the last commit. Records of a writer without a part would become
   visible without the offsets and the state that belong to them. Such a commit is refused.
2. A writer that fails after it has appended aborts the transaction, as its records cannot be taken out. All other writers that have
   appended have then *lost* their records. They cannot append or commit until they call ``abort``, by which their tasks say that they
   went back to the last commit.
3. A writer that has appended nothing leaves without an abort, and loses nothing by the abort of another.
4. A commit that certainly had no effect is aborted here, for all.
5. If the outcome is unknown, or the producer has failed for good, the transaction has *ended*: all its
   writers are lost, and of no more use.

A transaction with one writer is what a program has that commits alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from tailrace.core.errors import CommitUnknownError, LifecycleError, LogUnavailableError, TailraceError
from tailrace.core.records import RawOutput
from tailrace.log.interface import Part, TopicPartition


class TransactionalProducer(Protocol):
    """What a transaction needs of its log. Its methods raise what those of ``tailrace.log.Writer`` raise."""

    @property
    def ended(self) -> bool:
        """Whether it has failed for good, or was closed."""
        ...

    def append(self, outputs: Iterable[RawOutput], partition: int | None, /) -> bool:
        """Append to the open transaction; whether there was anything to append."""
        ...

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        group: str,
        watermarks: Mapping[str, Mapping[str, int | None]],
        /,
    ) -> Mapping[TopicPartition, int]:
        """Commit. ``watermarks`` are given by the name of the publisher."""
        ...

    def abort(self) -> None:
        """Drop the open transaction, if there is one."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


class SharedTransaction:
    """See the head of this file. ``check`` is called with the names of all writers of a commit, and may raise."""

    def __init__(
        self, producer: TransactionalProducer, check: Callable[[Collection[str]], None] = lambda _names: None
    ) -> None:
        self._producer = producer
        self._check = check
        self._writers: list[SharedWriter] = []

    @property
    def ended(self) -> bool:
        """Whether it is of no more use."""
        return self._producer.ended

    def writer(self, name: str, left: Callable[[bool], None] | None = None) -> SharedWriter:
        """A writer that publishes under a name. When it is closed, ``left`` is called with whether no record of it is left in an
        open transaction. Without ``left`` it is the only writer, and the transaction ends with it.
        """
        made = SharedWriter(self, self._producer, name, left)
        self._writers.append(made)
        return made

    def commit(self, parts: Sequence[Part], group: str = "", /) -> Mapping[TopicPartition, int]:
        """Commit what the writers of these parts have appended; see ``tailrace.log.Writer.commit``.

        Raises:
            LifecycleError: Another writer has appended, too. Nothing was done.
            CommitUnknownError: It did or did not take effect, for all parts.
            TailraceError: It did not take effect. The transaction was aborted.
        """
        names = [part.writer.transactional_id for part in parts]
        writers = [part.writer for part in parts]
        for one in self._writers:
            if one.wrote and one not in writers:
                raise LifecycleError(
                    f"a commit of {', '.join(names)} would publish records of {one.transactional_id} without its offsets",
                    hint="Commit all writers of a transaction together.",
                )
        offsets = {place: at for part in parts for place, at in part.offsets.items()}
        marks = {part.writer.transactional_id: part.watermarks for part in parts if part.watermarks}
        try:
            for writer in writers:
                if writer.lost:
                    writer.append(())  # raises: it was aborted, closed, or its producer has failed
            self._check(names)
            ends = self._producer.commit(offsets, group, marks)
        except CommitUnknownError:
            self.close()
            raise
        except TailraceError:
            with suppress(TailraceError):
                self.abort()
            raise
        for one in self._writers:
            one.wrote = False
        return ends

    def abort(self) -> None:
        """Drop what all writers have appended since the last commit."""
        for one in self._writers:
            one.lose()
        try:
            self._producer.abort()
        except TailraceError:
            self.close()
            raise

    def close(self) -> None:
        """End it. What was not committed is lost."""
        self._producer.close()

    def leave(self, writer: SharedWriter) -> None:
        """Forget a writer that was closed."""
        if writer in self._writers:
            self._writers.remove(writer)


class SharedWriter:
    """A writer of a ``SharedTransaction``; see ``tailrace.log.Writer``."""

    def __init__(
        self,
        shared: SharedTransaction,
        producer: TransactionalProducer,
        name: str,
        left: Callable[[bool], None] | None,
    ) -> None:
        self.transactional_id = name
        self.shared = shared
        self.wrote = False
        """Whether records of it are in the open transaction."""
        self._producer = producer
        self._left = left
        self._lost = self._closed = False

    @property
    def lost(self) -> bool:
        return self._lost or self._closed or self.shared.ended

    def append(self, outputs: Iterable[RawOutput], /, partition: int | None = None) -> None:
        self.enter()
        before, self.wrote = self.wrote, True  # some of it may be appended when it fails
        self.wrote = self._producer.append(outputs, partition) or before

    def commit(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        group: str = "",
        watermarks: Mapping[str, int | None] | None = None,
        /,
    ) -> Mapping[TopicPartition, int]:
        return self.shared.commit((Part(self, offsets or {}, watermarks or {}),), group)

    def abort(self) -> None:
        if self.wrote or self.shared.ended:
            self.shared.abort()  # raises if the producer has failed for good
        self._lost = False

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._left is None:
            self.shared.close()  # aborts what is open, and does not wait for long
            return
        if self.wrote and not self.shared.ended:
            with suppress(TailraceError):  # it has ended then
                self.shared.abort()
        self.shared.leave(self)
        self._left(not self.shared.ended)

    def lose(self) -> None:
        """The open transaction is aborted."""
        self._lost = self._lost or self.wrote
        self.wrote = False

    def enter(self) -> None:
        """Refuse to continue after a loss, or when it was closed."""
        if (self._lost or self._closed) and not self.shared.ended:
            raise LogUnavailableError(
                f"what {self.transactional_id!r} has appended was aborted with the transaction of its process",
                hint="Restore the task from its last commit.",
            )
