"""Random programs of windows and joins on Kafka: with members that come and go, against the composed oracles, and replayed."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tests.cli.commands import done
from tests.kafka.members import Members, await_tasks, stopped
from tests.library.random_programs import FIXED, more_seeds, program, records
from tests.library.test_random_programs import app_of, check_outputs, outputs
from tests.soak.processes import wait_until


@pytest.mark.parametrize("seed", [FIXED[0], *more_seeds()])
def test_programs_with_members_that_come_and_go(kafka_url: str, tmp_path: Path, seed: int) -> None:
    made, app = program(seed), app_of(seed)
    plan, events = made.app.plan(), made.events(1_000)
    with closing(KafkaLog(kafka_url)) as log, closing(Members(kafka_url, tmp_path)) as members:
        prepare_log(log, plan, create_declared=True)
        log.append_all(records(events[:500]))
        one = members.start(app, "one")
        await_tasks(one, plan.partitions)
        two = members.start(app, "two")
        await_tasks(two, 1)
        log.append_all(records(events[500:700]))
        wait_until(lambda: outputs(log, made).given, "there are results")
        one.kill()
        log.append_all(records(events[700:]))
        await_tasks(two, plan.partitions)
        stopped(two)
        done("run", app, "--log", kafka_url, "--state", tmp_path / "two", "--end-of-input")
        check_outputs(log, made, made.expected(events))
    assert json.loads(done("replay", app, "--log", kafka_url, "--compare", "--json").out)["differences"] == 0
