"""A reader goes to another position while records wait in its buffers."""

from __future__ import annotations

from contextlib import closing

from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tests.log.contract import A
from tests.soak.processes import wait_until

COUNT = 30_000
"""More than a buffer takes, so the partition is paused."""


def test_a_seek_in_the_middle_of_a_backlog_is_read_from(kafka_url: str) -> None:
    with closing(KafkaLog(kafka_url)) as log:
        log.create_topic("a", TopicSettings(1))
        log.append_all(Output("a", b"k", b"v", 1) for _ in range(COUNT))
        with closing(log.reader({A: 0}, live=True)) as reader:
            for start in (5, 500, 0):
                wait_until(lambda: reader.fetch("a", 0, 1).records, "there is a backlog", 60)
                reader.seek("a", 0, start)
                assert reader.fetch("a", 0, 1).next_offset == start + 1
