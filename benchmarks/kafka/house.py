"""A house on Kafka: topics of its own on a broker, a folder for state, and services that are fed and observed.

All events of a lump are appended in one transaction, so a service gets them at once. It is done when the committed offsets of its
group are behind the last event. Offsets tell no number of records, as the markers of transactions have offsets, too: ``count``
reads the records.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from typing import Self

import tailrace as tr
from benchmarks.kafka.broker import broker
from benchmarks.served.house import AT_ONCE, Taken
from benchmarks.served.service import Service, wait_until
from tailrace.core.records import Output
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.connection import Connection
from tailrace.runtime.preparing import prepare_log

LOOK_S = 0.02


class KafkaHouse:
    """See the head of this file. A context manager; at its end the topics and the folder are removed."""

    def __init__(self, *of: tr.App) -> None:
        self._closing = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
        self._closing.callback(shutil.rmtree, self.folder)
        self.url = f"kafka://{self._closing.enter_context(broker())}/bench-{secrets.token_hex(4)}."
        self._closing.callback(self._delete_topics)
        self.log = KafkaLog(self.url)
        self._closing.callback(self.log.close)
        for app in of:
            prepare_log(self.log, app.plan(), create_declared=True)
        self._writer = self.log.writer("feed")
        self._closing.callback(self._writer.close)
        self._numbers = count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def start(
        self, app: str, commit_ms: int, *arguments: object, state: str = "state", **settings: object
    ) -> Service:
        """Start an app, given as ``package.module:name``. Does not wait for its partitions. ``settings`` are environment variables."""
        return Service(
            self.folder / f"said-{next(self._numbers)}",
            app,
            *("--log", self.url, "--state", self.folder / state),
            *("--commit-interval", f"{commit_ms}ms", *arguments),
            environment={name: str(value) for name, value in settings.items()},
        )

    def feed(self, records: Iterable[Output]) -> tuple[int, dict[TopicPartition, int]]:
        """Append records in one transaction. Returns their number, and by partition the position after the last of them."""
        rest, fed = iter(records), 0
        while some := list(islice(rest, AT_ONCE)):
            self._writer.append(some)
            fed += len(some)
        return fed, dict(self._writer.commit())

    def take(
        self,
        services: Iterable[Service],
        group: str,
        records: Iterable[Output],
        *,
        after: Iterable[Output] = (),
        look: Callable[[], None] = lambda: None,
    ) -> Taken:
        """Feed services of one group, and wait until all events are committed, and the services are idle again. ``look`` is called
        now and then while they work. Events ``after`` them let an ordered actor handle the others, and are not waited for.
        """
        working = list(services)
        began_s = sum(one.processor_s() for one in working)
        fed, ends = self.feed(records)
        self.feed(after)
        start = time.perf_counter()
        before, seen = self.taken(group, ends), list[tuple[int, float]]()

        reached = before

        def has_moved() -> bool:
            nonlocal reached
            time.sleep(LOOK_S)  # each question is work for the broker
            look()
            last, reached = reached, self.taken(group, ends)
            passed, at_s = _sum(reached) - _sum(before), time.perf_counter() - start
            if _behind(reached, ends) >= 0.1 * fed or not seen:
                seen.append((passed, at_s))
            return reached != last

        for one in working:
            one.require_life()
        while _behind(reached, ends):
            wait_until(has_moved, f"more of {fed:,} events are committed", working[0])
        took_s = time.perf_counter() - start
        for one in working:
            one.settle()
        done, at_s = max(seen, default=(0, 0.0))
        wall_rate = done / at_s if done else fed / took_s
        return Taken(fed, sum(one.processor_s() for one in working) - began_s, wall_rate)

    def taken(self, group: str, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed positions of a group."""
        found = self.log.committed_offsets(group, places)
        return {place: found.get(place, 0) for place in places}

    def count(self, topic: str) -> int:
        """The number of committed records of a topic."""
        found = 0
        for number in range(self.log.partitions(topic)):
            place = TopicPartition(topic, number)
            reader = self.log.reader({place: 0})
            while records := reader.fetch(*place, AT_ONCE).records:
                found += len(records)
            reader.close()
        return found

    def _delete_topics(self) -> None:
        connection = Connection(self.url)
        admin = connection.admin()
        names = [name for name in admin.list_topics(timeout=60).topics if name.startswith(connection.prefix)]
        for answer in admin.delete_topics(names).values():
            answer.result()


def _sum(offsets: Mapping[TopicPartition, int]) -> int:
    return sum(offsets.values())


def _behind(done: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    return sum(max(0, end - done[place]) for place, end in ends.items())
