"""A process that the group has lost commits nothing, although its transactional id is still its own."""

from __future__ import annotations

import pytest

from tailrace.core.errors import FencedError, TailraceError
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.tasks import KafkaTasks
from tailrace.log.options import LogOptions
from tailrace.log.tasks import AppTasks
from tests.log.contract import visible
from tests.soak.processes import wait_until

IN, OUT = TopicPartition("in", 0), TopicPartition("out", 0)
SHORT = {"consumer.session.timeout.ms": "5000", "consumer.max.poll.interval.ms": "5000"}
"""A member that does not look for five seconds leaves the group by itself; the library then forgets that it was one."""


def member_of(log: KafkaLog) -> KafkaTasks:
    """A member that has all tasks: another is not there, or has left."""
    member = log.join(AppTasks("app", "app.tape", 4))

    def has_tasks() -> bool:
        member.look()
        return len(member.owned) == 4

    wait_until(has_tasks, "the group has given all tasks")
    return member


def test_a_member_that_has_left_by_a_time_out_is_refused(kafka_url: str) -> None:
    log, other = KafkaLog(kafka_url, LogOptions(settings=SHORT)), KafkaLog(kafka_url)
    for name, count in (("in", 1), ("out", 1), ("app.tape", 4)):
        log.create_topic(name, TopicSettings(count))
    member = member_of(log)
    writer = log.writer("app-0")
    writer.append([Output("out", b"k", b"1", 7)])
    writer.commit({IN: 1}, "app")
    writer.append([Output("out", b"k", b"2", 7)])
    successor = member_of(other)
    with pytest.raises(FencedError):
        writer.commit({IN: 2}, "app")
    with pytest.raises(TailraceError):
        member.check()
    other.writer("app-0").close()  # what a new owner does first: it ends the transaction that was left open
    assert visible(log, OUT) == [b"1"]
    assert log.committed_offsets("app", [IN]) == {IN: 1}
    for one in (member, successor, log, other):
        one.close()


def test_the_producer_of_a_task_that_was_lost_meanwhile_stays_named(kafka_url: str) -> None:
    """The task was left without open records, lost, and had another owner. The next owner must still fence that one."""
    log = KafkaLog(kafka_url)
    log.create_topic("app.tape", TopicSettings(4))
    member = member_of(log)
    log.writer("app-0").close()
    assert member.settled == {0}
    place = member._at(0, "")
    member._on_lost([place])
    member._on_assign([place])
    member._keep(0, "another\nnote")  # what the other owner has left
    assert member.producer(0) == "another"
    member.close()  # it names no producer for the tasks that it has left
    successor = member_of(log)
    assert successor.producer(0) == "another"
    successor.close()
    log.close()
