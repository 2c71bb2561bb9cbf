"""A process starts although another was killed within a commit, and the offsets of the group are in the transaction that it left open."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition as At

from tailrace.core.records import Output
from tailrace.log.kafka import KafkaLog
from tailrace.log.options import LogOptions
from tailrace.log.tasks import AppTasks
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.task_notes import TaskNotes
from tests.kafka import apps
from tests.kafka.members import Members, await_tasks
from tests.soak.processes import wait_until

PLAN = apps.app.plan()
LONG = {"producer.transaction.timeout.ms": "600000"}
"""Far longer than the test may take."""
PATIENT = {"SOAK_HIDDEN_S": "600"}
"""It may not wait for the end of that transaction anywhere."""


def test_a_process_starts_and_ends_what_one_that_was_killed_in_a_commit_has_left(
    kafka_url: str, tmp_path: Path
) -> None:
    with (
        closing(KafkaLog(kafka_url, LogOptions(settings=LONG))) as log,
        closing(Members(kafka_url, tmp_path)) as members,
    ):
        prepare_log(log, PLAN, create_declared=True)
        member = log.join(AppTasks(PLAN.app, PLAN.tape_topic, PLAN.partitions))

        def joined() -> bool:
            member.look()
            return len(member.owned) == PLAN.partitions

        wait_until(joined, "the process has all tasks")
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
            "tests.kafka.apps:app", "next", environment=PATIENT, by=("tests.kafka.launched",)
        )
        await_tasks(process, PLAN.partitions)
        assert log.ends(["totals"]), "no transaction is open"
