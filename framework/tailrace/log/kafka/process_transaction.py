"""The transaction of a process: all of its tasks write and commit with one producer, whose id is drawn when it is made.

Theory. An owner must not restore a task before the transactions of all earlier owners are settled: what they commit later, it would
not see. So a new owner has to know the producers that may have an open transaction with records of the task. The group keeps the
id of one with each task, or nothing (see ``tasks``): it is *named*.

Rule 1: A process names its producer before its first record of a task. At any time the named producer is the only one that may have
records of the task in an open transaction.

Rule 2: A new owner that finds another's id fences it first: taking the id over aborts what it left open, or waits until a commit
that was decided is complete. Only then it names its own, and restores. This takes moments. Otherwise the records would hide what
comes after them until ``transaction.timeout.ms``.

Rule 3: A process that gives a task back names none, if it has committed or aborted the task's records.

Rule 4: A command that needs tasks without an owner (``KafkaLog.reserve``) fences the producers named for them in the same way, once the
group has no member. Otherwise it would wait for what the last process has left open, as no new owner comes.

Where a process dies, or is suspended and replaced, and what its successor finds:

======================================================  ============================================================================
before its producer is named                            nothing, or an older id; it has written nothing
after that, before the first record                     its id: fenced in vain
with records in the open transaction                    its id: they are aborted
within the commit                                       its id: the take-over waits until the commit is complete, or aborts it
after the commit, before it names none                  its id: fenced in vain
after it names none                                     nothing; it has no records, and writes none before it owns the task again
after an older id was fenced, before its own is named   the older id: fenced again, in vain
======================================================  ============================================================================

"In vain" is not for nothing if the process lives: its producer is fenced, and all of its tasks lose their uncommitted work. It makes
a producer with another id, finds its own former one named for its tasks, and restores them. So the fencing of a process that is
still a member costs time and nothing else. A process that lost its tasks without being asked makes another producer for the same
reason: the new owners fence the one that it had.

A member with an old generation can name nothing. It could still fence the rightful owner if it is suspended between the question
whether it is a member and the take-over; the owner then does the same.

The group's metadata in each commit does not replace any of this: a transaction whose offsets were accepted can still be committed
after the task has moved. Nor does the broker check which partitions a member commits: that is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import uuid4

from tailrace.core.errors import FencedError
from tailrace.core.names import process_transactional_id, task_of
from tailrace.log.kafka.tasks import KafkaTasks
from tailrace.log.kafka.writer import KafkaProducer
from tailrace.log.shared_transaction import SharedTransaction, SharedWriter


class ProcessTransaction:
    """Writers for the tasks of an app that this process owns. ``producer`` takes a transactional id over."""

    def __init__(self, app: str, member: KafkaTasks, producer: Callable[[str], KafkaProducer]) -> None:
        self._app = app
        self.member = member
        self._producer = producer
        self._id = ""
        self._transaction: SharedTransaction | None = None
        self._held: KafkaProducer | None = None
        """The producer of the transaction."""
        self._times_lost: int = 0
        self._fenced: set[str] = set()
        """Ids of producers that were fenced here: no process makes another with the same id."""

    def writer(self, name: str, number: int) -> SharedWriter:
        """A writer for a task, which publishes under ``name``. When it returns, all transactions of earlier owners are settled.

        Raises:
            FencedError: This process does not own the task, or is no member of the group any more.
            LogUnavailableError: The brokers do not answer.
        """
        member = self.member
        member.confirm(number)  # who owns the task may fence others
        transaction = self._present()
        named = member.producer(number)
        if named not in {"", self._id, *self._fenced}:
            self._producer(named).close()
            self._fenced.add(named)
        member.name_producer(number, self._id)
        if self._held is not None:
            self._held.take_in()

        def left(is_settled: bool) -> None:
            if is_settled and self._transaction is transaction:
                member.settled.add(number)

        return transaction.writer(name, left)

    def close(self) -> None:
        """Release the producer. What is open is aborted."""
        if self._transaction is not None:
            self._transaction.close()

    def _present(self) -> SharedTransaction:
        """The transaction of the present producer; of another, if that has failed or is going to be fenced."""
        present, times_lost = self._transaction, self.member.times_lost
        if present is not None and times_lost != self._times_lost:
            present.close()
        if present is None or present.ended:
            made = process_transactional_id(self._app, uuid4().hex)
            self._held = self._producer(made)
            present = self._transaction = SharedTransaction(self._held, self._check)
            self._id, self._times_lost = made, times_lost
        return present

    def _check(self, names: Collection[str]) -> None:
        """Refuse to commit tasks that this process does not own."""
        for name in names:
            task = task_of(name)
            if task is None or task[1] not in self.member.owned:
                raise FencedError(
                    f"{name!r} was given to another process",
                    hint="Nothing is lost. Its new owner does the work.",
                )
