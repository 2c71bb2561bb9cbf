"""The life of a deployment under a steady load: more processes and fewer, an empty disk, an upgrade, a version that fails and its way back,
brokers that are restarted one after the other.

The oracle is plain counting: each visit of a key counts once, in its order. The longest time without an output is measured for each
step; it is written to the report of the tests, not judged.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from tailrace.core.errors import LogUnavailableError
from tests.kafka.broker.cluster import Cluster
from tests.kafka.outside import Outside
from tests.kafka.processes import Members, await_tasks, runs, stopped
from tests.kafka.visits import BROKEN, FIRST, KEYS, PLAN, SECOND, TASKS, UNRELATED, Visits
from tests.lab.upgrade.stage import upgraded_and_back
from tests.runtime.processes import Process, wait_until

ALL = len(TASKS)
Record = Callable[[str, object], None]
_EVERY_S = 0.1


class Load:
    """A round of visits every tenth of a second, and when outputs came, in threads."""

    def __init__(self, visits: Visits, record: Record) -> None:
        self.visits = visits
        self._record = record
        self._over = threading.Event()
        self._came_s: list[float] = []
        self._threads = [threading.Thread(target=one) for one in (self._feed, self._look)]

    def __enter__(self) -> Load:
        for one in self._threads:
            one.start()
        self.goes_on()
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

    def goes_on(self) -> None:
        """Until there are new outputs."""
        before = len(self._came_s)
        wait_until(lambda: len(self._came_s) > before + 5, "there are new outputs", 120)

    @contextmanager
    def step(self, name: str) -> Generator[None]:
        """Something happens, after which there are new outputs. The longest time without one is recorded."""
        since_s = time.monotonic()
        yield
        self.goes_on()
        came_s = [since_s, *(one for one in self._came_s if one >= since_s), time.monotonic()]
        gap_s = max(later - one for one, later in pairwise(came_s))
        self._record(f"seconds without an output: {name}", round(gap_s, 2))


def refused(process: Process, *told: str) -> None:
    """It ends with an error that says this, and has run no task."""
    assert process.ended() != 0
    assert [one for one in told if one not in process.text()] == []


def test_nothing_is_lost_or_doubled_in_the_life_of_a_deployment(
    kafka_url: str, tmp_path: Path, record_testsuite_property: Record
) -> None:
    visits = Visits(kafka_url)
    replaced = "has replaced version '1'"
    with closing(visits.log), closing(Members(kafka_url, tmp_path)) as members:

        def start(app: str, name: str, *options: object, tasks: int = ALL) -> Process:
            made = members.start(app, name, *options)
            await_tasks(made, tasks)
            return made

        one = start(FIRST, "one")
        other = members.start(UNRELATED, "theirs")  # before the first has committed
        refused(other, "'parcels'", "'came'", "another name")
        assert not runs(other)
        with Load(visits, record_testsuite_property) as load:
            with load.step("from one process to three and back"):
                others = [members.start(FIRST, name) for name in ("two", "three")]
                for each in others:
                    await_tasks(each, 1)
                load.goes_on()
                for each in others:
                    stopped(each)
            with load.step("a process that lost its disk"):
                stopped(one)
                shutil.rmtree(tmp_path / "one")
                one = start(FIRST, "one")
            with load.step("a rolling upgrade with another state"):
                two = start(SECOND, "two", tasks=1)
                stopped(one)
                await_tasks(two, ALL)
            refused(members.start(FIRST, "one"), replaced, "--downgrade")  # the newer runs beside it
            refused(members.start(UNRELATED, "theirs"), "another name")
            with load.step("a version that fails, rolled back"):
                stopped(two)
                refused(members.start(BROKEN, "two"), "the tenth")
                two = start(SECOND, "two", "--downgrade")
        visits.await_all()
        stopped(two)
        stopped(start(FIRST, "one", "--downgrade"))
        Outside(kafka_url).expire(PLAN.app)
        refused(members.start(SECOND, "two"), replaced)
        one = start(FIRST, "one")
        visits.feed(1)
        visits.await_all()
        stopped(one)
        assert {one.version for one in visits.totals()} >= {1, 2}
        assert visits.rounds * KEYS > 1_000


@pytest.mark.long
def test_the_upgrade_command_and_its_rollback_under_production(kafka_url: str, tmp_path: Path) -> None:
    upgraded_and_back(kafka_url, tmp_path, ["begun", "fenced"], ["begun"])


@pytest.mark.nightly
def test_nothing_is_lost_or_doubled_while_the_brokers_are_restarted_one_after_the_other(
    tmp_path: Path, record_testsuite_property: Record
) -> None:
    with Cluster(tmp_path, 3) as cluster:
        admin, visits = AdminClient({**cluster.client}), Visits(f"kafka://{cluster.bootstrap}")
        with closing(visits.log), closing(Members(visits.log.place, tmp_path)) as members:
            started = [members.start(FIRST, name) for name in ("one", "two")]
            for each in started:
                await_tasks(each, 1)
            with Load(visits, record_testsuite_property) as load:
                for node in cluster.nodes:
                    wait_until(lambda: are_in_sync(admin, 3), "all replicas are in sync", 120)
                    with load.step(f"broker {node.number} restarted"):
                        node.stop(grace_s=60)
                        load.goes_on()
                        cluster.start()
            visits.await_all()
            for each in started:
                stopped(each)
    assert visits.rounds * KEYS > 1_000


def are_in_sync(admin: AdminClient, size: int) -> bool:
    """Whether each partition of each topic has so many replicas in sync: then the next broker may go."""
    described = admin.describe_topics(TopicCollection([*admin.list_topics(timeout=10).topics])).values()
    return all(len(part.isr) == size for one in described for part in one.result().partitions)
