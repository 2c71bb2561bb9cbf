"""Programs beside a service, as the page on producers has them, write its events and read its outputs."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.log.kafka import KafkaLog
from tests.docs.page import ROOT, play
from tests.kafka.broker.artefacts import jars
from tests.kafka.broker.cluster import Cluster
from tests.kafka.commands import tailrace
from tests.soak.processes import wait_until

COUNTS = "tests.kafka.bad_input.counts"
START_MS = 1_700_000_000_000
JAVA = re.compile(r"^```java\n// (?P<name>\w+\.java)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_producers_and_a_reader_of_other_programs_do_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    kafka = tmp_path / "kafka"
    kafka.mkdir()
    (kafka / "libs").symlink_to(jars())
    monkeypatch.setenv("KAFKA_HOME", str(kafka))
    with Cluster(tmp_path) as cluster:  # of its own: the page names no prefix of topics
        page = (ROOT / "docs/producing.md").read_text("utf-8").replace("localhost:9092", cluster.bootstrap)
        (found,) = JAVA.finditer(page)
        (folder / found["name"]).write_text(found["code"], "utf-8")
        assert play(JAVA.sub("", page), folder) == 1


FAUST = """
import faust

app = faust.App(
    "neighbour",
    broker="kafka://{bootstrap}",
    processing_guarantee="exactly_once",
    consumer_auto_offset_reset="earliest",
    datadir="data",
)


class Order(faust.Record):
    key: str
    at_ms: int


class Total(faust.Record):
    key: str
    count: int


orders = app.topic("{prefix}orders", key_type=str, value_type=Order)
totals = app.topic("{prefix}totals", key_type=str, value_type=Total)


@app.task
async def produce() -> None:
    for number in range(10):
        at_ms = {now_ms} + number * 1_000
        await orders.send(key=f"k{{number}}", value=Order(f"k{{number}}", at_ms), timestamp=at_ms / 1_000)


@app.agent(totals)
async def read(stream) -> None:
    async for key, total in stream.items():
        with open("totals", "a") as file:
            file.write(f"{{key}} {{total.count}}\\n")
"""


@pytest.mark.long
def test_a_stock_faust_writes_events_and_reads_outputs(kafka_url: str, tmp_path: Path) -> None:
    bootstrap, _, prefix = kafka_url.removeprefix("kafka://").partition("/")
    (tmp_path / "neighbour.py").write_text(
        FAUST.format(bootstrap=bootstrap, prefix=prefix, now_ms=START_MS), "utf-8"
    )
    environment = {"TAILRACE_LOG": kafka_url, "TAILRACE_STATE": str(tmp_path / "state")}
    service = ("run", f"{COUNTS}:app", "--until-end")
    tailrace(*service, "--create-topics", environment=environment)
    command = [sys.executable, "-m", "faust", "-A", "neighbour", "worker", "--without-web"]
    with (tmp_path / "faust.log").open("wb") as log:
        faust = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        with closing(KafkaLog(kafka_url)) as seen:
            wait_until(lambda: sum(seen.end_offset("orders", one) for one in range(3)) >= 10, "Faust writes")
        tailrace(*service, environment=environment)
        found = tmp_path / "totals"
        wait_until(lambda: found.exists() and found.read_text().count("\n") == 10, "Faust reads")
    finally:
        faust.kill()
        faust.wait()
    assert sorted(found.read_text().splitlines()) == [f"k{number} 1" for number in range(10)]
