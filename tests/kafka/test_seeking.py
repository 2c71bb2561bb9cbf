"""A reader goes to another position while records wait in its buffers."""

from __future__ import annotations

import pytest

from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka import reader as reader_
from tailrace.log.options import LogOptions
from tests.log.contract import A
from tests.soak.processes import wait_until


def test_a_seek_in_the_middle_of_a_backlog_is_read_from(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_, "_FULL", 100)
    log = KafkaLog(kafka_url, LogOptions(patience_s=10.0))
    log.create_topic("a", TopicSettings(1))
    log.append_all([Output("a", b"k", b"%d" % number, 1) for number in range(1_000)])
    reader = log.reader({A: 0}, live=True)
    try:
        for start in (5, 500, 0):
            wait_until(lambda: reader.fetch("a", 0, 1).records, "there is a backlog", 60)
            assert [part.paused for part in reader._parts.values()] == [True]
            reader.seek("a", 0, start)
            assert reader.fetch("a", 0, 1).next_offset == start + 1
    finally:
        reader.close()
        log.close()
