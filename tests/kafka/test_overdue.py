"""A handler that is slower than ``transaction.timeout.ms`` keeps its process from committing anything. The process says so."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec

from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tests.kafka import naps
from tests.kafka.members import SESSION, Members
from tests.log.contract import visible
from tests.soak.processes import wait_until

APP = "tests.kafka.naps:app"
PLAN = naps.app.plan()
SETTING = "TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS"
TIMEOUT_S, NAP_S = 3, 5
QUICK = 300
"""More than are taken at once, so the transaction is open before the slow one."""


def nap(number: int, seconds: float) -> Output:
    event = naps.Nap("k", seconds, 1_000_000 + number)
    return Output("naps", b"k", msgspec.json.encode(event), event.at_ms)


def test_a_process_whose_handlers_outlast_its_transactions_names_the_setting(
    kafka_url: str, tmp_path: Path
) -> None:
    with closing(KafkaLog(kafka_url)) as log, closing(Members(kafka_url, tmp_path)) as members:
        prepare_topics(log, PLAN, create_declared=True)
        log.append_all([*(nap(number, 0) for number in range(QUICK)), nap(QUICK, NAP_S)])
        short = {**SESSION, SETTING: str(1_000 * TIMEOUT_S)}
        stuck = members.start(APP, "stuck", "--commit-interval", f"{TIMEOUT_S * 500}ms", environment=short)
        wait_until(lambda: SETTING in stuck.text(), "it names the setting")
        stuck.kill()
        members.start(APP, "stuck")
        wait_until(lambda: len(visible(log, TopicPartition("rested", 0))) > QUICK, "all is committed")
