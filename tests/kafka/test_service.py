"""A service on Kafka gives what it gives on the embedded log. Options it does not have are refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.reading.stretches import scan
from tailrace.log import Log
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.kafka import KafkaLog
from tailrace.processes.app_loading import find_app
from tests.cli.commands import run
from tests.kafka.processes import tailrace

APP = "services.count_with_timeout:app"
PLAN = find_app(APP).plan()


def events() -> list[Output]:
    """5,000 events of 50 keys, some out of order."""
    start = 1_700_000_000_000
    return [
        Output("activity", b"k%d" % key, b'{"key":"k%d","at_ms":%d}' % (key, at - number % 5 * 40), at)
        for number, key, at in ((number, number * 7 % 50, start + number * 90) for number in range(5_000))
    ]


def counted(log: Log) -> list[list[tuple[object, ...]]]:
    """The outputs by partition, without their offsets."""
    return [
        [tuple(one[1:]) for one in scan(log, "counts", number)] for number in range(log.partitions("counts"))
    ]


def test_outputs_are_those_of_the_embedded_log_byte_for_byte(kafka_url: str, tmp_path: Path) -> None:
    with closing(KafkaLog(kafka_url)) as log, closing(EmbeddedLog(tmp_path / "log")) as embedded:
        for one in (log, embedded):
            prepare_topics(one, PLAN, create_declared=True)
            one.append_all(events())
        for place, state in ((kafka_url, "kafka"), (tmp_path / "log", "embedded")):
            tailrace("run", APP, "--log", place, "--state", tmp_path / state, "--end-of-input", "--after-end")
        assert counted(log) == counted(embedded)
        assert sum(map(len, counted(log))) > 4_000


NOWHERE = "kafka://127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", APP, "--log", "kafka://", "--state", "s"], "kafka://host:9092"),
        (["run", APP, "--log", NOWHERE, "--workers", "2"], "--workers is not for Kafka"),
        (["run", APP, "--log", NOWHERE, "--from-snapshot", "x"], "needs the name or id of a snapshot"),
        (["log", "copy", "copied", "--log", NOWHERE], "works with the embedded log only"),
    ],
)
def test_what_is_not_there_on_kafka_is_refused_by_name(tmp_path, monkeypatch, arguments, told) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.code
    assert told in done.err
