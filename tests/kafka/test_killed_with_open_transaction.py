"""A process is killed with a transaction open. Its successor needs the time until the group gives it the tasks, and not that of a transaction."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as At

from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tests.kafka.members import Members, await_tasks, runs
from tests.kafka.versioned_visits import FIRST, TASKS, Visits
from tests.kafka.versions import first
from tests.soak.processes import wait_until

LONG = {"TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS": "900000"}
"""Five times what ``wait_until`` waits for. The session timeout is 6 s."""


def named_producers(log: KafkaLog) -> dict[int, str]:
    """By task, the producer that the group names; see ``log.kafka.process_transaction``."""
    brokers, _, prefix = log.place.removeprefix("kafka://").partition("/")
    plan = first.app.plan()
    with closing(Consumer({"bootstrap.servers": brokers, "group.id": prefix + plan.app})) as group:
        found = group.committed([At(prefix + plan.tape_topic, number) for number in TASKS], 60)
        return {one.partition: (one.metadata or "").partition("\n")[0] for one in found}


def test_the_next_commit_after_a_kill_does_not_wait_for_the_transaction_and_nobody_else_is_fenced(
    kafka_url: str, tmp_path: Path
) -> None:
    visits = Visits(kafka_url)
    with closing(visits.log) as log, closing(Members(kafka_url, tmp_path)) as members:
        killed = members.start(FIRST, "one", "--commit-interval", "400s", environment=LONG)
        await_tasks(killed, 4)
        living = members.start(FIRST, "two", environment=LONG)
        await_tasks(living, 2)
        own = {*runs(living)}
        places = [TopicPartition("visited", number) for number in TASKS]

        def hidden() -> set[int]:
            ends, stable = log._cluster.ends(places), log._cluster.stable_ends(places)
            return {place.partition for place in places if ends[place] > stable[place]}

        visits.feed(400)
        wait_until(
            lambda: all(log._cluster.ends(places).values()) and hidden() == {*TASKS} - own,
            "one commits, one does not",
        )
        before = named_producers(log)
        killed.signal(signal.SIGKILL)
        wait_until(lambda: len(runs(living)) == len(TASKS), "the other has all tasks")
        wait_until(lambda: not hidden(), "nothing is hidden")
        found = visits.await_all()
        counts = {one.key: one.count for part in found for one in part}
        assert counts == {f"k{number}": 4 for number in range(100)}
        assert sum(map(len, found)) == 400
        (producer,) = {*named_producers(log).values()}
        assert {before[number] for number in own} == {producer}
