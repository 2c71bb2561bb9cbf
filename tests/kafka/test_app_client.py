"""The client on Kafka: the laws of ``tests.client``, and how many events it sends."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import tailrace as tr
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log.kafka import KafkaLog
from tests.client import laws
from tests.client.shop import Paid, app, payments


@pytest.fixture
def place(log: KafkaLog) -> str:
    prepare_topics(log, app.plan(), create_declared=True)
    return log.place


def test_what_is_sent_is_read_handled_and_asked_for(place: str, tmp_path: Path) -> None:
    laws.check_sent_handled_and_asked(place, str(tmp_path / "state"))


def test_threads_share_commits_and_each_event_is_there_once(place: str) -> None:
    laws.check_many_threads(place)


def test_what_is_wrong_is_refused(place: str) -> None:
    laws.check_refusals(place)


def test_the_same_for_async_code(place: str) -> None:
    asyncio.run(laws.check_async(place))


def test_batches_of_events_are_acknowledged_fast(place: str) -> None:
    with tr.Client(app, place) as client:
        client.send(payments, Paid("a", 0, 0))
        begun = time.monotonic()
        for batch in range(10):
            client.send(payments, *(Paid(f"c{n % 100}", n, batch) for n in range(5_000)))
        rate = 50_000 / (time.monotonic() - begun)
    assert rate > 20_000  # 160,000 on two cores with other work beside
