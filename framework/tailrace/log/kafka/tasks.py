"""Which tasks of an app a process owns on Kafka: those that the app's consumer group gives it.

Each process of an app is a member of the group named after the app, and subscribes to the app's tape, whose partitions are its tasks.
It reads nothing from there: inputs, changelog and tape are read by positions of their own. The group spreads the tasks over the
living members, by either protocol of Kafka (``group.protocol``), and moves only what has to move.

*The metadata of the group goes with every commit.* A member that was replaced, or was stopped for too long, has an old generation,
and the broker refuses its offsets and with them the whole transaction.

A task is given back in a callback of ``look``: it commits there, and the group moves it when the callback returns.

The owner of a task may leave a *note* with it: a short text, which the group keeps as the metadata of the
offset of the task's partition of the tape. All processes can read the notes of all tasks. Only a member with
the present generation can write one. The clients' own description of a group is no substitute: the library
aborts the process when a coordinator restarts meanwhile (librdkafka 2.16, ``describe_consumer_groups``).

Before the text, on a line of its own, stands the *producer* that may have an open transaction with records of
the task, or nothing: see ``process_transaction``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import Any, Final

from tailrace.core.errors import FencedError, LogUnavailableError, TailraceError, TaskOwnedError, UsageError
from tailrace.log.interface import TopicPartition
from tailrace.log.kafka.cluster import Cluster
from tailrace.log.kafka.connection import Connection
from tailrace.log.kafka.failures import kafka_error
from tailrace.log.kafka.library import At, Consumer, KafkaError, library, never_freed
from tailrace.log.tasks import AppTasks, OnAssigned, OnRevoked, Tasks
from tailrace.log.threads import in_thread

_NOTES_S: Final = 10.0
_LINE: Final = "\n"
_LOOK_S: Final = 1.0
_STUCK_S: Final = 20.0
"""For how long brokers answer while a commit does not come back, until it counts as one that never does."""
_MOST_EXCEEDED: Final = 3
_AGAIN_S: Final = 300.0
_HARMLESS: Final = ("_MAX_POLL_EXCEEDED", "_AUTO_OFFSET_RESET")
"""The library has left the group for a process that was suspended for too long: it calls ``on_lost``, and joins again by itself. Or it has
begun to fetch the tape from the group's offset, which means nothing, before it was paused, and the tape begins later.
"""


class KafkaTasks(Tasks):
    """A member of an app's group. See ``Tasks`` and the head of this file."""

    def __init__(
        self,
        connection: Connection,
        cluster: Cluster,
        tasks: AppTasks,
        on_assigned: OnAssigned,
        on_revoked: OnRevoked,
    ) -> None:
        self._numbers: set[int] = set()
        self.owned: Collection[int] = self._numbers
        self.joined = False
        self.times_lost = 0
        """How often the group has given the tasks of this process to others without asking it."""
        self.settled: set[int] = set()
        """Tasks that were closed here, and of which no record is in an open transaction."""
        self._app = tasks.app
        self._tape = tasks.tape
        self._cluster = cluster
        self._assigned = on_assigned
        self._revoked = on_revoked
        self._looked_s = self._exceeded_s = time.monotonic()
        self._exceeded = 0
        """How often in a row the tasks were lost as this process did not look for too long."""
        self._error: BaseException | None = None
        self._stuck: LogUnavailableError | None = None
        """Why nothing can be asked of the group any more."""
        self._patience_s = cluster.patience_s
        self._kept: dict[int, str] = {}
        """What is kept with tasks of this process: a producer, and a note."""
        self._consumer: Consumer = connection.consumer(tasks.app, **connection.of_members())
        self._consumer.subscribe(
            [cluster.prefix + tasks.tape],
            on_assign=self._guarded(self._on_assign),
            on_revoke=self._guarded(partial(self._leave, may_commit=True)),
            on_lost=self._guarded(partial(self._leave, may_commit=False)),
        )

    def look(self) -> None:
        if self._stuck is not None:
            raise self._stuck
        looked_s, self._looked_s = self._looked_s, time.monotonic()
        try:
            message = self._consumer.poll(0)
        except Exception as error:
            raise self._as_error(kafka_error(error)) from error
        failure, self._error = self._error, None
        if failure is not None:
            raise failure
        found = None if message is None else message.error()
        if found is not None and found.name() == _HARMLESS[0]:
            self._check_pace(looked_s)
        if found is not None and found.name() not in _HARMLESS and not found.retriable():
            raise self._as_error(found)

    def _check_pace(self, looked_s: float) -> None:
        """Raise UsageError if what takes too long is tried again and again. One that was suspended looks regularly for a while first."""
        is_again = looked_s - self._exceeded_s < _AGAIN_S
        self._exceeded, self._exceeded_s = self._exceeded + 1 if is_again else 1, time.monotonic()
        if self._exceeded == _MOST_EXCEEDED:
            raise UsageError(
                f"{_MOST_EXCEEDED} times in a row the group has taken the tasks of this process away, as a handler, or other work, took "
                "longer than max.poll.interval.ms",
                hint="Nothing of that work is committed. Set TAILRACE_KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS to more than it takes "
                "(default: 300000). Warnings in the log name handlers that take long.",
            )

    @property
    def member_id(self) -> str:
        """See ``Tasks.member_id``: the name of the member. Empty before the group has answered."""
        return self._consumer.memberid() or ""

    def notes(self) -> dict[int, str]:
        """See ``Tasks.notes``. LogUnavailableError: the group does not answer."""
        found = {number: data.partition(_LINE)[2] for number, data in self._read().items()}
        return {number: text for number, text in found.items() if text}

    def producer(self, number: int) -> str:
        """The producer that may have an open transaction with records of a task; empty if there is none."""
        return producer_in(self._kept_with(number))

    def _kept_with(self, number: int) -> str:
        """All that is kept with a task of this process. Nobody else changes it while this process owns the task."""
        if number not in self._kept:
            self._kept[number] = self._read().get(number, "")
        return self._kept[number]

    def _read(self) -> dict[int, str]:
        places = [
            self._cluster.at(TopicPartition(self._tape, n))
            for n in range(self._cluster.known(self._tape).partitions)
        ]
        try:
            found = self._consumer.committed(places, timeout=_NOTES_S)
        except Exception as error:
            raise self._as_error(kafka_error(error), "reading the notes of the tasks") from error
        for one in found:
            if one.error is not None:
                raise self._as_error(one.error, "reading the notes of the tasks")
        return {one.partition: one.metadata for one in found if one.metadata}

    def leave_note(self, number: int, text: str) -> None:
        """Replace the note of a task. FencedError: it is not of this process any more. LogUnavailableError: the group does not answer."""
        self._keep(number, f"{self.producer(number)}\n{text}")

    def name_producer(self, number: int, producer: str) -> None:
        """Name the producer that may have an open transaction with records of a task. Raises what ``leave_note`` raises."""
        self.settled.discard(number)
        self._keep(number, f"{producer}\n{self._kept_with(number).partition(_LINE)[2]}")

    def metadata(self) -> Any:
        """What goes with every commit."""
        return self._consumer.consumer_group_metadata()

    def check(self) -> None:
        if not self._numbers:
            raise _not_owned()
        self.confirm(min(self._numbers))

    def confirm(self, number: int) -> None:
        """Ask the group whether this process still owns a task. Raises what ``leave_note`` raises."""
        self._keep(number, self._kept_with(number))

    def _keep(self, number: int, data: str) -> None:
        if number not in self._numbers:
            raise _not_owned()
        try:
            done = self._committed(self._at(number, data))
        except TailraceError:
            raise
        except Exception as error:
            raise self._as_error(kafka_error(error), "asking the group of the app") from error
        for one in done or ():
            if one.error is not None:
                raise self._as_error(one.error, "asking the group of the app")
        self._kept[number] = data

    def _committed(self, place: At) -> Sequence[At]:
        """Commit as a member. librdkafka waits for the answer without an end, and it may never come (2.16, after a broker was suspended
        for a moment). So another thread calls it. It is waited for as long as brokers do not answer, unless the process is to leave.
        A commit that does not come back may be sent at any later time. Nobody else can own a task before that, as this member gives
        no task up until its process has ended.
        """
        if self._stuck is not None:
            raise self._stuck
        sent = in_thread("tailrace-group", lambda: self._consumer.commit(offsets=[place], asynchronous=False))
        begun_s = time.monotonic()
        answered_s: float | None = None
        while True:
            wait([sent], _LOOK_S)
            if sent.done():
                return sent.result() or ()
            now_s = time.monotonic()
            answered_s = (answered_s or now_s) if self._cluster.answers() else None
            is_leaving = self._cluster.patience_s < self._patience_s
            if (answered_s is not None and now_s - answered_s > _STUCK_S) or (
                is_leaving and now_s - begun_s > self._cluster.patience_s
            ):
                self._stuck = LogUnavailableError(
                    "Kafka does not answer: the client does not come back from asking the group of the app",
                    hint="Nothing is lost. Start the process again.",
                )
                never_freed(self._consumer)
                raise self._stuck

    def _at(self, number: int, data: str) -> At:
        # The offset means nothing: nobody reads the tape by the group's offsets.
        return self._cluster.at(TopicPartition(self._tape, number), 0, data)

    def _clear(self) -> None:
        """Name no producer for the tasks that this process has left. If that fails, the next owner fences one in vain."""
        settled, self.settled = self.settled & self._kept.keys() & self._numbers, set()
        places = [self._at(number, f"\n{self._kept[number].partition(_LINE)[2]}") for number in settled]
        if places:
            # Not waited for: the coordinator takes it before this member gives the tasks up.
            with suppress(library().KafkaException):
                self._consumer.commit(offsets=places)

    def close(self) -> None:
        if self._stuck is not None:
            return  # it would wait for the same answer; the group misses this member after its session
        self._clear()
        self._consumer.close()

    def _as_error(
        self, error: KafkaError, doing: str = "taking part in the group of the app"
    ) -> TailraceError:
        if "instance" in error.str().lower():
            return TaskOwnedError(
                f"another process of the app is a member of its group with the same group.instance.id: {error.str()}",
                hint="Give each process an id of its own (TAILRACE_KAFKA_CONSUMER_GROUP_INSTANCE_ID).",
            )
        is_of_tape = error.name() == "TOPIC_AUTHORIZATION_FAILED"
        resource = self._cluster.prefix + (self._tape if is_of_tape else self._app)
        return self._cluster.error(error, doing, self._tape, resource=resource)

    def _guarded(self, call: Callable[[list[At]], None]) -> Callable[[Consumer, list[At]], None]:
        """An error in a callback is raised by ``look``: the library would lose it."""

        def called(_consumer: Consumer, places: list[At]) -> None:
            try:
                call(places)
            except BaseException as error:  # noqa: BLE001  # raised by ``look``
                self._error = self._error or error

        return called

    def _on_assign(self, places: list[At]) -> None:
        self.joined = True
        for one in places:
            one.offset = 0
        # Both protocols of a cooperative group give only what is new.
        self._consumer.incremental_assign(places)
        self._consumer.pause(places)
        numbers = {one.partition for one in places} - self._numbers
        self._numbers |= numbers
        self._assigned(numbers)

    def _leave(self, places: list[At], *, may_commit: bool) -> None:
        numbers = {one.partition for one in places} & self._numbers
        try:
            self._revoked(numbers, may_commit)
            if may_commit:
                self._clear()
            else:
                self.times_lost += 1
        finally:
            self._numbers -= numbers
            self.settled -= numbers
            for number in numbers:
                self._kept.pop(number, None)
            self._consumer.incremental_unassign(places)


def producer_in(kept: str) -> str:
    """The producer in what is kept with a task; empty if there is none."""
    return kept.partition(_LINE)[0]


def _not_owned() -> FencedError:
    return FencedError("the group has given the tasks of this process to others", hint="Nothing is lost.")
