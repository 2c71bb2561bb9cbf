"""Random programs of windows and joins on Kafka: with members that come and go, against the composed oracles, and replayed."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.log.kafka import KafkaLog
from tests.cli.commands import done
from tests.kafka.members import Members, come_and_go
from tests.library.random_programs import FIXED, more_seeds, program, records
from tests.library.test_random_programs import app_of, check_outputs, outputs


@pytest.mark.parametrize("seed", [FIXED[0], *more_seeds()])
def test_programs_with_members_that_come_and_go(kafka_url: str, tmp_path: Path, seed: int) -> None:
    made, app = program(seed), app_of(seed)
    plan, events = made.app.plan(), made.events(1_000)
    with closing(KafkaLog(kafka_url)) as log, closing(Members(kafka_url, tmp_path)) as members:
        parts = records(events[:500]), records(events[500:700]), records(events[700:])
        state = come_and_go(members, log, app, plan, parts, lambda: bool(outputs(log, made).given))
        done("run", app, "--log", kafka_url, "--state", state, "--end-of-input")
        check_outputs(log, made, made.expected(events))
    assert json.loads(done("replay", app, "--log", kafka_url, "--compare", "--json").out)["differences"] == 0
