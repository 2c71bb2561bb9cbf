"""Operators of all kinds in one app on Kafka: in catch-up and live, with members that come and go, against plain Python, and replayed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec

from tailrace.history.status.inspection import AppReport
from tailrace.history.status.stored import Stored
from tailrace.log.kafka import KafkaLog
from tests.cli.commands import done
from tests.kafka.members import Members, come_and_go
from tests.library.everything import app, expected, history, records
from tests.library.test_everything import APP, found
from tests.runtime.bounded_run import check_history


def test_all_operators_with_members_that_come_and_go(kafka_url: str, tmp_path: Path) -> None:
    plan, events = app.plan(), history(5, 3_000)
    with closing(KafkaLog(kafka_url)) as log, closing(Members(kafka_url, tmp_path)) as members:
        parts = records(events[:1_500]), records(events[1_500:2_200]), records(events[2_200:])
        state = come_and_go(members, log, APP, plan, parts, lambda: any(found(log).values()))
        assert any(one.open for one in counted(kafka_url))
        done("run", APP, "--log", kafka_url, "--state", state, "--end-of-input")
        assert found(log) == expected(events)
        check_history(log, plan)
        assert not any(one.keys or any(one.open.values()) for one in counted(kafka_url))


def counted(url: str) -> list[Stored]:
    report = msgspec.json.decode(done("status", APP, "--log", url, "--stored", "--json").out, type=AppReport)
    return [one.stored for task in report.tasks for one in task.operators if one.stored is not None]
