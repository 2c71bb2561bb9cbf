"""A process that is stopped exits with 0, even if another process has taken its tasks over. Tasks are given back without the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from secrets import token_hex

import msgspec
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as At

from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log.kafka import KafkaLog
from tests.kafka import apps
from tests.kafka.bad_input import shop
from tests.kafka.members import Members, await_tasks, runs, said, stopped
from tests.soak.processes import limit_files, wait_until

APP = "tests.kafka.apps:app"
PLAN = apps.app.plan()
TASKS = range(PLAN.partitions)
LONG = {"TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS": "900000"}


@pytest.fixture
def log(kafka_url: str) -> Iterator[KafkaLog]:
    with closing(KafkaLog(kafka_url)) as made:
        prepare_topics(made, PLAN, create_declared=True)
        yield made


@pytest.fixture
def members(kafka_url: str, tmp_path: Path) -> Iterator[Members]:
    with closing(Members(kafka_url, tmp_path)) as made:
        yield made


def producer_of(log: KafkaLog) -> str:
    """The transactional id of the process that has all tasks; see ``log.kafka.tasks``."""
    brokers, _, prefix = log.place.removeprefix("kafka://").partition("/")
    group = Consumer({"bootstrap.servers": brokers, "group.id": prefix + PLAN.app})
    with closing(group):
        places = [At(prefix + PLAN.tape_topic, number) for number in TASKS]
        (name,) = {(one.metadata or "").partition("\n")[0] for one in group.committed(places, 60)}
    assert name
    return str(name)


def test_a_process_that_was_fenced_leaves_in_good_order(log: KafkaLog, members: Members) -> None:
    process = members.start(APP, "one", "--commit-interval", "400s", environment=LONG)
    await_tasks(process, PLAN.partitions)
    log.append_all(
        Output("seen", b"k%d" % key, b'{"key":"k%d","at_ms":%d}' % (key, at_ms), at_ms)
        for key, at_ms in ((number % 50, 1_000_000 + 100 * number) for number in range(1_000))
    )
    wait_until(lambda: any(log.end_offset("totals", number) for number in TASKS), "work waits for a commit")
    log.writer(producer_of(log)).close()  # as the next owner of one of its tasks does
    stopped(process)
    assert said(process, "left")
    assert "a partition left without a commit" in process.text()


def test_a_full_disk_does_not_end_a_process_that_gives_tasks_back(
    kafka_url: str, members: Members, tmp_path: Path
) -> None:
    reference, every = "tests.kafka.bad_input.shop:app", "100000"
    with closing(KafkaLog(kafka_url)) as log:
        prepare_topics(log, shop.PLAN, create_declared=True)
        notes = [f"keep {token_hex(25_000)}" for _ in range(40)]

        def order(first: int) -> None:
            log.append_all(
                Output("orders", one.key.encode(), msgspec.json.encode(one), one.at_ms)
                for one in (
                    shop.Order(f"k{n % 10}", (first + n) * 1_000, note) for n, note in enumerate(notes)
                )
            )

        def counts() -> dict[str, int]:
            found: dict[str, int] = {}
            for number in range(log.partitions("totals")):
                for value in shop.read(log, "totals", number):
                    one = msgspec.json.decode(value or b"", type=shop.Total)
                    found[one.key] = max(found.get(one.key, 0), one.count)
            return found

        order(0)
        full = members.start(reference, "full", "--store-every", every)
        await_tasks(full, 2)
        wait_until(lambda: counts() == {f"k{n}": 4 for n in range(10)}, "all is committed")
        limit_files(full.pid, 256 << 10)  # its log is smaller, its state is larger
        other = members.start(reference, "other")
        await_tasks(other, 1)
        (line,) = said(full, "tasks were given back")
        assert line["partitions"] == runs(other)
        assert "left without writing its state folder" in full.text()
        order(100)
        wait_until(lambda: counts() == {f"k{n}": 8 for n in range(10)}, "both have taken all")
        stopped(other)
        await_tasks(full, 3)  # it restores the task again
        stopped(full)
