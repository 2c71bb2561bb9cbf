"""Processes of one app: they come and go, are killed, suspended, fenced and too slow. Only what has to move moves, and each event counts once."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError

from tailrace.core.errors import LogDeniedError, TaskOwnedError, UsageError
from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.tasks import KafkaTasks
from tailrace.log.options import LogOptions
from tailrace.log.tasks import AppTasks
from tailrace.runtime import bounded
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.standby_placement import heirs
from tests.kafka import apps, shop
from tests.kafka.outside import Outside
from tests.kafka.processes import LONG_TRANSACTIONS, SESSION, Members, await_tasks, runs, said, stopped
from tests.kafka.visits import FIRST, PLAN, TASKS, Visits
from tests.log.contract import visible
from tests.runtime.processes import Process, limit_files, wait_until

PROTOCOLS = {"classic": SESSION, "consumer": {"TAILRACE_KAFKA_CONSUMER_GROUP_PROTOCOL": "consumer"}}
ALL = len(TASKS)
NAPS = "tests.kafka.apps:naps"
SUSPENDED = {
    **SESSION,
    "TAILRACE_KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS": "6000",
    "TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS": "5000",
}
"""The session is the last to end: when others have the tasks, all time-outs have passed."""


def nap(number: int, seconds: float) -> Output:
    event = apps.Nap("k", seconds, 1_000_000 + number)
    return Output("naps", b"k", msgspec.json.encode(event), event.at_ms)


def given_back(process: Process) -> list[list[int]]:
    """The tasks of each move; without those that moved nothing."""
    return [line["partitions"] for line in said(process, "tasks were given back") if line["partitions"]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_process_that_comes_leaves_or_is_killed_moves_only_its_own_tasks(
    visits: Visits, members: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    members.environment = PROTOCOLS[protocol]
    Outside(members.url).shorten_session(PLAN.app)
    visits.feed(5)
    one = members.start(FIRST, "one", tasks=ALL)
    two = members.start(FIRST, "two", tasks=2)
    (gone,) = given_back(one)
    assert (sorted(runs(two)), len(gone)) == (gone, 2)
    visits.feed(5)
    stopped(two)
    await_tasks(one, ALL + 2)
    assert sorted(runs(one)[ALL:]) == gone
    assert given_back(one) == [gone]
    two = members.start(FIRST, "two", tasks=2)
    visits.feed(5)
    before = len(runs(one))
    two.kill()
    visits.feed(5)
    await_tasks(one, before + 2)
    visits.await_all()
    monkeypatch.setattr(bounded, "_ALONE_S", 0.1)
    options = ServiceOptions(FIRST, members.url, tmp_path / "bounded", until_end=True)
    moves = len(given_back(one))
    with pytest.raises(UsageError, match="are for one process alone"):
        Host(options, PLAN).run()
    stopped(one)
    assert given_back(one)[moves:] == [[*TASKS]], "only at its own end"
    assert not Host(options, PLAN).run()
    visits.await_all()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_fixed_member_gets_its_own_tasks_back_and_a_second_one_of_its_name_ends_with_words(
    visits: Visits, members: Members, protocol: str
) -> None:
    # A restart on a busy machine may take longer than the session of the other tests.
    members.environment = {
        name: "60000" if name in SESSION else value for name, value in PROTOCOLS[protocol].items()
    }

    def start(name: str, tasks: int) -> Process:
        fixed = {"TAILRACE_KAFKA_CONSUMER_GROUP_INSTANCE_ID": name}
        return members.start(FIRST, name, environment=fixed, tasks=tasks)

    one, two = start("one", ALL), start("two", 2)
    before = given_back(one), sorted(runs(two))
    stopped(two)
    two = start("two", 2)
    assert (given_back(one), sorted(runs(two))) == before
    assert len(runs(one)) == ALL
    same = start("two", 0)
    wait_until(lambda: two.code() is not None or same.code() is not None, "one of them ends")
    ended, working = (two, same) if two.code() is not None else (same, two)
    assert ended.code()
    text = ended.text()
    assert "another process of the app is a member of its group with the same group.instance.id" in text
    assert "Traceback" not in text
    await_tasks(working, 2)


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


def test_a_tape_whose_first_records_were_deleted_ends_no_member(kafka_url: str) -> None:
    """The library may have begun to fetch it where the group stands, which means nothing, before it was paused."""
    with closing(KafkaLog(kafka_url)) as log:
        log.create_topic("one.tape", TopicSettings(1))
        tasks: Any = log.join(AppTasks("one", "one.tape", 1))
        wait_until(lambda: tasks.look() or tasks.owned, "it has its task")
        polled = [
            KafkaError(KafkaError._AUTO_OFFSET_RESET),
            KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED),
        ]
        consumer, tasks._consumer = (
            tasks._consumer,
            SimpleNamespace(poll=lambda _: SimpleNamespace(error=lambda: polled.pop(0))),
        )
        tasks.look()
        with pytest.raises(LogDeniedError):
            tasks.look()
        tasks._consumer = consumer
        tasks.close()


def test_a_process_that_was_fenced_leaves_in_good_order(visits: Visits, members: Members) -> None:
    process = members.start(
        FIRST, "one", "--commit-interval", "400s", environment=LONG_TRANSACTIONS, tasks=ALL
    )
    visits.feed(5)
    wait_until(lambda: visits.hidden() == {*TASKS}, "work waits for a commit")
    (producer,) = {*Outside(members.url).named_producers(PLAN).values()}
    visits.log.writer(producer).close()  # as the next owner of one of its tasks does
    stopped(process)
    assert said(process, "left")
    assert "a partition left without a commit" in process.text()


def test_the_next_commit_after_a_kill_does_not_wait_for_the_transaction_and_nobody_else_is_fenced(
    visits: Visits, members: Members
) -> None:
    killed = members.start(
        FIRST, "one", "--commit-interval", "400s", environment=LONG_TRANSACTIONS, tasks=ALL
    )
    living = members.start(FIRST, "two", environment=LONG_TRANSACTIONS, tasks=2)
    own = {*runs(living)}
    places = [TopicPartition("visited", number) for number in TASKS]
    visits.feed(4)
    wait_until(
        lambda: all(visits.log._cluster.ends(places).values()) and visits.hidden() == {*TASKS} - own,
        "one commits, one does not",
    )
    before = Outside(members.url).named_producers(PLAN)
    killed.signal(signal.SIGKILL)
    await_tasks(living, ALL)
    wait_until(lambda: not visits.hidden(), "nothing is hidden")
    visits.await_all()
    (producer,) = {*Outside(members.url).named_producers(PLAN).values()}
    assert {before[number] for number in own} == {producer}


def test_a_process_that_wakes_after_all_time_outs_writes_nothing_more_and_takes_part_again(
    visits: Visits, members: Members
) -> None:
    members.environment = SUSPENDED
    sleeper = members.start(FIRST, "sleeper", "--commit-interval", "2s", tasks=ALL)
    other = members.start(FIRST, "other", tasks=2)
    before = len(runs(sleeper))
    visits.feed(20)
    wait_until(visits.hidden, "it has written what is not committed")
    sleeper.signal(signal.SIGSTOP)
    await_tasks(other, ALL)
    visits.feed(10)
    visits.await_all()
    sleeper.signal(signal.SIGCONT)
    wait_until(lambda: len(runs(sleeper)) > before, "it has tasks again", 120)
    visits.feed(10)
    visits.await_all()
    assert any(not line["committed"] for line in said(sleeper, "tasks were given back"))
    for process in (sleeper, other):
        stopped(process)
    visits.await_all()


def test_a_task_of_a_killed_owner_is_restored_from_a_short_tail_of_its_standby(
    visits: Visits, members: Members
) -> None:
    visits.feed(60)
    one = members.start(FIRST, "one", "--standbys", 1, tasks=ALL)
    two = members.start(FIRST, "two", "--standbys", 1, tasks=2)
    of_two = set(runs(two))

    def standbys_of(process: Process) -> set[int]:
        return {line["partition"] for line in said(process, "a standby has the state of a task")}

    def have_standbys() -> bool:
        # The second may also have had one of its own tasks as a standby, before it was given the task.
        return standbys_of(one) >= of_two and standbys_of(two) >= {*TASKS} - of_two

    wait_until(have_standbys, "each has standbys of the other's tasks")
    visits.feed(20)
    two.signal(signal.SIGKILL)
    visits.feed(20)
    await_tasks(one, ALL + 2)
    promoted = [line["partition"] for line in said(one, "a standby becomes a task")]
    assert len(promoted) == 2
    applied = {line["partition"]: line["applied"] for line in said(one, "the state is restored")}
    changelog = min(visits.log.end_offset(PLAN.changelog_topic, number) for number in promoted)
    assert max(applied.get(number, 0) for number in promoted) < changelog / 4
    visits.await_all()
    stopped(one)


def test_a_process_whose_handlers_outlast_its_transactions_names_the_setting(
    log: KafkaLog, members: Members
) -> None:
    """It can commit nothing. More events than are taken at once come before the slow one, so the transaction is open by then."""
    setting, timeout_s, quick = "TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS", 3, 300
    app, short = NAPS, {setting: str(1_000 * timeout_s)}
    prepare_topics(log, apps.naps.plan(), create_declared=True)
    log.append_all([*(nap(number, 0) for number in range(quick)), nap(quick, timeout_s + 2)])
    stuck = members.start(app, "stuck", "--commit-interval", "1500ms", environment=short)
    wait_until(lambda: setting in stuck.text(), "it names the setting")
    stuck.kill()
    members.start(app, "stuck")
    wait_until(lambda: len(visible(log, TopicPartition("rested", 0))) > quick, "all is committed")


@pytest.mark.long
def test_a_run_to_the_end_whose_handler_outlasts_its_place_in_the_group_names_the_setting(
    log: KafkaLog, members: Members
) -> None:
    setting = "TAILRACE_KAFKA_CONSUMER_MAX_POLL_INTERVAL_MS"
    prepare_topics(log, apps.naps.plan(), create_declared=True)
    log.append_all([nap(0, 0), nap(1, 8)])
    run = members.start(NAPS, "run", "--until-end", tasks=1, environment={**SESSION, setting: "6000"})
    assert run.ended() == 1
    assert setting in run.text()
    assert members.start(NAPS, "run", "--until-end", tasks=1).ended() == 0
    assert len(visible(log, TopicPartition("rested", 0))) == 2


def test_a_run_to_the_end_that_was_suspended_past_its_session_reads_to_the_end(
    log: KafkaLog, members: Members
) -> None:
    """Its group gives its tasks up, and gives them back a moment later."""
    rested = TopicPartition("rested", 0)
    prepare_topics(log, apps.naps.plan(), create_declared=True)
    log.append_all([nap(number, 0.01) for number in range(300)])
    run = members.start(NAPS, "run", "--until-end", tasks=1)
    wait_until(lambda: log.end_offset(*rested), "something is handled")
    run.signal(signal.SIGSTOP)

    def is_empty() -> bool:
        try:
            with log.reserve("naps", ()):
                return True
        except TaskOwnedError:
            return False

    wait_until(is_empty, "its group has no members")
    run.signal(signal.SIGCONT)
    assert run.ended() == 0, run.text()[-3_000:]
    assert len(visible(log, rested)) == 300
    assert len(runs(run)) == 2


def test_a_full_disk_does_not_end_a_process_that_gives_tasks_back(log: KafkaLog, members: Members) -> None:
    app, every = "tests.kafka.shop:app", "100000"
    prepare_topics(log, shop.PLAN, create_declared=True)
    notes = [f"keep {token_hex(25_000)}" for _ in range(40)]

    def order(first: int) -> None:
        log.append_all(
            Output("orders", one.key.encode(), msgspec.json.encode(one), one.at_ms)
            for one in (shop.Order(f"k{n % 10}", (first + n) * 1_000, note) for n, note in enumerate(notes))
        )

    order(0)
    full = members.start(app, "full", "--store-every", every, tasks=2)
    wait_until(lambda: shop.counts(log) == {f"k{n}": 4 for n in range(10)}, "all is committed")
    limit_files(full.pid, 256 << 10)  # its log is smaller, its state is larger
    other = members.start(app, "other", tasks=1)
    (line,) = said(full, "tasks were given back")
    assert line["partitions"] == runs(other)
    assert "left without writing its state folder" in full.text()
    order(100)
    wait_until(lambda: shop.counts(log) == {f"k{n}": 8 for n in range(10)}, "both have taken all")
    stopped(other)
    await_tasks(full, 3)  # it restores the task again
    stopped(full)
