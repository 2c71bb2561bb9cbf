"""Ordered actors on Kafka: however transactions over their inputs become visible, results are those of plain Python over the log; and an
event that was deleted while it waited is missed.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import msgspec
import pytest

from tailrace.core.records import Output
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tailrace.state.snapshots import Snapshots
from tests.cli.commands import done, run
from tests.core.ordered import Event, oracle, placed
from tests.kafka import gate
from tests.kafka.outside import Outside
from tests.kafka.processes import Members, await_tasks, stopped
from tests.runtime.processes import wait_until

APP, HASTY = "tests.kafka.gate:app", "tests.kafka.gate:hasty"
WAITS = "tests.kafka.gate:waits"
KIP_848 = {"TAILRACE_KAFKA_CONSUMER_GROUP_PROTOCOL": "consumer"}
KILLED_AT = {25: 1, 50: 2}
"""At how many transactions which process is killed."""


def lowest_unhandled(fed: gate.History) -> dict[TopicPartition, int]:
    """The offsets of the first events that wait while no input has ended, or of the ones that come next."""
    found: dict[TopicPartition, int] = {}
    for task, of_task in enumerate(fed):
        reached_ms = min(
            max(event.at for _, event in of_input) - gate.DISORDER_MS[name] - 1
            for name, of_input in of_task.items()
        )
        for name, of_input in of_task.items():
            places = placed([event for _, event in of_input], gate.DISORDER_MS[name])
            waiting = [
                offset for (offset, _), (at, _) in zip(of_input, places, strict=True) if at > reached_ms
            ]
            found[TopicPartition(name, task)] = min([*waiting, of_input[-1][0] + 1])
    return found


@pytest.mark.long
def test_neither_visibility_nor_kills_change_what_an_ordered_actor_does(
    kafka_url: str, tmp_path: Path
) -> None:
    bootstrap, _, prefix = kafka_url.removeprefix("kafka://").partition("/")
    Outside(kafka_url).shorten_session("gate")

    def said(app: str = "gate") -> list[list[tuple[str, str]]]:
        return gate.said(bootstrap, f"{prefix}{app}-said")

    with closing(KafkaLog(kafka_url)) as log, closing(Members(kafka_url, tmp_path, KIP_848)) as members:
        for one in (gate.app, gate.hasty):
            prepare_log(log, one.plan(), create_declared=True)
        working = [members.start(APP, name) for name in ("one", "two", "three")]
        other = members.start(HASTY, "hasty")
        for process in (*working, other):
            await_tasks(process, 1)

        def kill(committed: int) -> None:
            if len(killed) < sum(at <= committed for at in KILLED_AT):
                number = list(KILLED_AT.values())[len(killed)]
                killed.append(working[number])
                working[number].kill()
                working[number] = members.start(APP, f"another {number}")

        killed = list[object]()
        random = Random(0)
        gate.Transactions(bootstrap, prefix, random).write(gate.events(random, 3_000), 30, kill)
        assert len(killed) == len(KILLED_AT)
        fed = gate.history(bootstrap, prefix)
        lowest, wanted = lowest_unhandled(fed), gate.expected(fed)
        ends = {TopicPartition(name, task): fed[task][name][-1][0] + 1 for name, task in lowest}

        def stands() -> bool:
            for process in (*working, other):
                assert process.code() is None, process.text()[-3_000:]
            return all(
                log.committed_offsets(app, at) == at for app, at in (("gate", lowest), ("hasty", ends))
            )

        wait_until(stands, "the group stands at the first events that wait", 60)
        for process in (*working, other):
            stopped(process)
        live, hasty = said(), said("hasty")
        assert live == [all_of_it[: len(some)] for all_of_it, some in zip(wanted, live, strict=True)]
        assert hasty != [all_of_it[: len(some)] for all_of_it, some in zip(wanted, hasty, strict=True)]
        assert min(map(len, live)) > 500
        done("run", APP, "--log", kafka_url, "--state", tmp_path / "state of the end", "--end-of-input")
        assert said() == wanted
        assert any(" late" in text for of_task in wanted for _, text in of_task)


def test_events_that_were_deleted_while_they_waited_are_missed_by_the_next_start(
    log: KafkaLog, members: Members, tmp_path: Path
) -> None:
    """``left`` is ahead of the others, so its events wait."""
    fed: dict[str, list[Event]] = {}
    outside, snapshots = Outside(log.place), Snapshots(str(tmp_path / "before"), "waits")
    where = ("--log", log.place)

    def said() -> list[tuple[str, str]]:
        return gate.said(outside.brokers, f"{outside.prefix}waits-said")[0]

    prepare_log(log, gate.waits.plan(), create_declared=True)
    for name, ats in (
        ("left", [1_000, 5_000, 9_000, 9_500]),
        ("middle", [1_000, 6_500]),
        ("right", [1_000, 8_000]),
    ):
        fed[name] = [Event("a", at, number) for number, at in enumerate(ats)]
        log.append_all(Output(name, b"a", msgspec.json.encode(one), one.at) for one in fed[name])
    service = members.start(WAITS, "state")
    wait_until(lambda: ("a", "left 1 after 4999, 4") in said(), "what does not wait is handled")
    stopped(service)
    before = said()
    assert before == oracle(fed, disorder_ms=gate.DISORDER_MS)[: len(before)]
    snapshot = take_snapshot(gate.waits.plan(), log, snapshots).id
    outside.delete_before("left", 3)
    for options in ((), ("--after-deleted",)):
        ended = run("run", WAITS, *where, "--state", tmp_path / "state", "--until-end", *options)
        assert (ended.code, "begins with" in ended.err, "offset 2" in ended.err) == (1, True, True), ended.err
    copy = ("run", WAITS, *where, "--as", "copy", "--state", tmp_path / "copy", "--end-of-input")
    refused = run(*copy, "--from-snapshot", f"{tmp_path / 'before'}#{snapshot}")
    assert "this log does not have them" in refused.err
    to = ("--to", tmp_path / "again", "--name", "without")
    done("rebuild", WAITS, *where, *to, "--order", "stages", "--after-deleted")
    done(*copy, "--from-snapshot", f"{tmp_path / 'again'}#without")
    after = said()[len(before) :]
    found = [text.partition(" after ")[0] for _, text in after if " after " in text]
    assert found == ["middle 1", "right 1", "left 3"]
