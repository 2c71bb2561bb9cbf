"""The results that a test can read: the emitted events and the committed state of a service.

All of it is read from the log and the stores, where a consumer or a restart would find it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

from tailrace.core import rows
from tailrace.core.counting import counted
from tailrace.core.declare.actor import Actor
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Table, Topic
from tailrace.core.engine.query import QueryReader
from tailrace.core.handling.promises import Behind
from tailrace.core.values.partitioner import partition_of
from tailrace.testing.emitted import DeadLetter, Emitted, dead_letter
from tailrace.testing.memory_log import MemoryLog
from tailrace.testing.replaying import ReplayReport, replay
from tailrace.testing.service import Service

E = TypeVar("E")
K = TypeVar("K")
A = TypeVar("A", bound=Actor)


class View(ABC):
    """Reads the results of a service. Reading state starts a service that is down, without taking records."""

    def __init__(self, plan: Plan, log: MemoryLog, service: Service) -> None:
        self.plan = plan
        self.log = log
        """The log, for operations that are not offered here."""
        self._service = service
        self._letters_read = 0

    @abstractmethod
    def recover(self) -> None:
        """Start the service, if it is down."""

    def emitted(self, topic: Topic[E, Any]) -> list[E]:
        """All committed events emitted to a topic so far, in the order in which they became visible.

        Raises UsageError for a stream, whose events are in no log.
        """
        return Emitted(self._service.visible).to(topic)

    def table(self, table: Table[E, K]) -> dict[K, E]:
        """The committed values of a table, by key. Also those that other apps and producers have written."""
        last = {record.key: record.value for record in self.log.read(table.name)}
        return {
            table.key_codec.decode(key or b""): table.decode(value)
            for key, value in last.items()
            if value is not None
        }

    def state(self, actor: type[A], key: Any) -> A | None:
        """The committed instance of a key, or None if nothing is stored for it.

        It is a copy: its fields, map and list states can be read, and changes of them have no effect.
        """
        instance: A | None = self._reader(actor, key).instance(actor, key)
        return instance

    def keys(self, actor: type[Actor]) -> list[Any]:
        """The keys that have a stored instance, in the order of their bytes."""
        self.recover()
        plan = self.plan.actor_of(actor)
        prefix = rows.actor_prefix(plan.name)
        found = (
            rows.read_state_row(row)
            for store in self._service.stores
            for row, _ in store.scan(prefix, rows.prefix_end(prefix))
        )
        return [plan.key_codec.decode(key) for key in sorted(row.key for row in found if not row.rest)]

    def timers(self, actor: type[Actor], key: Any) -> dict[tuple[str, str | int], int]:
        """The committed pending timers of a key, with the time in milliseconds at which each is due.

        The keys of the dict are pairs: ``"event"`` or ``"processing"``, and the timer's name, or its time if
        it has none.
        """
        return self._reader(actor, key).timers(actor, key)

    def query(self, actor: type[Actor], key: Any, name: str, *arguments: Any) -> Any:
        """Call a ``@tr.query`` method, by its name, on the committed instance of a key.

        Raises:
            QueryError: There is no such query or no such key, the query failed, or it changed the instance.
        """
        return self._reader(actor, key).query(actor, key, name, *arguments)

    def watermark(self, partition: int = 0, *, actor: type[Actor] | None = None) -> int:
        """The watermark of one partition's task in milliseconds, or that of one of its actors.

        Each actor has a watermark of its own, which follows its own inputs; the task's is the lowest of them.
        Before the first event it is ``tr.NO_WATERMARK``.
        """
        self.recover()
        task = self._service.task(partition)
        if actor is None:
            return task.watermark
        return task.watermarks.of_operator[self.plan.actor_of(actor).index]

    @property
    def late(self) -> int:
        """Number of events so far that were late for an actor or function, whatever ``late=`` says."""
        self.recover()
        return sum(one.task.totals.late for one in self._service.partitions)

    @property
    def dropped(self) -> int:
        """Number of late events so far that handlers left out, as windows and joins do (``ctx.count_late``)."""
        self.recover()
        return sum(one.task.totals.dropped for one in self._service.partitions)

    @property
    def late_after_idle(self) -> Mapping[str, int]:
        """Of the late events, those that were late because their input had been idle: their number, by the
        name of the input, or ``<inbox>#<actor>`` for messages. Such an event is above the watermark of its
        own input: with a larger ``idle_after`` it would not be late.
        """
        self.recover()
        found = Counter[str]()
        for one in self._service.partitions:
            found += Counter({name: idle.late for name, idle in one.task.watermarks.idleness.items()})
        return found

    @property
    def behind(self) -> Mapping[Behind, int]:
        """Number of events that were emitted behind the watermark published for their topic, by topic and
        handler.

        Readers that follow the topic's watermark find them late. Counted since the last start, from the first
        commit on.
        """
        self.recover()
        return sum((Counter(one.promises.behind) for one in self._service.partitions), Counter[Behind]())

    @property
    def metrics(self) -> dict[str, float | list[float]]:
        """Committed ``ctx.metrics`` by name: a count's sum, a gauge's last value, all observed values."""
        return {
            name: list(value) if isinstance(value, list) else value
            for name, value in self._service.metrics.items()
        }

    def dead_letters(self) -> list[DeadLetter]:
        """Committed dead letters, by partition: records and timers that could not be handled, and why.

        A test that produces dead letters reads them: those that it has not read fail it when its ``with`` block ends.
        """
        found = [dead_letter(record) for record in self.log.read(self.plan.dead_letters_topic)]
        self._letters_read = len(found)
        return found

    def check_dead_letters(self) -> None:
        """Raise AssertionError if there are dead letters that ``dead_letters`` has not returned to the test."""
        read = self._letters_read
        if len(found := self.dead_letters()) > read:
            raise AssertionError(
                f"{self.plan.app} has {counted(len(found) - read, 'dead letter')} that the test has not read. The last one: "
                f"{found[-1].error} (topic {found[-1].topic!r}, key {found[-1].key!r}). If this is expected, call dead_letters()."
            )

    def replay(self) -> ReplayReport:
        """Replay everything that was committed from the beginning, and compare state, outputs and positions
        byte by byte.

        It runs in this process, so it does not find results that depend on the order of a set or on
        ``hash()``. On the log of a service, ``tailrace replay --compare`` finds them.

        Raises:
            ReplayDivergedError: Something differs; the message names the first difference.
        """
        self.recover()
        return replay(self.plan, self.log, self._service.stores, self._service.options.task)

    def _reader(self, actor: type[Actor], key: Any) -> QueryReader:
        """Reads the store of the partition that a key belongs to."""
        self.recover()
        plan = self.plan.actor_of(actor)
        number = partition_of(plan.key_codec.encode(key), self.plan.partitions)
        return QueryReader(self.plan, number, self._service.stores[number])
