"""Versions of an app that counts visits."""

from __future__ import annotations

from contextlib import closing

import msgspec

from tailrace.core.records import Output
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tests.kafka.versions import first, unrelated
from tests.kafka.versions.events import Total
from tests.soak.processes import wait_until

FIRST, SECOND, UNRELATED = (f"tests.kafka.versions.{name}:app" for name in ("first", "second", "unrelated"))


TASKS = range(4)


class Visits:
    """The topics of the app."""

    def __init__(self, url: str) -> None:
        self.log = KafkaLog(url)
        self.fed = 0
        for app in (first.app, unrelated.app):
            prepare_log(self.log, app.plan(), create_declared=True)

    def feed(self, count: int) -> None:
        """Events of 100 keys."""
        self.log.append_all(
            Output(
                "came",
                b"k%d" % (number % 100),
                b'{"key":"k%d","at_ms":%d}' % (number % 100, number + 1),
                number + 1,
            )
            for number in range(self.fed, self.fed + count)
        )
        self.fed += count

    def totals(self) -> list[list[Total]]:
        """The outputs of all tasks."""
        found: list[list[Total]] = []
        for number in TASKS:
            with closing(self.log.reader({TopicPartition("visited", number): 0})) as reader:
                records: list[Total] = []
                while some := reader.fetch("visited", number, 10_000).records:
                    records += [msgspec.json.decode(one.value or b"", type=Total) for one in some]
                found.append(records)
        return found

    def await_all(self) -> list[list[Total]]:
        """The outputs, once all events have been handled."""
        wait_until(lambda: sum(map(len, self.totals())) >= self.fed, "all events are handled")
        return self.totals()
