"""Commands that read history succeed beside a service that commits all the time, and what they give is of one consistent cut.

The app moves money between accounts by messages. In a consistent cut the balances and the messages on their way add up to nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log.kafka import KafkaLog
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshots
from tests.kafka.commands import tailrace
from tests.kafka.payments import Payments, money, on_way
from tests.soak.processes import Process, wait_until

APP = "tests.kafka.transfers:app"
PLAN = find_app(APP).plan()


@pytest.fixture(scope="module")
def busy(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service in two processes that commits every 50 ms, and never rests: the URL of its log."""
    folder = tmp_path_factory.mktemp("busy")
    url = f"kafka://{kafka}/busy-{token_hex(6)}."
    log = KafkaLog(url)
    prepare_topics(log, PLAN, create_declared=True)
    payments = Payments(url)
    payments.pay()
    payments.start()
    service = [
        Process(
            folder / f"{name}.log",
            *("tailrace", "run", APP, "--log", url, "--state", folder / name, "--commit-interval", "50ms"),
        )
        for name in ("one", "two")
    ]
    try:
        wait_until(
            lambda: all("a partition runs" in one.text() for one in service), "both processes run tasks"
        )
        wait_until(lambda: log.end_offset("booked", 0) > 100, "messages have arrived")
        yield url
        assert [one.code() for one in service] == [None, None]
    finally:
        payments.stop()
        for one in service:
            one.kill()
        log.close()


def test_a_snapshot_stands_at_a_consistent_cut(busy: str, tmp_path: Path) -> None:
    log = KafkaLog(busy)
    snapshots, messages = Snapshots(str(tmp_path), PLAN.app), 0
    for _ in range(8):
        made = take_snapshot(PLAN, log, snapshots)
        found = snapshots.open(made.id)
        assert money(found) == 0
        messages += len(on_way(found))
    log.close()
    assert messages > 0, "no message was on its way: the test shows nothing"


def test_a_replay_equals_the_service(busy: str) -> None:
    found = json.loads(tailrace("replay", APP, "--log", busy, "--compare", "--json"))
    assert found["differences"] == 0
    assert found["records"] > 100


def test_an_archive_holds_a_consistent_cut(busy: str, tmp_path: Path) -> None:
    archive, into = tmp_path / "archive", tmp_path / "rebuilt"
    for _ in range(2):
        tailrace("archive", "--log", busy, "--to", archive)
    tailrace("rebuild", APP, "--archive", archive, "--to", into, "--workers", 1)
    assert money(Snapshots(str(into), PLAN.app).open()) == 0
