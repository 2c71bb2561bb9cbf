"""The monitor of dead letters beside a service on Kafka. A look never waits for a transaction that is open."""

from __future__ import annotations

from contextlib import closing

from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.options import LogOptions
from tailrace.log.threads import in_thread
from tailrace.runtime.dead_letter_monitor import DeadLetterMonitor
from tests.soak.processes import wait_until

TOPIC = "shop.dead-letters"
HEADERS = (
    ("tailrace-reason", b"wrong-type"),
    ("tailrace-error", b"Expected int"),
    ("tailrace-topic", b"purchases"),
    ("tailrace-partition", b"1"),
    ("tailrace-offset", b"7"),
)
LETTER = Output(TOPIC, b"b", b"{}", 5, HEADERS)


def test_a_look_does_not_wait_for_the_transaction_of_its_own_process(kafka_url: str) -> None:
    with closing(KafkaLog(kafka_url, LogOptions(hidden_s=600.0, patience_s=600.0))) as log:
        log.create_topic(TOPIC, TopicSettings(2))
        monitor = DeadLetterMonitor(log, "shop")
        writer = log.writer("w")
        writer.append([LETTER] * 3, 0)
        wait_until(lambda: log.end_offset(TOPIC, 0) == 3, "the letters are at the broker")
        look = in_thread("look", monitor.look)
        wait_until(look.done, "the look has ended", 60)
        assert not monitor.counts
        writer.commit(None, "")

        def counted() -> bool:
            monitor.look()
            return monitor.counts.total() == 3

        wait_until(counted, "the letters are counted")
        writer.append([LETTER] * 2, 1)
        writer.commit(None, "")
        assert monitor.finish().total() == 5, "the last look reads all that was committed"
        writer.close()
