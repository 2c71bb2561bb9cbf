"""Tasks of the first service move while the second, which reads what they write, is down and far behind.

Theory. A process keeps the *ends* of a topic that it publishes watermarks for: where the topic ended when it first published, and then
behind what it has written itself. A task that it takes over has another's records behind these ends. If it does not ask for the ends
again, it publishes watermarks that hold before these records, and they are late for a reader that has them still to read. That
happens only if all of this is so:

- The taker has asked for its ends before the last owner wrote, and still has the same producer. Until the move it publishes for its other
  tasks; the group names the producer of each task.
- The readers stand between these ends and the records: they have read an alarm that was written later than the taker asked, and have
  not read the last ones. A reader that has the ends still before it may take the records in the same fetch.
- All tasks have published watermarks that have passed the records, and the taker those of the tasks that moved, before anything else is
  written to the partition. That is so between two bursts of alarms: a burst is over for a task that has published a watermark behind
  the times of its steps, as it raises no alarm for a late step.

The driver waits for all of this. It repeats a move of which it is not sure, since a process may have ended by itself meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as At

from tailrace.core.engine.task_state import ORIGIN_HEADER
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tests.soak.apps import ALARMS_EVERY, ALARMS_LAST, PARTITIONS, Alarm
from tests.soak.feed import START_MS, STEP_MS
from tests.soak.processes import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from tests.kafka.soak import Member, Round

_TRIES = 3
_BURSTS_S = 3 * PATIENCE_S
"""Where tasks write to any partition, several bursts may pass before one is as it must be."""
_ANSWER_S = 30.0
_QUIET = {"log_level": 0}
_ALARMS = [TopicPartition("alarms", number) for number in range(PARTITIONS)]


def move_ahead_of_readers(made: Round, _member: Member) -> None:
    """The processes of the first service leave, one after the other, and come back, while the second service is down, and far behind. So
    that has to read what the last owner of a task has written, and the watermarks that the new one has published meanwhile.
    """
    with closing(_Writers(made)) as writers:
        for _ in range(_TRIES):
            if _moved(made, writers):
                made.note("tasks have moved ahead of the readers")
                return
            made.note("whether tasks have moved ahead of the readers is not sure")


# --- internal


def _moved(made: Round, writers: _Writers) -> bool:
    """Move tasks once, in both directions; whether the first of these moves was as in the theory."""
    readers = [one for one in made.members if one.service == "second"]
    owners = writers.publishing()
    known = writers.ends()
    _wait(lambda: writers.are_read(known), "alarms of a later burst are read", made.members)
    for one in readers:
        one.keep().kill()
    first, *others = made.random.sample(writers.members, len(writers.members))
    is_sure = _leave(made, writers, first) == owners
    for leaver in others:
        _leave(made, writers, leaver)
    for one in readers:
        one.start()
    return is_sure


def _leave(made: Round, writers: _Writers, leaver: Member) -> Mapping[int, str]:
    """Let a process leave after a burst of alarms, until others have published for its tasks. The owners of the tasks until then; none,
    if something else has happened meanwhile.
    """
    owners = writers.publishing()
    unread = writers.ends()
    writers.await_(lambda: writers.has_burst(unread, owners), "a burst of alarms is over")
    is_sure, ends = writers.producers() == owners, writers.ends()
    leaver.keep()
    made.note(f"{leaver.state.name} leaves")
    leaver.terminate()
    stay = [one for one in writers.members if one is not leaver]
    heirs = writers.publishing(stay)
    is_sure = is_sure and {*heirs.values()} < {*owners.values()} and writers.ends() == ends
    leaver.start()
    return owners if is_sure else {}


class _Writers:
    """The processes of the first service, and what the log says of their tasks; the caller must close it."""

    def __init__(self, made: Round) -> None:
        self.members = [one for one in made.members if one.service == "first"]
        self._log = KafkaLog(made.url)
        # What is asked for is not changed in a transaction.
        settings = {"group.id": f"{made.prefix}first", "isolation.level": "read_uncommitted"}
        self._group = Consumer({**made.cluster.client, **_QUIET, **settings})
        self._tape = [At(f"{made.prefix}first.tape", number) for number in range(PARTITIONS)]

    def close(self) -> None:
        self._group.close()
        self._log.close()

    def await_(self, condition: Callable[[], object], what: str) -> None:
        """Keep the processes alive until something is so."""
        _wait(condition, what, self.members)

    def producers(self) -> dict[int, str]:
        """By task, the producer that the group names for it; those without one are left out. None, if the group does not answer."""
        try:
            found = self._group.committed(self._tape, timeout=_ANSWER_S)
        except KafkaException:
            return {}
        named = {one.partition: (one.metadata or "").partition("\n")[0] for one in found}
        return {number: producer for number, producer in named.items() if producer}

    def publishing(self, members: list[Member] | None = None) -> dict[int, str]:
        """Wait until each of some processes owns tasks, they own all of them, and have published for each. The producers by task."""
        members = self.members if members is None else members
        owners, before = dict[int, str](), dict[int, int]()

        def have_published() -> bool:
            nonlocal owners, before
            marks, found = self.marks(), self.producers()
            if found != owners:
                owners, before = found, self.marks()
                return False
            is_owned = len(owners) == PARTITIONS and len({*owners.values()}) == len(members)
            return is_owned and all(
                marks.get(number, 0) > before.get(number, 0) for number in range(PARTITIONS)
            )

        _wait(have_published, "every process owns tasks, and has published for 'alarms'", members)
        return owners

    def marks(self) -> dict[int, int]:
        """By task, the watermark that it has published for the topic."""
        return {
            int(publisher.rpartition("-")[2]): mark
            for (topic, publisher), mark in self._log.publications().items()
            if topic == "alarms" and mark is not None
        }

    def ends(self) -> dict[TopicPartition, int]:
        """Where the partitions of the topic end."""
        return {place: self._log.end_offset(*place) for place in _ALARMS}

    def are_read(self, known: Mapping[TopicPartition, int]) -> bool:
        """Whether the second service has read alarms behind these ends, wherever there are any."""
        read = self._log.offsets_before_open_transactions("second", known)
        return all(read.get(place, 0) >= end + 1 for place, end in known.items() if end)

    def has_burst(self, start: Mapping[TopicPartition, int], owners: Mapping[int, str]) -> bool:
        """Whether there was a burst from these positions on, it is over in all tasks, and of each producer there is a partition whose last
        alarm is of one of its tasks.
        """
        if self.ends() == start:
            return False
        last: dict[TopicPartition, int] = {}
        numbers: list[int] = []
        with closing(self._log.reader(dict(start))) as reader:
            for place in start:
                while records := reader.fetch(*place, 10_000).records:
                    numbers += [_decode(one.value or b"").number for one in records]
                    origin = dict(records[-1].headers)[ORIGIN_HEADER].decode()
                    last[place] = int(origin.split("/")[1])
        if not numbers:
            return False
        over_ms = START_MS + (max(numbers) // ALARMS_EVERY * ALARMS_EVERY + ALARMS_LAST) * STEP_MS
        is_over = min(self.marks().values()) >= over_ms
        return is_over and {owners[task] for task in last.values()} == {*owners.values()}


_decode = msgspec.json.Decoder(Alarm).decode


def _wait(condition: Callable[[], object], what: str, alive: list[Member]) -> None:
    def is_so() -> object:
        for one in alive:
            one.keep()
        return condition()

    wait_until(is_so, what, _BURSTS_S)
