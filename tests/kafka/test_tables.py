"""A table on Kafka, which the brokers compact."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tests.kafka.commands import tailrace
from tests.soak.processes import wait_until
from tests.tables.lived import Life, live
from tests.tables.stock import PARTITIONS


@pytest.fixture
def log(kafka_url: str) -> Iterator[KafkaLog]:
    log = KafkaLog(kafka_url)
    yield log
    log.close()


@pytest.mark.long
def test_a_table_is_what_a_dict_is_before_and_after_a_compaction(log: KafkaLog, tmp_path: Path) -> None:
    life = Life(log, tmp_path)

    def compact() -> None:
        wanted = {
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0",
            "min.compaction.lag.ms": "0",
            "max.compaction.lag.ms": "100",
        }
        before = life.records
        log.admin.alter("stocks", wanted)

        def is_compacted() -> bool:
            # A segment is closed when another record comes; those of other keys change no value
            log.append_all([Output("stocks", b"other", None, time.time_ns() // 1_000_000)] * 2)
            return life.records < before

        wait_until(is_compacted, "the brokers have compacted the table")

    live(life, compact)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_topic_from_which_values_are_deleted_is_no_table(log: KafkaLog, policy: str) -> None:
    log.create_topic("stocks", TopicSettings(PARTITIONS))
    log.admin.alter("stocks", {"cleanup.policy": policy, "retention.ms": "1000"})
    app = ("tests.tables.stock:reader", "--log", log.place)
    done = tailrace("topics", "plan", "--app", *app, "--json", code=4)
    assert '"cleanup.policy"' in done
    assert "--add-config cleanup.policy=compact" in done
