"""A service on Kafka gives what it gives on the embedded log. Tasks move between its processes. Options it does not have are refused."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tailrace.core.records import InputRecord, Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log import Log, TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.kafka import KafkaLog
from tailrace.processes.app_loading import find_app
from tests.cli.commands import run
from tests.kafka.commands import tailrace
from tests.soak.processes import Process, wait_until

APP = "services.count_with_timeout:app"
PLAN = find_app(APP).plan()


def events() -> list[Output]:
    """The same for both logs: 5,000 events of 50 keys, some out of order."""
    return [
        Output(
            "activity",
            b"k%d" % (number * 7 % 50),
            b'{"key":"k%d","at_ms":%d}'
            % (number * 7 % 50, 1_700_000_000_000 + number * 90 - number % 5 * 40),
            1_700_000_000_000 + number * 90,
        )
        for number in range(5_000)
    ]


def everything(log: Log, topic: str) -> list[list[InputRecord]]:
    found: list[list[InputRecord]] = []
    for number in range(log.partitions(topic)):
        place, end = TopicPartition(topic, number), log.end_offset(topic, number)
        reader = log.reader({place: 0})
        records: list[InputRecord] = []
        position = 0
        while position < end:
            fetched = reader.fetch(*place, 10_000)
            records += fetched.records
            position = fetched.next_offset
        reader.close()
        found.append(records)
    return found


@pytest.fixture
def log(kafka_url: str) -> Iterator[KafkaLog]:
    log = KafkaLog(kafka_url)
    prepare_topics(log, PLAN, create_declared=True)
    yield log
    log.close()


def test_outputs_are_those_of_the_embedded_log_byte_for_byte(log: KafkaLog, tmp_path: Path) -> None:
    embedded = EmbeddedLog(tmp_path / "log")
    prepare_topics(embedded, PLAN, create_declared=True)
    for one in (log, embedded):
        one.append_all(events())
    for place, state in ((str(log), "kafka"), (tmp_path / "log", "embedded")):
        tailrace("run", APP, "--log", place, "--state", tmp_path / state, "--end-of-input", "--after-end")
    mine, theirs = everything(log, "counts"), everything(embedded, "counts")
    assert [[one[1:] for one in records] for records in mine] == [
        [one[1:] for one in records] for records in theirs
    ]
    assert sum(map(len, mine)) > 4_000
    embedded.close()


def test_tasks_move_to_a_process_that_joins_and_back_when_it_is_killed(log: KafkaLog, tmp_path: Path) -> None:
    feed = iter(chain(events()))
    environment = {"TAILRACE_KAFKA_CONSUMER_SESSION_TIMEOUT_MS": "6000"}

    def some(count: int) -> None:
        log.append_all([next(feed) for _ in range(count)])

    def started(name: str) -> Process:
        return Process(
            tmp_path / f"{name}.log",
            *("tailrace", "run", APP, "--log", log, "--state", tmp_path / name, "--commit-interval", "100ms"),
            environment=environment,
        )

    one = started("one")
    two: Process | None = None
    try:
        some(1_000)
        wait_until(lambda: begun(one) >= 4, "one runs everything")
        two = joined = started("two")
        wait_until(lambda: begun(joined) >= 2, "two runs its half")
        some(2_000)
        before = begun(one)
        joined.signal(signal.SIGKILL)
        some(2_000)
        wait_until(lambda: begun(one) >= before + 2, "one runs everything again")
        one.signal(signal.SIGTERM)
        assert one.ended() == 0
    finally:
        for process in (one, two):
            if process is not None:
                process.kill()
    tailrace("run", APP, "--log", log, "--state", tmp_path / "one", "--end-of-input", "--after-end")
    embedded = EmbeddedLog(tmp_path / "log")
    prepare_topics(embedded, PLAN, create_declared=True)
    embedded.append_all(events())
    tailrace(
        "run",
        APP,
        "--log",
        tmp_path / "log",
        "--state",
        tmp_path / "embedded",
        "--end-of-input",
        "--after-end",
    )
    for mine, theirs in zip(everything(log, "counts"), everything(embedded, "counts"), strict=True):
        assert sorted(bare(one) for one in mine) == sorted(bare(one) for one in theirs)
    embedded.close()


def begun(process: Process) -> int:
    """How often a task has begun to run; on a busy machine the group may give it more often than the test needs."""
    return process.text().count("a partition runs")


def bare(record: InputRecord) -> tuple[Any, ...]:
    return record.timestamp_ms, record.key, record.value


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", APP, "--log", "kafka://", "--state", "s"], "kafka://host:9092"),
        (["run", APP, "--log", "kafka://127.0.0.1:1", "--workers", "2"], "--workers is not for Kafka"),
        (
            ["run", APP, "--log", "kafka://127.0.0.1:1", "--from-snapshot", "x"],
            "needs the name or id of a snapshot",
        ),
        (["log", "verify", "--log", "kafka://127.0.0.1:1"], "works with the embedded log only"),
    ],
)
def test_what_is_not_there_on_kafka_is_refused_by_name(tmp_path, monkeypatch, arguments, told) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.code
    assert told in done.err
