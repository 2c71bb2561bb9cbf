"""Kafka deletes the offsets of a group that has had no member for a week, and with them all notes that are kept there: where an app began,
and where it left an input. Nothing is skipped or taken twice then; and an input must be the topic that was left, also after a move.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tailrace.core.errors import OffsetGoneError, OtherHistoryError
from tailrace.history.moving.moving import move_apps
from tailrace.history.provenance.topics import check_history
from tailrace.history.snapshots.start_from_snapshot import open_start
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tailrace.state.snapshots import Snapshots
from tests.history.tills import EVERY, KEYS, PARTITIONS, Tills, tills
from tests.kafka.outside import Outside

REPLACED = r"deleted and created again since the app.*topic 'cards'"


class Service(Tills):
    """The app on Kafka, whose group loses its offsets."""

    log: KafkaLog

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder, self.closing = url, folder, ExitStack()
        super().__init__(self.opened("one."))

    def opened(self, prefix: str) -> KafkaLog:
        self.outside = Outside(self.url + prefix)
        log = KafkaLog(self.outside.url)
        self.closing.callback(log.close)
        return log

    def expire(self, app: str = "tills") -> None:
        self.outside.expire(app)
        places = [TopicPartition(name, number) for name in self.log.topics() for number in range(PARTITIONS)]
        assert not self.log.committed_offsets(app, places)

    def pay_both(self) -> None:
        for topic in ("cash", "cards"):
            self.pay(topic, EVERY, 20)

    def leave_cards(self) -> None:
        self.pay_both()
        self.run("cash", "cards")
        self.pay("cash", EVERY, 20)
        self.run("cash")

    def move(self) -> None:
        source, self.log = self.log, self.opened("two.")
        move_apps([tills("cash")], source, self.log)

    def replace_cards(self) -> None:
        """Delete the topic, and let the app declare it again."""
        self.outside.delete("cards")
        self.log = KafkaLog(self.outside.url)
        self.closing.callback(self.log.close)
        prepare_log(self.log, tills("cash", "cards"), create_declared=True)

    def take(self, *inputs: str) -> str:
        """The id of a snapshot."""
        return take_snapshot(tills(*inputs), self.log, Snapshots(str(self.folder), "tills")).id


@pytest.fixture
def service(kafka_url: str, tmp_path: Path) -> Iterator[Service]:
    made = Service(kafka_url, tmp_path)
    yield made
    made.closing.close()


def test_records_that_were_deleted_before_a_task_has_committed_anything_are_missed(service: Service) -> None:
    service.pay("cash", KEYS[0], 10)
    service.run("cash", "cards")
    if service.log.end_offset("tills.tape", 1):
        pytest.fail("partition 1 has committed: the test shows nothing")
    service.expire()
    service.pay("cash", KEYS[1], 5)
    service.outside.delete_before("cash", 3, 1)
    for prepare in (False, True):  # a process that runs for longer, and one that starts
        with pytest.raises(OffsetGoneError, match="deleted offsets 0 to 2 of 'cash' partition 1"):
            service.run("cash", "cards", prepare=prepare)
    service.paid.subtract([KEYS[1][n % len(KEYS[1])] for n in range(3)])
    service.run("cash", "cards", after_deleted=True)


def test_an_input_that_is_declared_again_continues_where_it_was_left_and_after_a_move(
    service: Service,
) -> None:
    service.leave_cards()
    service.expire()
    service.pay("cash", EVERY, 20)
    service.run("cash")
    service.move()
    service.expire()
    service.pay_both()
    service.run("cash", "cards")
    service.pay("cash", EVERY, 20)
    service.run("cash")
    service.replace_cards()
    service.pay("cards", EVERY, 20)
    with pytest.raises(OtherHistoryError, match=REPLACED):
        service.run("cash", "cards")


def test_it_continues_where_it_was_left_in_a_state_from_a_snapshot(service: Service) -> None:
    service.leave_cards()
    service.expire()
    other = tills("cash", name="other")
    prepare_log(service.log, other, create_declared=True)
    start = open_start(f"{service.folder}#{service.take('cash')}", "tills", other, service.log)
    service.pay("cash", EVERY, 20)
    service.run("cash", name="other", start=start)
    service.expire("other")
    service.pay_both()
    service.run("cash", "cards", name="other")


def test_an_input_that_is_declared_again_must_be_the_topic_that_was_left(service: Service) -> None:
    """The position where it was left would skip the first records of a new topic."""
    service.leave_cards()
    service.replace_cards()
    service.expire()
    service.pay("cash", EVERY, 20)
    service.run("cash")
    check_history("tills", service.log, tills("cash").inputs)  # without it, its history can be read
    service.take("cash")
    paid = service.paid.copy()
    service.pay("cards", EVERY, 100)
    with pytest.raises(OtherHistoryError, match=REPLACED):
        check_history("tills", service.log, tills("cash", "cards").inputs)
    with pytest.raises(OtherHistoryError, match="topic 'cards'"):
        service.take("cash", "cards")
    with pytest.raises(OtherHistoryError, match=REPLACED):
        service.run("cash", "cards")
    service.paid = paid
    service.move()  # which leaves the position in the former topic behind
    assert "cards" not in service.log.topics()
    prepare_log(service.log, tills("cash", "cards"), create_declared=True)
    service.pay_both()
    service.run("cash", "cards")
