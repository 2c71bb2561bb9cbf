"""The life of a deployment under a steady load: more processes and fewer, an empty disk, an upgrade, a version that fails and its way back,
brokers that are restarted one after the other, and whatever else strikes. Each event counts once, in its order.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from tests.kafka.broker.cluster import Cluster
from tests.kafka.outside import Outside
from tests.kafka.processes import Members, await_tasks, runs, stopped
from tests.kafka.soak import BROKER_SETTINGS, Plan, Round
from tests.kafka.visits import BROKEN, FIRST, KEYS, PLAN, SECOND, TASKS, UNRELATED, Visits
from tests.lab.upgrade.stage import (
    refused_while_the_old_version_runs,
    upgraded_and_back,
    upgraded_in_a_quiet_hour,
)
from tests.runtime.processes import Process, wait_until

ALL = len(TASKS)


@contextmanager
def load(visits: Visits) -> Generator[Callable[[], None]]:
    """A round of visits every tenth of a second, from a thread. Gives a function that waits until new ones are counted."""
    over = threading.Event()

    def feed() -> None:
        while not over.wait(0.1):
            visits.feed(1)

    def goes_on() -> None:
        before = visits.ends()
        wait_until(lambda: visits.ends() > before + 5 * KEYS, "there are new outputs")

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        goes_on()
        yield goes_on
        goes_on()
    finally:
        over.set()
        thread.join()


def refused(process: Process, *told: str) -> None:
    """It ends with an error that says this, and has run no task."""
    assert process.ended() != 0
    assert [one for one in told if one not in process.text()] == []


def test_nothing_is_lost_or_doubled_in_the_life_of_a_deployment(
    visits: Visits, members: Members, tmp_path: Path
) -> None:
    replaced = "has replaced version '1'"
    one = members.start(FIRST, "one", tasks=ALL)
    other = members.start(UNRELATED, "theirs")  # before the first has committed
    refused(other, "'parcels'", "'came'", "another name")
    assert not runs(other)
    with load(visits) as goes_on:
        others = [members.start(FIRST, name, tasks=1) for name in ("two", "three")]
        goes_on()
        for each in others:
            stopped(each)
        goes_on()
        stopped(one)
        shutil.rmtree(tmp_path / "one")
        one = members.start(FIRST, "one", tasks=ALL)
        goes_on()
        two = members.start(SECOND, "two", tasks=1)  # a rolling upgrade with another state
        stopped(one)
        await_tasks(two, ALL)
        refused(members.start(FIRST, "one"), replaced, "--downgrade")  # the newer runs beside it
        refused(members.start(UNRELATED, "theirs"), "another name")
        stopped(two)
        refused(members.start(BROKEN, "two"), "the tenth")
        two = members.start(SECOND, "two", "--downgrade", tasks=ALL)
    visits.await_all()
    stopped(two)
    stopped(members.start(FIRST, "one", "--downgrade", tasks=ALL))
    Outside(visits.log.place).expire(PLAN.app)
    refused(members.start(SECOND, "two"), replaced)
    one = members.start(FIRST, "one", tasks=ALL)
    visits.feed(1)
    visits.await_all(one)
    stopped(one)
    assert {one.version for one in visits.totals()} >= {1, 2}
    assert visits.rounds * KEYS > 1_000


@pytest.mark.nightly
@pytest.mark.long
def test_the_upgrade_command_and_its_rollback_under_production(kafka_url: str, tmp_path: Path) -> None:
    upgraded_and_back(kafka_url, tmp_path, ["begun", "fenced"], ["begun"])


@pytest.mark.long
def test_nothing_is_lost_doubled_or_late_whatever_strikes(tmp_path: Path) -> None:
    """Two chained services in several processes, under a few faults; the rest is ``python -m tests.kafka.soak``."""
    (tmp_path / "broker").mkdir()
    plan = Plan(1, 3, rich=True, consumer_protocol=True, pause_s=0.3)
    with Cluster(tmp_path / "broker", settings=BROKER_SETTINGS) as cluster:
        report = Round(tmp_path, cluster, plan).run()
    assert report.faults.total() == 3
    assert report.figures.events
    assert report.figures.timers


@pytest.mark.nightly
def test_nothing_is_lost_or_doubled_while_the_brokers_are_restarted_one_after_the_other(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, 3) as cluster:
        admin, visits = AdminClient({**cluster.client}), Visits(f"kafka://{cluster.bootstrap}")
        with closing(visits.log), closing(Members(visits.log.place, tmp_path)) as members:
            started = [members.start(FIRST, name, tasks=1) for name in ("one", "two")]
            with load(visits) as goes_on:
                for node in cluster.nodes:
                    wait_until(lambda: are_in_sync(admin, 3), "all replicas are in sync")
                    node.stop(grace_s=60)
                    goes_on()
                    cluster.start()
                    goes_on()
            visits.await_all(*started)
            for each in started:
                stopped(each)
    assert visits.rounds * KEYS > 1_000


def are_in_sync(admin: AdminClient, size: int) -> bool:
    """Whether each partition of each topic has so many replicas in sync: then the next broker may go."""
    described = admin.describe_topics(TopicCollection([*admin.list_topics(timeout=10).topics])).values()
    return all(len(part.isr) == size for one in described for part in one.result().partitions)


def test_an_upgrade_in_a_quiet_hour(kafka_url: str, tmp_path: Path) -> None:
    upgraded_in_a_quiet_hour(kafka_url, tmp_path)


def test_an_upgrade_that_would_fail_is_refused_while_the_old_version_runs(
    kafka_url: str, tmp_path: Path
) -> None:
    refused_while_the_old_version_runs(kafka_url, tmp_path)
