"""Events for the app of ``versions.first``, and what it has counted, against plain counting."""

from __future__ import annotations

import msgspec

from tailrace.core.errors import LogUnavailableError
from tailrace.core.records import Output
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tests.kafka.bad_input.shop import read
from tests.kafka.versions import first
from tests.kafka.versions.events import Total
from tests.soak.processes import wait_until

APP = "tests.kafka.versions.first:app"
KEYS = 50
TASKS = range(4)


class Visits:
    """Feeds rounds: one event of each key."""

    def __init__(self, url: str) -> None:
        self.log = KafkaLog(url)
        self.rounds = 0
        prepare_log(self.log, first.app.plan(), create_declared=True)

    def feed(self, rounds: int) -> None:
        """Append events."""
        numbers = range(self.rounds * KEYS, (self.rounds + rounds) * KEYS)
        made = [
            Output("came", b"k%d" % (n % KEYS), b'{"key":"k%d","at_ms":%d}' % (n % KEYS, n + 1), n + 1)
            for n in numbers
        ]

        def is_appended() -> bool:
            try:
                self.log.append_all(made)
            except LogUnavailableError:  # nothing was
                return False
            return True

        wait_until(is_appended, "the events are appended")
        self.rounds += rounds

    def counts(self) -> dict[str, list[int]]:
        """By key, in the order of the output."""
        found: dict[str, list[int]] = {}
        for number in TASKS:
            for value in read(self.log, "visited", number):
                one = msgspec.json.decode(value or b"", type=Total)
                found.setdefault(one.key, []).append(one.count)
        return found

    def await_all(self, patience_s: float = 120) -> None:
        """Until all are counted; then each was counted once."""
        wait_until(
            lambda: sum(map(len, self.counts().values())) >= self.rounds * KEYS,
            "all events are counted",
            patience_s,
        )
        assert self.counts() == {f"k{n}": [*range(1, self.rounds + 1)] for n in range(KEYS)}

    def is_open(self) -> bool:
        """Whether a transaction with outputs is open."""
        places = [TopicPartition("visited", number) for number in TASKS]
        return self.log._cluster.ends(places) != self.log._cluster.stable_ends(places)
