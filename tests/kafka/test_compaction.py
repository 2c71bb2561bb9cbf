"""What the brokers remove, by compaction or retention: a table has the same values as before, and no history is read in part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.core.errors import LogUnavailableError, OffsetGoneError, ReplayDivergedError
from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.request import Destination, Failures, Request, Source
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.processes.app_loading import find_app
from tests.kafka.bank import Payments
from tests.kafka.outside import Outside
from tests.kafka.processes import tailrace
from tests.runtime.processes import wait_until
from tests.tables.lived import Life
from tests.tables.stock import PARTITIONS, oracle, reader, table_in

APP = "tests.kafka.bank:app"
PLAN = find_app(APP).plan()


@pytest.fixture
def log(kafka_url: str) -> Iterator[KafkaLog]:
    with closing(KafkaLog(kafka_url)) as made:
        yield made


def compact(log: KafkaLog, topic: str, count: Callable[[], int], write: Callable[[], None]) -> None:
    """Wait until the brokers have compacted a topic. A segment is closed when another record comes, which ``write`` adds."""
    wanted = {
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "100",
    }
    before = count()
    log.admin.alter(topic, wanted)

    def is_compacted() -> bool:
        write()
        return count() < before

    wait_until(is_compacted, "the brokers have compacted it")


def test_a_table_is_what_a_dict_is_before_and_after_a_compaction_and_is_not_replayed_in_part(
    log: KafkaLog, tmp_path: Path
) -> None:
    life = Life(log, tmp_path)

    def of_other_keys() -> None:
        """They change no value."""
        log.append_all([Output("stocks", b"other", None, time.time_ns() // 1_000_000)] * 2)

    life.change(60)
    life.run("reader", "--until-end")
    assert table_in(log) == life.copy("reader") == oracle(life.events)
    compact(log, "stocks", lambda: life.records, of_other_keys)
    assert table_in(log) == oracle(life.events)
    with pytest.raises((OffsetGoneError, ReplayDivergedError)):
        replay(reader.plan(), log, ReplayOptions(any_environment=True))
    life.change(30)
    wanted = oracle(life.events)
    for reading in ("reader", "late"):  # one that continues, and one that comes now
        life.run(reading, "--until-end")
        assert life.copy(reading) == table_in(log) == wanted, reading


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_topic_from_which_values_are_deleted_is_no_table(log: KafkaLog, policy: str) -> None:
    log.create_topic("stocks", TopicSettings(PARTITIONS))
    log.admin.alter("stocks", {"cleanup.policy": policy, "retention.ms": "1000"})
    done = tailrace("topics", "plan", "--app", "tests.tables.stock:reader", "--log", log, "--json", code=4)
    assert '"cleanup.policy"' in done
    assert "--add-config cleanup.policy=compact" in done


def test_records_that_were_deleted_are_named_and_nothing_is_replayed_without_them(
    log: KafkaLog, tmp_path: Path
) -> None:
    prepare_topics(log, PLAN, create_declared=True)
    with closing(Payments(log.place)) as payments:
        for _ in range(5):
            payments.pay()
    tailrace("run", APP, "--log", log, "--state", tmp_path / "state", "--end-of-input", "--after-end")
    whole = replay(PLAN, log, ReplayOptions(compare=True, any_environment=True))
    assert (whole.differences.count, whole.notes) == (0, [])
    tailrace("archive", "--log", log, "--to", tmp_path / "archive")
    Outside(log.place).delete_before("pays", 3, 1)
    asked = Request(
        app=APP,
        source=Source(log=log.place),
        to=Destination(uri=str(tmp_path / "rebuilt")),
        failures=Failures(any_environment=True),
    )
    gone = r"deleted offsets 0 to 2, which the .* begins with. The first one .* of 2023-11-14"
    with pytest.raises(OffsetGoneError, match=gone):
        replay(PLAN, log, ReplayOptions(any_environment=True))
    with pytest.raises(OffsetGoneError, match=gone):
        rebuild(asked, LocalEngine(1))
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
