"""Kafka deletes the offsets of a group that has had no member for a week, and with them all notes that are kept there: where an app began,
where it left an input, which version had a task. Nothing is skipped or taken twice then, and no older version continues.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient

from tailrace.core.errors import OffsetGoneError, TopicReplacedError
from tailrace.history.reading.same_topics import check_history
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tests.history.tills import EVERY, KEYS, Tills, tills
from tests.kafka.expiring import expire
from tests.kafka.members import Members, await_tasks, stopped
from tests.kafka.versioned_visits import FIRST, SECOND, Visits
from tests.soak.processes import wait_until


class Service(Tills):
    """The app on Kafka, whose group loses its offsets."""

    log: KafkaLog

    def __init__(self, url: str) -> None:
        super().__init__(KafkaLog(url))
        self.prefix = url.rpartition("/")[2]
        self.admin = AdminClient({"bootstrap.servers": url.split("//")[1].split("/", maxsplit=1)[0]})

    def expire(self) -> None:
        """As after a week without a process."""
        expire(self.admin, self.log, "tills")

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """As retention does."""
        for done in self.admin.delete_records([At(f"{self.prefix}{topic}", partition, offset)]).values():
            done.result()


@pytest.mark.parametrize("prepare", [True, False], ids=["at a start", "of a process that runs for longer"])
def test_records_that_were_deleted_before_a_task_has_committed_anything_are_missed(
    kafka_url: str, prepare: bool
) -> None:
    service = Service(kafka_url)
    service.pay("cash", KEYS[0], 10)
    service.run("cash", "cards")
    if service.log.end_offset("tills.tape", 1):
        pytest.fail("partition 1 has committed: the test shows nothing")
    service.expire()
    service.pay("cash", KEYS[1], 5)
    service.delete_before("cash", 1, 3)
    with pytest.raises(OffsetGoneError, match="deleted offsets 0 to 2 of 'cash' partition 1"):
        service.run("cash", "cards", prepare=prepare)
    service.paid.subtract([KEYS[1][n % len(KEYS[1])] for n in range(3)])
    service.run("cash", "cards", prepare=prepare, after_deleted=True)


def test_an_app_that_has_never_run_begins_with_what_is_there(kafka_url: str) -> None:
    service = Service(kafka_url)
    service.pay("cash", KEYS[1], 5)
    service.delete_before("cash", 1, 3)
    service.expire()
    service.paid.subtract([KEYS[1][n % len(KEYS[1])] for n in range(3)])
    service.run("cash", "cards")


def test_an_input_that_is_declared_again_continues_where_it_was_left(kafka_url: str) -> None:
    service = Service(kafka_url)
    service.pay("cash", EVERY, 40)
    service.pay("cards", EVERY, 40)
    service.run("cash", "cards")
    for _ in range(2):  # also after further commits
        service.pay("cash", EVERY, 40)
        service.run("cash")
        service.expire()
    service.pay("cards", EVERY, 40)
    service.run("cash", "cards")


@pytest.mark.parametrize("runs", [1, 2], ids=["at once", "after further starts"])
def test_an_input_that_is_declared_again_must_be_the_topic_that_was_left(kafka_url: str, runs: int) -> None:
    """The position where it was left would skip the first records of a new topic."""
    service = Service(kafka_url)
    service.pay("cash", EVERY, 40)
    service.pay("cards", EVERY, 40)
    service.run("cash", "cards")
    for _ in range(runs):
        service.pay("cash", EVERY, 40)
        service.run("cash")
    for done in service.admin.delete_topics([f"{service.prefix}cards"]).values():
        done.result()
    wait_until(lambda: "cards" not in service.log.topics(), "the topic is deleted")
    service.expire()
    service.pay("cash", EVERY, 40)
    service.run("cash")
    service.log.close()
    service.log = KafkaLog(kafka_url)
    prepare_log(service.log, tills("cash", "cards"), create_declared=True)
    service.pay("cards", EVERY, 100)
    with pytest.raises(TopicReplacedError, match=r"deleted and created again since the app.*topic 'cards'"):
        check_history("tills", service.log, tills("cash", "cards").inputs)
    check_history("tills", service.log, tills("cash").inputs)  # without it, its history can be read
    with pytest.raises(TopicReplacedError, match=r"deleted and created again since the app.*topic 'cards'"):
        service.run("cash", "cards")


def test_an_older_version_does_not_continue_what_a_newer_one_has_committed(
    kafka_url: str, tmp_path: Path
) -> None:
    visits, members = Visits(kafka_url), Members(kafka_url, tmp_path)
    try:
        for version in (FIRST, SECOND):
            visits.feed(500)
            service = members.start(version, version)
            await_tasks(service, 4)
            visits.await_all()
            stopped(service)
        admin = AdminClient({"bootstrap.servers": kafka_url.split("//")[1].split("/", maxsplit=1)[0]})
        for done in admin.delete_consumer_groups([f"{kafka_url.rpartition('/')[2]}visits"]).values():
            done.result()
        old = members.start(FIRST, FIRST)
        assert old.ended() != 0
        assert "has replaced version '1'" in old.text()
        new = members.start(SECOND, SECOND)
        await_tasks(new, 4)
        stopped(new)
    finally:
        members.close()
        visits.log.close()
