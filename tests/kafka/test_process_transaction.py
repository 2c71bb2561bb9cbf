"""The tasks of a process share a transaction. A new owner does not wait for what a dead process has left open, and a process that the group
has lost commits nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as At

from tailrace.core.errors import FencedError, LogUnavailableError, TailraceError, TaskOwnedError
from tailrace.core.records import Output
from tailrace.log import Part, TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog, tasks
from tailrace.log.kafka.tasks import KafkaTasks
from tailrace.log.options import LogOptions
from tailrace.log.tasks import AppTasks
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.task_notes import TaskNotes
from tests.kafka import apps
from tests.kafka.outside import Stuck, await_written
from tests.kafka.processes import Members, await_tasks
from tests.log.contract import A, visible
from tests.runtime.processes import wait_until

PLAN = apps.app.plan()
TIMEOUT_S = 600
"""Of transactions: far longer than a test may take."""
LONG = {"producer.transaction.timeout.ms": str(TIMEOUT_S * 1_000)}


class Processes:
    """Members of one group, each with a log of its own, as processes have."""

    def __init__(self, url: str, closing: ExitStack) -> None:
        self._url = url
        self._closing = closing

    def join(self) -> tuple[KafkaLog, KafkaTasks]:
        log = KafkaLog(self._url, LogOptions(settings=LONG))
        self._closing.callback(log.close)
        log.create_topic("a", TopicSettings(1))
        log.create_topic("app.tape", TopicSettings(2))
        member = log.join(AppTasks("app", "app.tape", 2))
        self._closing.callback(member.close)
        await_owned(member, 2)
        return log, member


def await_owned(member: KafkaTasks, count: int) -> None:
    """Until it has all tasks: another is not there, or has left."""

    def looked() -> bool:
        member.look()
        return len(member.owned) == count

    wait_until(looked, "the group has given all tasks")


@pytest.fixture
def processes(kafka_url: str) -> Iterator[Processes]:
    with ExitStack() as closing:
        yield Processes(kafka_url, closing)


def one(value: bytes) -> list[Output]:
    return [Output("a", b"k", value, 7)]


def test_tasks_commit_together_under_one_producer_that_is_not_named_for_a_task_that_was_given_back(
    processes: Processes,
) -> None:
    """What each publishes is under its own name."""
    log, member = processes.join()
    writers = [log.writer("app-0"), log.writer("app-1")]
    named = member.producer(0)
    assert named
    assert member.producer(1) == named
    log.create_topic("b", TopicSettings(1))
    places = [A, TopicPartition("b", 0)]
    for number, writer in enumerate(writers):
        writer.append(one(b"%d" % number))
    assert writers[0].shared is writers[1].shared
    parts = [
        Part(writer, {place: 5}, {"a": mark})
        for writer, place, mark in zip(writers, places, (10, 20), strict=True)
    ]
    assert writers[0].shared.commit(parts, "app") == {A: 2}
    assert visible(log, A) == [b"0", b"1"]
    assert log.committed_offsets("app", places) == dict.fromkeys(places, 5)
    assert log.publications() == {("a", "app-0"): 10, ("a", "app-1"): 20}
    writers[0].close()
    member.close()
    successor = processes.join()[1]
    assert successor.producer(0) == ""
    assert successor.producer(1) == named  # it did not say that it had left this one


def test_a_new_owner_aborts_at_once_what_a_dead_process_has_left_open(processes: Processes) -> None:
    dead, dead_member = processes.join()
    left = dead.writer("app-0")
    left.append(one(b"never"))
    await_written(dead, "a", writer=left)
    dead_member._consumer.close()  # the group learns of it at once; nothing was given back
    begun = time.monotonic()
    log, _ = processes.join()
    writer = log.writer("app-0")
    with pytest.raises(FencedError):
        left.shared._producer.commit({}, "", {})  # not by its process, which knows that it has lost the task
    writer.append(one(b"new"))
    writer.commit()
    wait_until(lambda: visible(log, A) == [b"new"], "what the new owner has written can be read")
    assert time.monotonic() - begun < TIMEOUT_S / 5
    with pytest.raises(FencedError):
        left.commit()
    assert left.lost


def test_a_command_that_reserves_tasks_aborts_what_a_dead_process_has_left_open(
    kafka_url: str, processes: Processes
) -> None:
    dead, dead_member = processes.join()
    left = dead.writer("app-0")
    left.append(one(b"never"))
    await_written(dead, "a", writer=left)
    log = KafkaLog(kafka_url)
    with closing(log):
        with pytest.raises(TaskOwnedError), log.reserve("app", [0]):
            pass
        dead_member._consumer.close()  # the group learns of it at once; nothing was given back
        with log.reserve("app", [1]):
            assert log._cluster.stable_ends([A]) == {A: 0}  # it was asked for another task
        with log.reserve("app", [0]):
            assert log._cluster.stable_ends([A])[A] == log.end_offset("a", 0)
        with log.reserve("never", [0]):
            pass
    with pytest.raises(FencedError):
        left.commit()


def test_a_producer_is_connected_before_it_takes_an_id_over(kafka_url: str) -> None:
    """Otherwise the library asks for the coordinator in vain, and again only after half a second."""
    log, done = KafkaLog(kafka_url), list[str]()
    made = log._connection.producer

    class Watched:
        def __init__(self, producer: Any) -> None:
            self._producer = producer

        def __getattr__(self, name: str) -> Any:
            done.append(name)
            return getattr(self._producer, name)

    def watched(transactional_id: str) -> Any:
        return Watched(made(transactional_id))

    log._connection.producer = watched  # type: ignore[method-assign]
    with closing(log):
        log.writer("some-id").close()
    assert done[:2] == ["list_topics", "init_transactions"]


@pytest.mark.parametrize("lost", ["its producer", "its tasks"])
def test_a_process_makes_another_producer_after_a_loss_and_settles_what_it_left(
    processes: Processes, lost: str
) -> None:
    log, member = processes.join()
    before = log.writer("app-0")
    before.append(one(b"never"))
    if lost == "its producer":  # somebody takes it for dead
        log.writer(member.producer(0)).close()
        with pytest.raises(FencedError):
            before.commit()
    else:  # as the group says when it has given the tasks to others
        member.times_lost += 1
    after = log.writer("app-0")
    assert after.shared is not before.shared
    assert before.lost
    after.append(one(b"new"))
    after.commit()
    assert visible(log, A) == [b"new"]


def test_what_another_process_owns_is_neither_taken_over_nor_committed(processes: Processes) -> None:
    log, member = processes.join()
    writer = log.writer("app-0")
    writer.append(one(b"never"))
    member._numbers.discard(0)
    with pytest.raises(FencedError, match="given to another"):
        writer.commit()
    with pytest.raises(FencedError, match="given the tasks"):
        log.writer("app-0")
    assert visible(log, A) == []


def test_a_watermark_of_a_task_that_moved_holds_only_behind_the_records_of_its_last_owner(
    processes: Processes,
) -> None:
    log, _ = processes.join()
    first = log.writer("app-0")
    first.append(one(b"1"))
    first.shared.commit([Part(first, {}, {"a": 1})], "app")  # the process has learned where the topic ends
    end = log.end_offset(*A)
    first.append(one(b"2"))
    await_written(log, "a", end, first)
    log.append_all(one(b"of the last owner"))
    moved = log.writer("app-1")
    first.shared.commit([Part(first, {}, {}), Part(moved, {}, {"a": 2})], "app")
    with closing(log.reader({A: 0})) as reader:
        read: list[bytes | None] = []

        def holds() -> bool:
            read.extend(record.value for record in reader.fetch(*A, 1).records)
            return any(said.publisher == "app-1" for said in reader.published(*A))

        wait_until(holds, "the watermark holds")
        assert read == [b"1", b"2", b"of the last owner"]


@pytest.mark.parametrize("leaving", [False, True])
def test_a_process_ends_if_the_library_never_returns_from_asking_the_group(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, leaving: bool
) -> None:
    log, member = processes.join()
    consumer: Any = member._consumer
    stuck: Any = Stuck(consumer, "commit")
    member._consumer = stuck
    monkeypatch.setattr(tasks, "_LOOK_S", 0.1)
    if leaving:
        log.limit_patience(0.2)  # as a process does that is to leave
    else:
        monkeypatch.setattr(tasks, "_STUCK_S", 0.2)
    for ask in (member.check, member.check, member.look):
        with pytest.raises(LogUnavailableError, match="does not come back"):
            ask()
    member.close()
    stuck.released.set()
    consumer.close()


def test_an_abort_of_records_that_were_never_sent_leaves_a_writer_that_works(log: KafkaLog) -> None:
    """librdkafka#4849: a coordinator that has heard of none of a transaction's records refuses to end it."""
    log.create_topic("a", TopicSettings(1))
    writer = log.writer("w")
    for _ in range(5):
        writer.append(one(b"never"))
        writer.abort()
    writer.append(one(b"v"))
    writer.commit()
    assert visible(log, A) == [b"v"]
    writer.close()


