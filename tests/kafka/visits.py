"""Events for the versions of the app that counts visits, and what it has counted, against plain counting."""

from __future__ import annotations

import msgspec

from tailrace.core.errors import LogUnavailableError
from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tests.kafka import apps
from tests.runtime.processes import Process, wait_until

FIRST, SECOND, BROKEN, UNRELATED = (
    f"tests.kafka.apps:{name}" for name in ("first", "second", "broken", "unrelated")
)
PLAN = apps.first.plan()
KEYS = 50
TASKS = range(PLAN.partitions)


class Visits:
    """Feeds rounds: one event of each key."""

    def __init__(self, url: str, *, prepared: bool = True) -> None:
        self.log = KafkaLog(url)
        self.rounds = 0
        for app in (apps.first, apps.unrelated) if prepared else ():
            prepare_log(self.log, app.plan(), create_declared=True)

    def next(self, rounds: int) -> list[Output]:
        """The events of the next rounds."""
        numbers = range(self.rounds * KEYS, (self.rounds + rounds) * KEYS)
        self.rounds += rounds
        return [
            Output("came", b"k%d" % (n % KEYS), b'{"key":"k%d","at_ms":%d}' % (n % KEYS, n + 1), n + 1)
            for n in numbers
        ]

    def feed(self, rounds: int) -> None:
        """Append events."""
        made = self.next(rounds)

        def is_appended() -> bool:
            try:
                self.log.append_all(made)
            except LogUnavailableError:  # nothing was
                return False
            return True

        wait_until(is_appended, "the events are appended")

    def ends(self) -> int:
        """Where the outputs end, all partitions together."""
        return sum(self.log.end_offset("visited", number) for number in TASKS)

    def totals(self) -> list[apps.Visited]:
        """The outputs, those of a key in their order."""
        return [
            msgspec.json.decode(one.value or b"", type=apps.Visited)
            for number in TASKS
            for one in scan(self.log, "visited", number)
        ]

    def counts(self) -> dict[str, list[int]]:
        """By key, in the order of the output."""
        found: dict[str, list[int]] = {}
        for one in self.totals():
            found.setdefault(one.key, []).append(one.count)
        return found

    def await_all(self, *processes: Process) -> None:
        """Until all are counted, while processes live; then each was counted once."""

        def are_counted() -> bool:
            assert all(one.code() is None for one in processes), [one.text()[-3_000:] for one in processes]
            return sum(map(len, self.counts().values())) >= self.rounds * KEYS

        wait_until(are_counted, "all events are counted")
        assert self.counts() == {f"k{n}": [*range(1, self.rounds + 1)] for n in range(KEYS)}

    def hidden(self) -> set[int]:
        """The tasks whose outputs end in a transaction that is open."""
        places = [TopicPartition("visited", number) for number in TASKS]
        ends, stable = self.log._cluster.ends(places), self.log._cluster.stable_ends(places)
        return {place.partition for place in places if ends[place] > stable[place]}
