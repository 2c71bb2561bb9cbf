"""Laws on the benchmarks on Kafka: they run, and the raw loop does the work of the service."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from benchmarks.kafka.apps import EVENTS, TOTALS, counting
from benchmarks.kafka.broker import BROKER
from benchmarks.kafka.costs import PARTS, THREADS
from benchmarks.kafka.house import KafkaHouse
from benchmarks.kafka.raw import OUT, RawLoop
from benchmarks.measure import Row
from benchmarks.served.house import endless
from tailrace.history.reading.stretches import scan
from tailrace.log import TopicPartition
from tests.runtime.processes import ROOT

TARGETS = [
    "a worker, exactly once, processor time",
    "a worker, exactly once, by the wall",
    "a timer set and fired per event",
    "a timer moved per event",
    "latency at 5,000 events/s, 99 of 100",
    "entries restored from nothing",
]
CASES = ("kafka-worker", "kafka-timers", "kafka-latency", "kafka-restore")
"""Of the others, two workers and flights run on the embedded log, in tests/test_benchmarks.py; each takes 10 s."""


pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def _broker(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROKER, kafka)


def run(temporary: Path, *arguments: str) -> bytes:
    """A benchmark as a process. What it prints."""
    path = os.pathsep.join(filter(None, (str(ROOT / "framework"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_cases_run_give_whole_rows_and_judge_nothing(tmp_path: Path) -> None:
    told = run(tmp_path, "benchmarks.run", "--quick", "--kafka", "--here", *CASES)
    rows = msgspec.json.decode(told, type=list[Row])
    assert all(row.measured > 0 and row.unit and row.met is None for row in rows)
    with_target = [row.case for row in rows if row.target]
    assert [name for name in TARGETS if not any(name in case for case in with_target)] == []
    assert list(tmp_path.iterdir()) == []
    told = run(tmp_path, "benchmarks.kafka.costs", "counting", "1000", "50")
    for part in ("in all", THREADS, PARTS[0][2], PARTS[-1][2]):
        assert f"| {part} " in told.decode()


def test_the_raw_loop_makes_the_outputs_of_the_service() -> None:
    def outputs(topic: str) -> list[list[tuple[bytes | None, bytes | None]]]:
        return [[(one.key, one.value) for one in scan(house.log, topic, number)] for number in range(4)]

    with KafkaHouse(counting) as house, house.start("benchmarks.kafka.apps:counting", 50) as service:
        taken = house.take([service], counting.name, islice(endless(50), 2_000))
        assert taken.events == 2_000
        loop = RawLoop(house.log, house.url, 50)
        places = [TopicPartition(EVENTS, number) for number in range(4)]
        assert loop.run(house.taken(counting.name, places)) == 2_000
        loop.close()
        assert outputs(OUT) == outputs(TOTALS)
        assert house.count(TOTALS) == 2_000