# --- members that the group has lost

IN, OUT = TopicPartition("in", 0), TopicPartition("out", 0)
SHORT = {"consumer.session.timeout.ms": "5000", "consumer.max.poll.interval.ms": "5000"}
"""A member that does not look for five seconds leaves the group by itself; the library then forgets that it was one."""


def member_of(log: KafkaLog) -> KafkaTasks:
    member = log.join(AppTasks("app", "app.tape", 4))
    await_owned(member, 4)
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
    member._leave([place], may_commit=False)
    member._on_assign([place])
    member._keep(0, "another\nnote")  # what the other owner has left
    assert member.producer(0) == "another"
    member.close()  # it names no producer for the tasks that it has left
    successor = member_of(log)
    assert successor.producer(0) == "another"
    successor.close()
    log.close()


def test_a_process_starts_and_ends_what_one_that_was_killed_in_a_commit_has_left(
    kafka_url: str, tmp_path: Path
) -> None:
    """It does not wait for the end of the transaction anywhere."""
    with (
        closing(KafkaLog(kafka_url, LogOptions(settings=LONG))) as log,
        closing(Members(kafka_url, tmp_path)) as members,
    ):
        prepare_log(log, PLAN, create_declared=True)
        member = log.join(AppTasks(PLAN.app, PLAN.tape_topic, PLAN.partitions))
        await_owned(member, PLAN.partitions)
        notes = TaskNotes(PLAN, member)
        for number in range(PLAN.partitions):
            notes.take(number)
        writer = log.writer(f"{PLAN.app}-0")
        writer.append([Output("totals", b"k", b"never", 7)])
        shared: Any = writer.shared
        producer = shared._producer._producer
        prefix = kafka_url.rpartition("/")[2]
        place = At(f"{prefix}seen", 0, 1)
        producer.send_offsets_to_transaction([place], member.metadata(), 30)  # the next would be the commit
        for name in log.admin.names():
            producer.produce(f"{prefix}{name}", b"never", b"k", 0)
        assert producer.flush(60) == 0
        member._consumer.close()  # the group learns of it at once; nothing was given back
        process = members.start(
            "tests.kafka.apps:app", "next", environment={"SOAK_HIDDEN_S": "600"}, by=("tests.kafka.launched",)
        )
        await_tasks(process, PLAN.partitions)
        assert log.ends(["totals"]), "no transaction is open"
