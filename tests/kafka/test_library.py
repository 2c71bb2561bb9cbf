"""Operators of all kinds in one app on Kafka: in catch-up and live, with members that come and go, against plain Python, and replayed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec

from tailrace.history.status.inspection import AppReport
from tailrace.history.status.stored import Stored
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tests.cli.commands import done
from tests.kafka.members import Members, await_tasks, stopped
from tests.library.everything import app, expected, history, records
from tests.library.test_everything import APP, found
from tests.runtime.bounded_run import check_history
from tests.soak.processes import wait_until


def test_all_operators_with_members_that_come_and_go(kafka_url: str, tmp_path: Path) -> None:
    plan, events = app.plan(), history(5, 3_000)
    with closing(KafkaLog(kafka_url)) as log, closing(Members(kafka_url, tmp_path)) as members:
        prepare_log(log, plan, create_declared=True)
        log.append_all(records(events[:1_500]))
        one = members.start(APP, "one")
        await_tasks(one, plan.partitions)
        two = members.start(APP, "two")
        await_tasks(two, 1)
        log.append_all(records(events[1_500:2_200]))
        wait_until(lambda: any(found(log).values()), "there are results")
        one.kill()
        log.append_all(records(events[2_200:]))
        await_tasks(two, plan.partitions)
        stopped(two)
        assert any(one.open for one in counted(kafka_url))
        done("run", APP, "--log", kafka_url, "--state", tmp_path / "two", "--end-of-input")
        assert found(log) == expected(events)
        check_history(log, plan)
        assert not any(one.keys or any(one.open.values()) for one in counted(kafka_url))


def counted(url: str) -> list[Stored]:
    report = msgspec.json.decode(done("status", APP, "--log", url, "--stored", "--json").out, type=AppReport)
    return [one.stored for task in report.tasks for one in task.operators if one.stored is not None]
