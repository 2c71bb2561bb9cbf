"""A history of which the brokers have removed records is not replayed in part: it is refused, or noted while it is still whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient

from tailrace.core.errors import LogUnavailableError, OffsetGoneError, ReplayDivergedError
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.request import Destination, Failures, Request, Source
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.processes.app_loading import find_app
from tests.kafka.commands import tailrace
from tests.kafka.payments import Payments
from tests.soak.processes import wait_until

APP = "tests.kafka.transfers:app"
PLAN = find_app(APP).plan()


@pytest.fixture
def log(kafka_url: str) -> Iterator[KafkaLog]:
    log = KafkaLog(kafka_url)
    yield log
    log.close()


def lived(log: KafkaLog, folder: Path, pays: TopicSettings) -> None:
    """A service has run over some payments, of which the log keeps what ``pays`` says."""
    log.create_topic("pays", pays)
    prepare_topics(log, PLAN, create_declared=True)
    payments = Payments(log.place)
    for _ in range(5):
        payments.pay()
    payments.stop()
    tailrace("run", APP, "--log", log, "--state", folder / "state", "--end-of-input", "--after-end")


def asked(log: KafkaLog, folder: Path) -> Request:
    return Request(
        app=APP,
        source=Source(log=log.place),
        to=Destination(uri=str(folder / "rebuilt")),
        failures=Failures(any_environment=True),
    )


def test_records_that_were_deleted_are_named_and_nothing_is_replayed_without_them(
    log: KafkaLog, kafka: str, kafka_url: str, tmp_path: Path
) -> None:
    lived(log, tmp_path, TopicSettings(PLAN.partitions))
    whole = replay(PLAN, log, ReplayOptions(compare=True, any_environment=True))
    assert (whole.differences.count, whole.notes) == (0, [])
    tailrace("archive", "--log", log, "--to", tmp_path / "archive")
    place = At(f"{kafka_url.rpartition('/')[2]}pays", 1, 3)
    admin = AdminClient({"bootstrap.servers": kafka})
    for deleted in admin.delete_records([place]).values():
        deleted.result(60)
    for again in (
        lambda: replay(PLAN, log, ReplayOptions(any_environment=True)),
        lambda: rebuild(asked(log, tmp_path), LocalEngine(1)),
    ):
        with pytest.raises(
            OffsetGoneError,
            match=r"deleted offsets 0 to 2, which the .* begins with. The first one .* of 2023-11-14",
        ):
            again()
    into = tmp_path / "from-archive"
    tailrace("rebuild", APP, "--log", log, "--archive", tmp_path / "archive", "--to", into, "--workers", 1)


def test_a_reading_that_took_longer_than_brokers_leave_a_topic_alone_is_an_error(log: KafkaLog) -> None:
    """Rows could be missing. The brokers may compact as soon as the lag is over."""
    log.create_topic("bank.changelog", TopicSettings(1, compacted=True))
    with log.compaction_paused(["bank.changelog"]):
        pass
    with (
        pytest.raises(LogUnavailableError, match=r"min\.compaction\.lag\.ms"),
        log.compaction_paused(["bank.changelog"]),
    ):
        log.admin.alter("bank.changelog", {"min.compaction.lag.ms": "0"})


def test_an_input_that_was_compacted_is_not_replayed_in_part(log: KafkaLog, tmp_path: Path) -> None:
    lived(log, tmp_path, TopicSettings(PLAN.partitions, compacted=True))
    wanted = {
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "100",
    }
    log.admin.alter("pays", wanted)

    def count() -> int:
        return sum(1 for number in range(PLAN.partitions) for _ in scan(log, "pays", number))

    before, payments = count(), Payments(log.place)

    def is_compacted() -> bool:
        payments.pay()  # a segment is closed when another record comes
        return count() < before

    wait_until(is_compacted, "the broker has compacted the input")
    payments.stop()
    with pytest.raises((OffsetGoneError, ReplayDivergedError)):
        replay(PLAN, log, ReplayOptions(any_environment=True))
