"""The life of a deployment under a steady load: more processes and fewer, an empty disk, an upgrade, a version that fails and its way back,
brokers that are restarted one after the other.

The oracle is plain counting: each visit of a key counts once, in its order. The longest time without an output is measured for each
step; it is written to the report of the tests, not judged.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from tailrace.core.errors import LogUnavailableError
from tests.kafka.broker.cluster import Cluster
from tests.kafka.members import Members, await_tasks, stopped
from tests.kafka.visits import APP, KEYS, TASKS, Visits
from tests.soak.processes import Process, wait_until

SECOND, BROKEN = (f"tests.kafka.versions.{name}:app" for name in ("second", "broken"))
ALL = len(TASKS)
_EVERY_S = 0.1


class Load:
    """A round of visits every tenth of a second, and when outputs came, in threads."""

    def __init__(self, visits: Visits) -> None:
        self.visits = visits
        self._over = threading.Event()
        self._came_s: list[float] = []
        self._threads = [threading.Thread(target=one) for one in (self._feed, self._look)]

    def __enter__(self) -> Load:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for one in self._threads:
            one.join()

    def _feed(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.visits.feed(1)

    def _look(self) -> None:
        before = 0
        while not self._over.wait(_EVERY_S / 2):
            try:
                now = sum(self.visits.log.end_offset("visited", number) for number in TASKS)
            except LogUnavailableError:
                continue
            if now > before:
                self._came_s.append(time.monotonic())
            before = now

    def gap_s(self, since_s: float) -> float:
        """The longest time without an output since a moment."""
        came_s = [since_s, *(one for one in self._came_s if one >= since_s), time.monotonic()]
        return max(later - one for one, later in pairwise(came_s))

    def goes_on(self) -> None:
        """Until there are new outputs."""
        before = len(self._came_s)
        wait_until(lambda: len(self._came_s) > before + 5, "there are new outputs", 120)


@pytest.fixture
def members(kafka_url: str, tmp_path: Path) -> Iterator[Members]:
    made = Members(kafka_url, tmp_path)
    yield made
    made.close()


def test_nothing_is_lost_or_doubled_in_the_life_of_a_deployment(
    kafka_url: str, members: Members, tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    visits = Visits(kafka_url)
    one = members.start(APP, "one")
    await_tasks(one, ALL)

    def step(name: str, do: Callable[[], Process]) -> Process:
        since_s = time.monotonic()
        left = do()
        load.goes_on()
        record_testsuite_property(f"seconds without an output: {name}", round(load.gap_s(since_s), 2))
        return left

    with Load(visits) as load:
        load.goes_on()

        def three() -> Process:
            others = [members.start(APP, name) for name in ("two", "three")]
            for each in others:
                await_tasks(each, 1)
            load.goes_on()
            for each in others:
                stopped(each)
            return one

        step("from one process to three and back", three)

        def emptied() -> Process:
            stopped(one)
            shutil.rmtree(tmp_path / "one")
            again = members.start(APP, "one")
            await_tasks(again, ALL)
            return again

        only = step("a process that lost its disk", emptied)

        def upgraded() -> Process:
            new = members.start(SECOND, "two")
            await_tasks(new, 1)
            stopped(only)
            await_tasks(new, ALL)
            return new

        only = step("a rolling upgrade with another state", upgraded)

        def rolled_back() -> Process:
            stopped(only)
            wrong = members.start(BROKEN, "two")
            assert wrong.ended() != 0
            assert "the tenth" in wrong.text()
            back = members.start(SECOND, "two", "--downgrade")
            await_tasks(back, ALL)
            return back

        only = step("a version that fails, rolled back", rolled_back)
    visits.await_all()
    stopped(only)
    assert visits.rounds * KEYS > 1_000
    visits.log.close()


def test_nothing_is_lost_or_doubled_while_the_brokers_are_restarted_one_after_the_other(
    tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    with Cluster(tmp_path, 3) as cluster:
        url = f"kafka://{cluster.bootstrap}"
        admin = AdminClient({**cluster.client})
        visits = Visits(url)
        members = Members(url, tmp_path)
        try:
            started = [members.start(APP, name) for name in ("one", "two")]
            for each in started:
                await_tasks(each, 1)
            with Load(visits) as load:
                for node in cluster.nodes:
                    load.goes_on()
                    wait_until(lambda: are_in_sync(admin, 3), "all replicas are in sync", 120)
                    since_s = time.monotonic()
                    node.stop(grace_s=60)
                    load.goes_on()
                    cluster.start()
                    wait_until(lambda: are_in_sync(admin, 3), "all replicas are in sync", 120)
                    load.goes_on()
                    gap_s = round(load.gap_s(since_s), 2)
                    record_testsuite_property(
                        f"seconds without an output: broker {node.number} restarted", gap_s
                    )
            visits.await_all()
            for each in started:
                stopped(each)
        finally:
            members.close()
            visits.log.close()
    assert visits.rounds * KEYS > 1_000


def are_in_sync(admin: AdminClient, size: int) -> bool:
    """Whether each partition of each topic has so many replicas in sync: then the next broker may go."""
    described = admin.describe_topics(TopicCollection([*admin.list_topics(timeout=10).topics])).values()
    return all(len(part.isr) == size for one in described for part in one.result().partitions)
