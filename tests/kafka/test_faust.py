"""A Faust app on the broker hands over to an app: its tables, its committed offsets, and records in both directions."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tailrace.core.records import Output
from tailrace.log import TopicPartition
from tailrace.log.interface import TopicSettings
from tailrace.log.kafka import KafkaLog
from tests.cli.commands import done, run
from tests.docs.page import ROOT
from tests.history.differences import from_the_log
from tests.kafka.outside import messages
from tests.kafka.processes import tailrace
from tests.runtime.processes import wait_until

APP = "tests.faust.takeover:app"
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000

FAUST = """
import faust

app = faust.App(
    "{prefix}shop", broker="kafka://{bootstrap}", topic_partitions=3, consumer_auto_offset_reset="earliest", datadir="data"
)


class Order(faust.Record):
    key: str
    at_ms: int
    deletes: bool = False


class Kept(faust.Record):
    first_ms: int
    orders: list[Order]


orders = app.topic("{prefix}orders", key_type=str, value_type=Order)
counts = app.Table("counts", default=int, partitions=3, key_type=str, value_type=int)
hours = app.Table("hours", default=int, partitions=3).tumbling(3600.0)
kept = app.Table("kept", partitions=3, key_type=str, value_type=Kept)


@app.agent(orders)
async def count(stream):
    async for order in stream:
        hours[order.key] += 1
        kept[order.key] = Kept(order.at_ms, [order])
        if order.deletes:
            if order.key in counts:
                del counts[order.key]
        else:
            counts[order.key] += 1
"""


def fed(numbers: range) -> list[dict[str, Any]]:
    draw = random.Random(f"{numbers}")
    return [
        {
            "key": f"k{draw.randrange(40)}",
            "at_ms": START_MS + n * 100 - draw.randrange(30_000),
            "deletes": draw.random() < 0.1,
        }
        for n in numbers
    ]


def outputs(events: list[dict[str, Any]]) -> list[Output]:
    return [Output("orders", e["key"].encode(), json.dumps(e).encode(), e["at_ms"]) for e in events]


def values(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    return [
        msgspec.json.decode(one.value() or b"")
        for partition in messages(bootstrap, topic)
        for one in partition
    ]


def counted(events: list[dict[str, Any]]) -> dict[str, int]:
    """The oracle: plain counting. A customer that was deleted and not seen since has 0."""
    found: dict[str, int] = {}
    for one in events:
        key = str(one["key"])
        found[key] = 0 if one["deletes"] else found.get(key, 0) + 1
    return found


@contextmanager
def faust(folder: Path, source: str) -> Generator[subprocess.Popen[bytes]]:
    (folder / "shop.py").write_text(source, "utf-8")
    with (folder / "faust.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "faust", "-A", "shop", "worker", "--without-web", "-l", "info"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_faust_app_hands_over_and_each_order_counts_once(kafka_url: str, tmp_path: Path) -> None:
    bootstrap, _, prefix = kafka_url.removeprefix("kafka://").partition("/")
    environment = {"TAILRACE_LOG": kafka_url, "TAILRACE_STATE": str(tmp_path / "state")}
    importing = ("faust", "import", APP, "--from", "faust://shop/counts", "--log", kafka_url)
    before, after = fed(range(600)), fed(range(600, 1_000))
    done("topics", "apply", "--app", APP, "--log", kafka_url)
    places = [TopicPartition("orders", number) for number in range(3)]
    with closing(KafkaLog(kafka_url)) as log:
        for table in ("counts", "hours", "kept"):  # one that Faust creates has no partitions for it at first
            log.create_topic(f"shop-{table}-changelog", TopicSettings(3, compacted=True))
        log.append_all(outputs(before))
        with faust(tmp_path, FAUST.format(bootstrap=bootstrap, prefix=prefix)) as process:

            def has_read_all() -> bool:
                offsets = log.offsets_before_open_transactions("shop", places)
                return process.poll() is not None or all(
                    offsets.get(one, 0) >= log.end_offset(*one) - 1 for one in places
                )

            wait_until(has_read_all, "Faust has counted")
            assert process.poll() is None, (tmp_path / "faust.log").read_text()
            refused = run(*importing)
            assert refused.code == 1
            assert "the Faust app 'shop' runs: its group has 1 member" in refused.err
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        log.append_all(outputs(after))
    there = {key: count for key, count in counted(before).items() if count}
    (ended,) = done(*importing, "--json").lines
    assert ended["appended"] == len(there)
    assert "the topic 'counts' has records" in run(*importing).err
    rest = (*importing[:3], "--log", kafka_url, "--from")
    done(*rest, "faust://shop/hours", "--windowed")
    done(*rest, "faust://shop/kept")
    tailrace("run", APP, "--until-end", environment=environment)
    tailrace("replay", APP, environment=environment)
    assert {one["key"]: one["value"] for one in values(bootstrap, f"{prefix}counts")} == there
    assert {one["key"]: one["count"] for one in values(bootstrap, f"{prefix}totals")} == counted(
        before + after
    )
    rebuild = ("rebuild", APP, "--order", "canonical", "--workers", "1", "--to", str(tmp_path / "made"))
    tailrace(*rebuild, environment=environment)
    assert from_the_log(APP, kafka_url, snapshot=tmp_path / "made") == []
    windows = Counter((one["key"], HOUR_MS * (one["at_ms"] // HOUR_MS)) for one in before)
    found = values(bootstrap, f"{prefix}hours")
    assert {(one["key"], one["start_ms"]): one["value"] for one in found} == windows
    assert {one["end_ms"] - one["start_ms"] for one in found} == {HOUR_MS - 100}
    last = {one["key"]: one for one in before}
    kept = {one["key"]: one["value"] for one in values(bootstrap, f"{prefix}kept")}
    assert kept == {key: {"first_ms": one["at_ms"], "orders": [one]} for key, one in last.items()}
    refused = run(*importing)
    assert (refused.code, "has run already" in refused.err) == (1, True)


BESIDE = """
import faust
from tailrace.faust.service import TailraceService

