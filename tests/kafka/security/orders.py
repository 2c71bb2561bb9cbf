"""The shop as a process that connects as a user with few rights, fed and looked at by one who may do everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.reading.stretches import scan
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tests.kafka.bad_input.shop import PLAN, Order, Total
from tests.kafka.broker.cluster import User
from tests.kafka.members import SESSION
from tests.kafka.security.guarded import Access, Guarded, Right, rights_of_service
from tests.soak.processes import Process, wait_until

APP = "tests.kafka.bad_input.shop:app"
KEYS = 7


class Orders:
    """See the head of this file. ``close`` ends its processes."""

    def __init__(self, guarded: Guarded, prefix: str, folder: Path) -> None:
        self.guarded = guarded
        self.prefix = prefix
        self.folder = folder
        self.log = KafkaLog(guarded.url(prefix))
        self.fed = 0
        self._processes: list[Process] = []

    def create_topics(self) -> None:
        """All of them, so that a service needs to create none."""
        prepare_topics(self.log, PLAN, create_declared=True)

    def create_declared(self) -> None:
        """Those that the app declares."""
        for name in ("orders", "totals"):
            self.log.create_topic(name, TopicSettings(PLAN.partitions))

    def rights(self) -> list[Right]:
        """Of the service."""
        return rights_of_service("shop", self.prefix, ["orders"], ["totals"])

    def user(self) -> User:
        """A user with all rights of the service."""
        user = self.guarded.user()
        self.guarded.grant(user, self.rights())
        return user

    def access(self, user: User) -> Access:
        """How a process connects as a user."""
        return self.guarded.access(user, self.prefix)

    def start(self, user: User, *options: object, **environment: str) -> Process:
        """Start the service as a user."""
        access = self.access(user)
        made = Process(
            self.folder / f"service-{len(self._processes)}.log",
            *("tailrace", "run", APP, "--log", access.url, "--state", self.folder / "state"),
            *("--commit-interval", "50ms", *options),
            environment={**SESSION, **access.environment, **environment},
        )
        self._processes.append(made)
        return made

    def feed(self, count: int) -> None:
        """Orders, each a second after the one before."""
        made = [Order(f"k{n % KEYS}", n * 1_000) for n in range(self.fed, self.fed + count)]
        self.log.append_all(
            Output("orders", one.key.encode(), msgspec.json.encode(one), one.at_ms) for one in made
        )
        self.fed += count

    def counts(self) -> dict[str, list[int]]:
        """By key, the counts in the output, in their order."""
        found: dict[str, list[int]] = {}
        for record in self.records("totals"):
            one = msgspec.json.decode(record or b"", type=Total)
            if one.count > 0:
                found.setdefault(one.key, []).append(one.count)
        return found

    def expected(self) -> dict[str, list[int]]:
        """What the counts are to be."""
        numbers = [n % KEYS for n in range(self.fed)]
        return {f"k{key}": [*range(1, numbers.count(key) + 1)] for key in sorted({*numbers})}

    def await_all(self, process: Process, patience_s: float = 120) -> None:
        """Until each order was counted; then each was counted once."""

        def done() -> bool:
            assert process.code() is None, process.text()[-3_000:]
            return sum(map(len, self.counts().values())) >= self.fed

        wait_until(done, "all orders are counted", patience_s)
        assert self.counts() == self.expected()

    def records(self, topic: str) -> Iterator[bytes | None]:
        """The values of all committed records of a topic."""
        for number in range(self.log.partitions(topic)):
            yield from (one.value for one in scan(self.log, topic, number))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self.log.close()
