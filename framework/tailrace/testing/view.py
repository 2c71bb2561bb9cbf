"""What a test can look at: what a service has emitted, and the state it has committed.

Everything here is read from the log and the stores, where a consumer or a restart would find it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

from tailrace.core import rows
from tailrace.core.declare.actor import Actor
from tailrace.core.declare.app import App
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Topic
from tailrace.core.engine.query import Reader
from tailrace.core.handling.promises import Behind
from tailrace.core.values.partitioner import partition_of
from tailrace.testing.emitted import DeadLetter, Emitted, dead_letter
from tailrace.testing.memory_log import MemoryLog
from tailrace.testing.replaying import ReplayReport, check_hash_seed, replay
from tailrace.testing.service import Service

E = TypeVar("E")
A = TypeVar("A", bound=Actor)


class View(ABC):
    """Looks at a service. Looking at state starts a service that is down, but lets nothing happen in it."""

    def __init__(self, app: App, plan: Plan, log: MemoryLog, service: Service) -> None:
        self._app = app
        self.plan = plan
        self.log = log
        """The log, for what is not offered here."""
        self._service = service

    @abstractmethod
    def recover(self) -> None:
        """Start the service, if it is down."""

    def emitted(self, topic: Topic[E, Any]) -> list[E]:
        """All events emitted to a topic so far, as far as they are committed."""
        return Emitted(self._service.visible).to(topic)

    def state(self, actor: type[A], key: Any) -> A | None:
        """The committed instance of a key, or None if it has none. A copy, whose map and list states can be read."""
        instance: A | None = self._reader(actor, key).instance(actor, key)
        return instance

    def keys(self, actor: type[Actor]) -> list[Any]:
        """The keys that have an instance, in the order of their bytes."""
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
        """The pending timers of a key, committed: ("event" or "processing", name, or time if unnamed) -> due time."""
        return self._reader(actor, key).timers(actor, key)

    def query(self, actor: type[Actor], key: Any, name: str, *arguments: Any) -> Any:
        """Ask the committed instance of a key. Raises QueryError as a live service does."""
        return self._reader(actor, key).query(actor, key, name, *arguments)

    def watermark(self, partition: int = 0, *, actor: type[Actor] | None = None) -> int:
        """How far one partition's task has come: the least watermark of its actors and functions, or that of one actor.

        Each actor goes by its own inputs alone. It is ``tr.NO_WATERMARK`` before its first event.
        """
        self.recover()
        task = self._service.task(partition)
        if actor is None:
            return task.watermark
        return task.watermarks.of_operator[self.plan.actor_of(actor).index]

    @property
    def late(self) -> int:
        """How many late events there have been."""
        self.recover()
        return sum(one.task.totals.late for one in self._service.partitions)

    @property
    def behind(self) -> Mapping[Behind, int]:
        """How many events were emitted behind the watermark published for their topic, by topic and handler.

        Counted since the last start, from the first commit on. Who follows the topic finds them late.
        """
        self.recover()
        return sum((Counter(one.behind) for one in self._service.partitions), Counter[Behind]())

    @property
    def metrics(self) -> dict[str, float | list[float]]:
        """The user's metrics, committed: the sum of a count, the last value of a gauge, all that were observed."""
        return {
            name: list(value) if isinstance(value, list) else value
            for name, value in self._service.metrics.items()
        }

    def dead_letters(self) -> list[DeadLetter]:
        """The committed dead letters, by the partition of their key."""
        return [dead_letter(record) for record in self.log.read(self.plan.dead_letters_topic)]

    def replay(self, *, hash_seed: bool | None = None) -> ReplayReport:
        """Do everything that was committed again, along the tape and from its beginning, and compare byte by byte.

        Then the same in another process, which has another hash seed: that finds what depends on the order of a set or on
        ``hash()`` (see ``other_seed``). The app must be an attribute of a module, which that process imports. Where it is
        not, its handlers are read for what may depend on the seed (see ``hash_order``), and a HashOrderWarning tells.
        With ``hash_seed=True`` such an app is a UsageError; ``hash_seed=False`` leaves all of this out, for an app that
        depends on what a test has patched in its module.

        Raises ReplayDivergedError, which names the first difference, in state, outputs or positions.
        """
        self.recover()
        settings = self._service.options.task
        report = replay(self.plan, self.log, self._service.stores, settings)
        if hash_seed is not False:
            check_hash_seed(self._app, self.plan, self.log, settings, report, must=bool(hash_seed))
        return report

    def _reader(self, actor: type[Actor], key: Any) -> Reader:
        """Reads the store of the partition that a key belongs to."""
        self.recover()
        plan = self.plan.actor_of(actor)
        number = partition_of(plan.key_codec.encode(key), self.plan.partitions)
        return Reader(self.plan, number, self._service.stores[number])
