"""Tasks and the consumer group, by both protocols of Kafka: only what has to move moves, and a fixed member gets its own back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.core.errors import UsageError
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.tasks import KafkaTasks
from tailrace.log.options import LogOptions
from tailrace.log.tasks import AppTasks
from tailrace.runtime import bounded
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.standby_placement import heirs
from tests.kafka import apps
from tests.kafka.members import SESSION, Members, await_tasks, runs, said, stopped
from tests.soak.processes import Process, wait_until

APP = "tests.kafka.apps:app"
PLAN = apps.app.plan()
PROTOCOLS = {"classic": SESSION, "consumer": {"TAILRACE_KAFKA_CONSUMER_GROUP_PROTOCOL": "consumer"}}
TASKS = {0, 1, 2, 3}


@pytest.fixture(params=PROTOCOLS)
def members(kafka_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Members]:
    log = KafkaLog(kafka_url)
    prepare_topics(log, PLAN, create_declared=True)
    log.close()
    made = Members(kafka_url, tmp_path, PROTOCOLS[request.param])
    yield made
    made.close()


def named(name: str) -> dict[str, str]:
    return {"TAILRACE_KAFKA_CONSUMER_GROUP_INSTANCE_ID": name}


def moved(process: Process, message: str) -> list[list[int]]:
    """The tasks of each move; without those that moved nothing."""
    return [line["partitions"] for line in said(process, message) if line["partitions"]]


def given_back(process: Process) -> list[list[int]]:
    return moved(process, "tasks were given back")


def test_a_process_that_comes_and_goes_moves_only_its_own_tasks(members: Members) -> None:
    one = members.start(APP, "one")
    await_tasks(one, 4)
    two = members.start(APP, "two")
    await_tasks(two, 2)
    (gone,) = given_back(one)
    assert sorted(runs(two)) == gone
    assert len(gone) == 2
    stopped(two)
    await_tasks(one, 6)
    assert sorted(runs(one)[4:]) == gone
    assert given_back(one) == [gone]


def test_a_fixed_member_that_restarts_gets_its_own_tasks_back_and_nothing_else_moves(
    members: Members,
) -> None:
    # A restart on a busy machine may take longer than the session of the other tests.
    longer = {name: "60000" for name in members.environment if name.endswith("TIMEOUT_MS")}
    patient = {**named("two"), **longer}
    one = members.start(APP, "one", environment={**named("one"), **longer})
    await_tasks(one, 4)
    two = members.start(APP, "two", environment=patient)
    await_tasks(two, 2)
    before = given_back(one), sorted(runs(two))
    stopped(two)
    two = members.start(APP, "two", environment=patient)
    await_tasks(two, 2)
    assert (given_back(one), sorted(runs(two))) == before
    assert len(runs(one)) == 4


def test_a_bounded_run_beside_a_service_takes_no_task_from_it(
    members: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = members.start(APP, "one")
    await_tasks(one, 4)
    monkeypatch.setattr(bounded, "_ALONE_S", 0.1)
    options = ServiceOptions(APP, members.url, tmp_path / "two", until_end=True)
    with pytest.raises(UsageError, match="are for one process alone"):
        Host(options, PLAN).run()
    stopped(one)
    assert given_back(one) == [[0, 1, 2, 3]], "only at its own end"
    assert not Host(options, PLAN).run()


def test_of_two_processes_with_one_instance_id_one_ends_with_words_and_the_other_works(
    members: Members,
) -> None:
    one = members.start(APP, "one", environment=named("same"))
    await_tasks(one, 4)
    two = members.start(APP, "two", environment=named("same"))
    wait_until(lambda: one.code() is not None or two.code() is not None, "one of them ends")
    ended, working = (one, two) if one.code() is not None else (two, one)
    assert ended.code()
    assert (
        "another process of the app is a member of its group with the same group.instance.id" in ended.text()
    )
    assert "Traceback" not in ended.text()
    await_tasks(working, 4)


def test_the_heirs_of_a_member_are_those_that_were_predicted(kafka_url: str) -> None:
    log = KafkaLog(kafka_url, LogOptions(settings={"consumer.group.protocol": "classic"}))
    log.create_topic("eight.tape", TopicSettings(8))
    joined: list[KafkaTasks] = []

    def settled() -> bool:
        for one in joined:
            one.look()
        counts = [len(one.owned) for one in joined]
        return sum(counts) == 8 and max(counts) - min(counts) <= 1

    logs = [KafkaLog(kafka_url) for _ in range(3)]
    for each in logs:
        joined.append(each.join(AppTasks("eight", "eight.tape", 8)))
        wait_until(settled, "the tasks are spread")
    before = {one.member_id: sorted(one.owned) for one in joined}
    gone = joined.pop(1)
    expected = heirs(before, {gone.member_id})
    gone.close()
    wait_until(settled, "the tasks are spread again")
    after = {number: one.member_id for one in joined for number in one.owned}
    assert {number: after[number] for number in expected} == expected
    for one in joined:
        assert set(before[one.member_id]) <= set(one.owned)
        one.close()
    for each in [log, *logs]:
        each.close()
