"""A default producer of confluent-kafka spreads keys by CRC32. The error names its setting and two ways on, which work on an existing app."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer

from tests.kafka.bad_input.counts import Order, Total
from tests.kafka.commands import tailrace
from tests.kafka.outside import messages

COUNTS = "tests.kafka.bad_input.counts"
KEYS = [f"k{number}" for number in range(10)]
START_MS = 1_700_000_000_000


class Way:
    """The service by its commands, and producers beside it."""

    def __init__(self, url: str, state: Path, environment: Mapping[str, str]) -> None:
        self.environment = {**environment, "TAILRACE_LOG": url, "TAILRACE_STATE": str(state)}
        self.bootstrap, _, self.prefix = url.removeprefix("kafka://").partition("/")
        self.now_ms = START_MS

    def produce(self, **settings: str) -> None:
        """An order of each key, by a producer with these settings and else its defaults."""
        producer = Producer({"bootstrap.servers": self.bootstrap, **settings})
        for key in KEYS:
            self.now_ms += 1_000
            order = msgspec.json.encode(Order(key, self.now_ms))
            producer.produce(f"{self.prefix}orders", order, key, timestamp=self.now_ms)
        assert producer.flush(30) == 0

    def run(self, app: str, *arguments: str) -> None:
        """Run the service until it has read all."""
        said = arguments or ("--until-end",)
        tailrace("run", f"{COUNTS}:{app}", *said, environment=self.environment)

    def refused(self, app: str) -> str:
        """The error of a run that fails."""
        done = subprocess.run(
            [sys.executable, "-m", "tailrace", "run", f"{COUNTS}:{app}", "--until-end"],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
            timeout=300,
        )
        assert done.returncode == 1, done.stderr
        return str(msgspec.json.decode(done.stderr.splitlines()[-1])["message"])

    def totals(self) -> dict[str, list[int]]:
        """The totals of each key, as another program reads them."""
        found: dict[str, list[int]] = {}
        for message in (
            one for partition in messages(self.bootstrap, f"{self.prefix}totals") for one in partition
        ):
            total = msgspec.json.decode(message.value() or b"", type=Total)
            found.setdefault(total.key, []).append(total.count)
        return found


@pytest.fixture
def way(kafka_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Way:
    """An app that has run, and is stopped by the first event of a default producer."""
    made = Way(kafka_url, tmp_path, {**os.environ, **getattr(request, "param", {})})
    made.run("app", "--until-end", "--create-topics")
    made.produce(partitioner="murmur2_random")
    made.run("app")
    made.produce()
    said = made.refused("app")
    for words in (
        "belongs to partition",
        "partitioner=murmur2_random",
        'on_error="dead-letter"',
        "tailrace dead-letters redrive APP --reason foreign-partition",
        "repartition=True",
        "--change-inputs --create-topics",
    ):
        assert words in said
    return made


@pytest.mark.long
@pytest.mark.parametrize("way", [{}, {"COUNTS_ORDERED": "yes"}], indirect=True, ids=["arrival", "event-time"])
def test_what_a_default_producer_has_written_is_redriven_and_the_corrected_producer_goes_on(way: Way) -> None:
    way.run("dead_lettering", "--until-end", "--allow-dead-letters")
    way.produce(partitioner="murmur2_random")
    # Again: those that an ordered actor kept waiting are handled now.
    way.run("dead_lettering", "--until-end", "--allow-dead-letters")
    redrive = ("dead-letters", "redrive", "counts", "--reason", "foreign-partition")
    assert "0 dead letters were redriven" not in tailrace(*redrive, environment=way.environment)
    way.run("app", "--end-of-input")
    assert way.totals() == {key: [1, 2, 3] for key in KEYS}
    tailrace("replay", f"{COUNTS}:app", environment=way.environment)


@pytest.mark.long
def test_an_app_that_has_run_reads_a_default_producer_by_repartitioning(way: Way) -> None:
    way.run("repartitioned", "--until-end", "--change-inputs", "--create-topics")
    way.produce()
    way.run("repartitioned")
    assert way.totals() == {key: [1, 2, 3] for key in KEYS}
