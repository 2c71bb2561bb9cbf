"""Mistakes put into the code of Kafka on purpose, each with the tests that must notice it.

python -m tests.kafka.mutations NAME            # 0 if the tests fail, as they should
SOAK_MUTATION=NAME python -m tests.kafka.soak   # the services of the soak have the mistake, its checks must notice it
"""

from __future__ import annotations

import sys
from importlib import import_module

from tests.proof.mutating import Mutation, Mutator, noticed

_CONTRACT = "tests/kafka/test_contract.py"
_LOG = "tests/kafka/test_log.py"
_LOST = "tests/kafka/test_lost_members.py"
_PROCESS = "tests/kafka/test_process_transaction.py"
_SHARED = "tests/runtime/test_shared_transaction.py"
_STANDBYS = "tests/kafka/test_standbys.py"
_NOTES = "tests/runtime/test_task_notes.py"

MUTATIONS: dict[str, Mutation] = {
    "offsets-that-are-not-committed": Mutation(
        "log.kafka.writer:KafkaProducer.commit", "if offsets:", "if not offsets:", tests=(f"{_CONTRACT} -k all_partitions_and_offsets_visible",)
    ),
    "commits-without-the-metadata-of-the-group": Mutation(
        "log.kafka.log:KafkaLog._metadata_of", "self._processes.get(group)", "self._processes.get('')", tests=(_LOST,)
    ),
    "a-commit-aborted-because-it-was-not-answered": Mutation(
        "log.kafka.writer:KafkaProducer._decide.error", "self._producer.commit_transaction", "self._producer.abort_transaction", tests=(f"{_CONTRACT} -k all_partitions_and_offsets_visible",)
    ),
    "readers-of-what-is-not-committed": Mutation(
        "log.kafka.connection:Connection.consumer", "read_committed", "read_uncommitted", tests=(f"{_CONTRACT} -k aborted_is_never_seen",)
    ),
    "an-end-before-open-transactions": Mutation(
        "log.kafka.log:KafkaLog.end_offset", "self._cluster.ends", "self._cluster.stable_ends", tests=(f"{_LOG} -k ends_of_topics_wait",)
    ),
    "gaps-at-the-end-that-are-not-passed": Mutation(
        "log.kafka.reader:KafkaReader._take_error", "part.read_to = part.stable", "part.stable", tests=(f"{_CONTRACT} -k an_idle_partition",)
    ),
    "idle-behind-an-open-transaction": Mutation(
        "log.kafka.reader:KafkaReader._is_idle", "part.idle_at > 0 and now - part.idle_at < _FRESH_S and (part.idle_after == commits", "True or (part.idle_at > 0 and now - part.idle_at < _FRESH_S and (part.idle_after == commits)", tests=(f"{_LOG} -k not_idle_while",)
    ),
    "watermarks-applied-before-their-records": Mutation(
        "log.kafka.reader:KafkaReader.published", "waiting.news(part.position)", "waiting.news(2 ** 62)", tests=(f"{_CONTRACT} -k watermark_is_found",)
    ),
    "watermarks-that-name-the-ends-of-before": Mutation(
        "log.kafka.writer:KafkaProducer._publish.ends", "max(end, written.get(TopicPartition(topic, number), 0))", "end", tests=(f"{_CONTRACT} -k watermark_is_found",)
    ),
    "watermarks-outside-of-the-transaction": Mutation(
        "log.kafka.writer:KafkaProducer.commit", "ends = {place: offset + 1 for place, offset in self._written.items()}\n    if watermarks:\n        self._publish(watermarks, ends)", "ends = {place: offset + 1 for place, offset in self._written.items()}", tests=(f"{_CONTRACT} -k watermark_is_found",)
    ),
    "a-lost-member-taken-for-an-outage": Mutation(
        "log.kafka.failures:_FENCED", ", 'UNKNOWN_MEMBER_ID'", "", tests=(_LOST, "tests/kafka/test_failures.py",)
    ),
    "a-producer-that-forgets-its-coordinator": Mutation(
        "log.kafka.connection:_DEFAULTS_OF", "metadata.recovery.strategy': 'none', 'queue.buffering.max.messages", "queue.buffering.max.messages", tests=(f"{_LOG} -k killed_in_the_middle",)
    ),
    "a-close-that-waits-for-brokers": Mutation(
        "log.kafka.writer:KafkaProducer.close", "if self._is_open and self._ended is None:\n        self._most_patience_s = _FLUSH_S", "if self._is_open and self._ended is None:", tests=(f"{_LOG} -k closes_soon",)
    ),
    "the-ends-of-before-a-take-over": Mutation(
        "log.kafka.process_transaction:ProcessTransaction.writer", "self._held.take_in()", "pass", tests=(f"{_PROCESS} -k task_that_moved",)
    ),
    "a-dead-owner-that-is-not-fenced": Mutation(
        "log.kafka.process_transaction:ProcessTransaction.writer", "self._producer(named).close()\n", "", tests=(f"{_PROCESS} -k dead_process",)
    ),
    "a-dead-owner-that-a-command-waits-for": Mutation(
        "log.kafka.log:KafkaLog.reserve", "self._producer(named).close()", "pass", tests=(f"{_PROCESS} -k reserves_tasks",)
    ),
    "a-take-over-before-there-is-a-connection": Mutation(
        "log.kafka.writer:KafkaProducer.take_over", "self._producer.list_topics(timeout=min(_LOOK_S, self._request_s()))", "pass", tests=(f"{_PROCESS} -k connected_before",)
    ),
    "a-producer-that-is-not-named": Mutation(
        "log.kafka.process_transaction:ProcessTransaction.writer", "self._fenced.add(named)\n    member.name_producer(number, self._id)", "self._fenced.add(named)", tests=(f"{_PROCESS} -k no_producer_is_named",)
    ),
    "a-producer-kept-when-tasks-were-lost": Mutation(
        "log.kafka.process_transaction:ProcessTransaction._present", "present is not None and times_lost != self._times_lost", "False", tests=(f"{_PROCESS} -k without_its_knowledge",)
    ),
    "commits-for-tasks-of-others": Mutation(
        "log.kafka.process_transaction:ProcessTransaction._check", "not in self.member.owned", "in ()", tests=(f"{_PROCESS} -k another_process_owns",)
    ),
    "records-committed-without-their-offsets": Mutation(
        "log.shared_transaction:SharedTransaction.commit", "one.wrote and one not in writers", "False", tests=(f"{_SHARED} -k records_of_a_task_without",)
    ),
    "a-commit-without-the-lost-records": Mutation(
        "log.shared_transaction:SharedTransaction.commit", "if writer.lost:", "if False:", tests=(f"{_SHARED} -k in_no_later_commit",)
    ),
    "others-that-do-not-notice-an-abort": Mutation(
        "log.shared_transaction:SharedWriter.lose", '"""The open transaction is aborted."""\n    self._lost = self._lost or self.wrote', '"""The open transaction is aborted."""', tests=(f"{_SHARED} -k takes_the_uncommitted_work",)
    ),
    "a-failed-commit-that-one-task-alone-undoes": Mutation(
        "runtime.commits:commit_together", "except Exception as error:\n        for one in partitions:", "except Exception as error:\n        for one in partitions[:1]:", tests=(f"{_SHARED} -k commit_that_fails",)
    ),
    "an-unknown-outcome-for-one-task-alone": Mutation(
        "runtime.commits:commit_together", "except CommitUnknownError:\n        for one in ready:", "except CommitUnknownError:\n        for one in ready[:1]:", tests=(f"{_SHARED} -k unknown_outcome",)
    ),
    "a-store-that-fails-for-all": Mutation(
        "runtime.commits:commit_together", "first = first or error", "raise", tests=(f"{_SHARED} -k failure_of_its_task_alone",)
    ),
    "a-rollback-to-the-state-of-before-the-restore": Mutation(
        "runtime.partition:Partition._rewound", "before if core == before.cut else replace(before, cut=core, positions={}, stepped_over={})", "before", tests=(f"{_SHARED} -k takes_the_uncommitted_work",)
    ),
    "standbys-of-half-commits": Mutation(
        "runtime.standbys:Standby._follow", "behind_last_cut", "len", tests=(f"{_STANDBYS} -k whole_commits",)
    ),
    "a-standby-kept-open-beside-its-task": Mutation(
        "runtime.standbys:Standbys.assigned", "self._close(standby)", "pass", tests=(f"{_STANDBYS} -k leaves_the_folder",)
    ),
    "standbys-that-miss-deletions": Mutation(
        "runtime.standbys:Standby._check", "if is_behind and", "if False and", tests=(f"{_STANDBYS} -k away_for_too_long",)
    ),
    "heirs-from-the-first-task-on": Mutation(
        "runtime.standby_placement:heirs", "reverse=True):", "reverse=False):", tests=("tests/runtime/test_standby_placement.py",)
    ),
    "a-replaced-version-that-continues": Mutation(
        "runtime.task_notes:TaskNotes._check_version", "self._version in versions[:-1] and (not self._downgrade)", "False", tests=(_NOTES,)
    ),
    "versions-in-no-order": Mutation(
        "runtime.task_notes:TaskNotes.take.versions", "[*(one for one in versions if one != self._version), self._version]", "sorted({*versions, self._version})", tests=(_NOTES,)
    ),
    "a-service-with-the-name-of-another": Mutation(
        "runtime.task_notes:TaskNotes.take.inputs_before", "before is None or self._change_inputs", "True or before is None", tests=(_NOTES,)
    ),
}  # fmt: skip


def preload() -> None:
    """Import what the tests need: not the tests themselves, as pytest loads these in a way of its own."""
    for name in (
        "pytest",
        "tailrace.cli.run",
        "tailrace.history.moving.moving",
        "tailrace.history.rebuilding.driver",
        "tailrace.log.kafka",
        "tailrace.runtime.host",
    ):
        import_module(name)


def mutation_of(name: str) -> Mutation:
    """The mutation of a name."""
    return MUTATIONS[name]


def run(name: str) -> int:
    """Run the tests of a mutation on code that is broken; 0 if they fail."""
    return 0 if noticed(MUTATIONS[name].tests, MUTATIONS[name].first) else 1


def main(name: str) -> int:
    """Break the code as it is imported, and run the tests."""
    mutator = Mutator(MUTATIONS[name])
    sys.meta_path.insert(0, mutator)
    import_module(
        mutator.mutation.module
    )  # before pytest, which loads the modules of a plugin's package itself
    assert mutator.applied
    return run(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