app = faust.App(
    "{prefix}neighbour", broker="kafka://{bootstrap}", processing_guarantee="exactly_once", topic_partitions=3,
    consumer_auto_offset_reset="earliest", datadir="beside",
)


class Order(faust.Record):
    key: str
    at_ms: int
    deletes: bool = False


class Total(faust.Record):
    key: str
    count: int


requests = app.topic("{prefix}requests", key_type=str, value_type=Order)
orders = app.topic("{prefix}orders", key_type=str, value_type=Order)
totals = app.topic("{prefix}totals", key_type=str, value_type=Total)


@app.service
class Beside(TailraceService):
    arguments = {arguments!r}


@app.agent(requests)
async def forward(stream):
    async for order in stream:
        await orders.send(key=order.key, value=order, timestamp=order.at_ms / 1000)


@app.agent(totals)
async def read(stream):
    async for key, total in stream.items():
        with open("totals", "a") as file:
            file.write(f"{{key}} {{total.count}}\\n")
"""


def test_an_app_runs_beside_agents_that_write_its_events_and_read_its_outputs(
    kafka_url: str, tmp_path: Path
) -> None:
    bootstrap, _, prefix = kafka_url.removeprefix("kafka://").partition("/")
    arguments = (APP, "--log", kafka_url, "--state", str(tmp_path / "state"))
    done("topics", "apply", "--app", APP, "--log", kafka_url)
    done("log", "create", "requests", "--partitions", 3, "--log", kafka_url)
    events = fed(range(200))
    written = tmp_path / "totals"
    with closing(KafkaLog(kafka_url)) as log:
        log.append_all([output._replace(topic="requests") for output in outputs(events)])
        source = BESIDE.format(bootstrap=bootstrap, prefix=prefix, arguments=arguments)
        with faust(tmp_path, source) as process:
            wait_until(
                lambda: (
                    process.poll() is not None
                    or (written.exists() and written.read_text().count("\n") >= 200)
                ),
                "the agent has read all totals",
            )
            assert process.poll() is None, (tmp_path / "faust.log").read_text()
            process.send_signal(signal.SIGTERM)
            # Faust itself may stay: if it commits between two transactions while it stops, one of its threads never ends.
            left = '"message":"left"'
            wait_until(
                lambda: process.poll() is not None or left in (tmp_path / "faust.log").read_text(),
                "the app has left",
            )
        with log.reserve("takeover", ()):  # the app has left its group
            pass
    found = [(key, int(count)) for key, count in map(str.split, written.read_text().splitlines())]
    assert len(found) == 200
    assert dict(found) == counted(events)
