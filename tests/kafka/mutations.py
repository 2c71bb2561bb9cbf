"""Mistakes put into the code of Kafka on purpose, each with the tests that must notice it.

    python -m tests.kafka.mutations NAME            # 0 if the tests fail, as they should
    SOAK_MUTATION=NAME python -m tests.kafka.soak   # the services of the soak have the mistake, its checks must notice it

A mutation replaces a piece of a module's source, which must be there exactly once (see ``tests.proof.mutations``).
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NamedTuple

from tests.proof.mutations import Mutation, Mutator


class KafkaMutation(NamedTuple):
    """One mistake: in which module, what stands there, what is put in its place, and the tests that must notice it."""

    module: str
    before: str
    after: str
    tests: tuple[str, ...]

    @property
    def mutation(self) -> Mutation:
        """For the import."""
        return Mutation(0, self.module, self.before, self.after)


_CONTRACT = "tests/kafka/test_contract.py"
_LOG = "tests/kafka/test_log.py"
_LOST = "tests/kafka/test_lost_members.py"
_PROCESS = "tests/kafka/test_process_transaction.py"
_SHARED = "tests/runtime/test_shared_transaction.py"
_STANDBYS = "tests/kafka/test_standbys.py"
_NOTES = "tests/runtime/test_task_notes.py"

MUTATIONS: dict[str, KafkaMutation] = {
    "offsets-that-are-not-committed": KafkaMutation(
        "log.kafka.writer",
        "        if offsets:\n            positions = [",
        "        if not offsets:\n            positions = [",
        (f"{_CONTRACT} -k all_partitions_and_offsets_visible",),
    ),
    "commits-without-the-metadata-of-the-group": KafkaMutation(
        "log.kafka.log",
        "        if (joined := self._joined.get(group)) is not None:",
        "        if (joined := self._joined.get('')) is not None:",
        (_LOST,),
    ),
    "a-commit-aborted-because-it-was-not-answered": KafkaMutation(
        "log.kafka.writer",
        "        error = self._persist(lambda: self._producer.commit_transaction(self._request_s()))\n",
        "        error = self._persist(lambda: self._producer.abort_transaction(self._request_s()))\n",
        (f"{_CONTRACT} -k all_partitions_and_offsets_visible",),
    ),
    "readers-of-what-is-not-committed": KafkaMutation(
        "log.kafka.connection",
        '                "isolation.level": "read_committed",\n',
        '                "isolation.level": "read_uncommitted",\n',
        (f"{_CONTRACT} -k aborted_is_never_seen",),
    ),
    "an-end-before-open-transactions": KafkaMutation(
        "log.kafka.log",
        "        return self._cluster.ends([place])[place]",
        "        return self._cluster.stable_ends([place])[place]",
        (f"{_LOG} -k ends_of_topics_wait",),
    ),
    "gaps-at-the-end-that-are-not-passed": KafkaMutation(
        "log.kafka.reader",
        "        part.read_to = part.stable = max(part.read_to, message.offset())",
        "        part.stable = max(part.read_to, message.offset())",
        (f"{_CONTRACT} -k an_idle_partition",),
    ),
    "idle-behind-an-open-transaction": KafkaMutation(
        "log.kafka.reader",
        "        return part.idle_at > 0 and ",
        "        return True or part.idle_at > 0 and ",
        (f"{_LOG} -k not_idle_while",),
    ),
    "watermarks-applied-before-their-records": KafkaMutation(
        "log.kafka.reader",
        "        return waiting.news(part.position)",
        "        return waiting.news(2**62)",
        (f"{_CONTRACT} -k watermark_is_found",),
    ),
    "watermarks-that-name-the-ends-of-before": KafkaMutation(
        "log.kafka.writer",
        "                max(end, written.get(TopicPartition(topic, number), 0))",
        "                end",
        (f"{_CONTRACT} -k watermark_is_found",),
    ),
    "watermarks-outside-of-the-transaction": KafkaMutation(
        "log.kafka.writer", "        if watermarks:\n            self._publish(watermarks, ends)\n", "", (f"{_CONTRACT} -k watermark_is_found",)
    ),
    "a-lost-member-taken-for-an-outage": KafkaMutation(
        "log.kafka.failures", '        "UNKNOWN_MEMBER_ID",\n', "", (_LOST, "tests/kafka/test_failures.py")
    ),
    "a-producer-that-forgets-its-coordinator": KafkaMutation(
        "log.kafka.connection",
        '    "metadata.recovery.strategy": "none",\n',
        "",
        (f"{_LOG} -k killed_in_the_middle",),
    ),
    "a-close-that-waits-for-brokers": KafkaMutation(
        "log.kafka.writer",
        "            self._patience_s = lambda: _FLUSH_S\n",
        "",
        (f"{_LOG} -k closes_soon",),
    ),
    "the-ends-of-before-a-take-over": KafkaMutation(
        "log.kafka.process_transaction",
        "            self._held.take_in()\n",
        "            pass\n",
        (f"{_PROCESS} -k task_that_moved",),
    ),
    "a-dead-owner-that-is-not-fenced": KafkaMutation(
        "log.kafka.process_transaction",
        "            self._producer(named).close()\n",
        "",
        (f"{_PROCESS} -k dead_process",),
    ),
    "a-producer-that-is-not-named": KafkaMutation(
        "log.kafka.process_transaction",
        "        member.name_producer(number, self._id)\n",
        "",
        (f"{_PROCESS} -k no_producer_is_named",),
    ),
    "a-producer-kept-when-tasks-were-lost": KafkaMutation(
        "log.kafka.process_transaction",
        "if present is not None and times_lost != self._times_lost:",
        "if False:",
        (f"{_PROCESS} -k without_its_knowledge",),
    ),
    "commits-for-tasks-of-others": KafkaMutation(
        "log.kafka.process_transaction",
        "not in self._member.owned:",
        "in ():",
        (f"{_PROCESS} -k another_process_owns",),
    ),
    "records-committed-without-their-offsets": KafkaMutation(
        "log.shared_transaction",
        "            if one.wrote and one not in writers:",
        "            if False:",
        (f"{_SHARED} -k records_of_a_task_without",),
    ),
    "a-commit-without-the-lost-records": KafkaMutation(
        "log.shared_transaction",
        "                if writer.lost:",
        "                if False:",
        (f"{_SHARED} -k in_no_later_commit",),
    ),
    "others-that-do-not-notice-an-abort": KafkaMutation(
        "log.shared_transaction",
        "        self._lost = self._lost or self.wrote\n",
        "",
        (f"{_SHARED} -k takes_the_uncommitted_work",),
    ),
    "a-failed-commit-that-one-task-alone-undoes": KafkaMutation(
        "runtime.commits",
        "        for one in partitions:\n            one.not_committed(error)\n",
        "        for one in partitions[:1]:\n            one.not_committed(error)\n",
        (f"{_SHARED} -k commit_that_fails",),
    ),
    "an-unknown-outcome-for-one-task-alone": KafkaMutation(
        "runtime.commits",
        "        for one in ready:\n            one.doubt()\n",
        "        for one in ready[:1]:\n            one.doubt()\n",
        (f"{_SHARED} -k unknown_outcome",),
    ),
    "a-store-that-fails-for-all": KafkaMutation(
        "runtime.commits",
        "            first = first or error\n",
        "            raise\n",
        (f"{_SHARED} -k failure_of_its_task_alone",),
    ),
    "a-rollback-to-the-state-of-before-the-restore": KafkaMutation(
        "runtime.partition",
        "return before if core == before.cut else replace(before, cut=core, positions={}, stepped_over={})",
        "return before",
        (f"{_SHARED} -k takes_the_uncommitted_work",),
    ),
    "standbys-of-half-commits": KafkaMutation(
        "runtime.standbys",
        "            self._apply(behind_last_cut(self._pending), None)",
        "            self._apply(len(self._pending), None)",
        (f"{_STANDBYS} -k whole_commits",),
    ),
    "a-standby-kept-open-beside-its-task": KafkaMutation(
        "runtime.standbys",
        "                self._close(standby)\n        self._wanted = [",
        "                pass\n        self._wanted = [",
        (f"{_STANDBYS} -k leaves_the_folder",),
    ),
    "standbys-that-miss-deletions": KafkaMutation(
        "runtime.standbys",
        "        if is_behind and restore.may_have_missed(",
        "        if False and restore.may_have_missed(",
        (f"{_STANDBYS} -k away_for_too_long",),
    ),
    "heirs-from-the-first-task-on": KafkaMutation(
        "runtime.standby_placement",
        ", reverse=True)",
        ", reverse=False)",
        ("tests/runtime/test_standby_placement.py",),
    ),
    "a-replaced-version-that-continues": KafkaMutation(
        "runtime.task_notes",
        "        if self._version in versions[:-1] and not self._downgrade:",
        "        if False:",
        (_NOTES,),
    ),
    "versions-in-no-order": KafkaMutation(
        "runtime.task_notes",
        "[*(one for one in versions if one != self._version), self._version][-_MOST_VERSIONS:]",
        "sorted({*versions, self._version})[-_MOST_VERSIONS:]",
        (_NOTES,),
    ),
    "a-service-with-the-name-of-another": KafkaMutation(
        "runtime.task_notes",
        "None if before is None or self._change_inputs else before.inputs",
        "None if True or before is None else before.inputs",
        (_NOTES,),
    ),
}  # fmt: skip


def preload() -> None:
    """Import what the tests need: not the tests themselves, as pytest loads these in a way of its own."""
    for name in (
        "pytest",
        "tailrace.cli.main",
        "tailrace.history.moving.moving",
        "tailrace.history.rebuilding.driver",
        "tailrace.log.kafka",
        "tailrace.runtime.host",
    ):
        import_module(name)


def mutation_of(name: str) -> Mutation:
    """The mutation of a name."""
    return MUTATIONS[name].mutation


def run(name: str) -> int:
    """Run the tests of a mutation on code that is broken; 0 if they fail."""
    import shlex

    import pytest

    for tests in MUTATIONS[name].tests:
        code = pytest.main(
            [
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
                "--no-header",
                "--tb=line",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
                *shlex.split(tests),
            ]
        )
        if code == pytest.ExitCode.TESTS_FAILED:
            return 0
        assert code == pytest.ExitCode.OK, f"the tests of {name} did not run: {code}"
    return 1


def main(name: str) -> int:
    """Break the code as it is imported, and run the tests."""
    mutator = Mutator(mutation_of(name))
    sys.meta_path.insert(0, mutator)
    import_module(mutator.name)  # before pytest, which loads the modules of a plugin's package itself
    assert mutator.applied
    return run(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
