"""A Faust app on the broker hands over to an app: its tables, its committed offsets, and records in both directions."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.log import TopicPartition
from tailrace.log.interface import TopicSettings
from tailrace.log.kafka import KafkaLog
from tests.cli.commands import done, run
from tests.docs.page import ROOT
from tests.history.differences import from_the_log
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


def outputs(topic: str, events: list[dict[str, Any]]) -> list[Output]:
    return [Output(topic, e["key"].encode(), json.dumps(e).encode(), e["at_ms"]) for e in events]


def values(log: KafkaLog, topic: str) -> list[dict[str, Any]]:
    records = [one for number in range(log.partitions(topic)) for one in scan(log, topic, number)]
    return [msgspec.json.decode(one.value or b"") for one in records]


def counted(events: list[dict[str, Any]]) -> dict[str, int]:
    """The oracle: plain counting. A customer that was deleted and not seen since has 0."""
    found: dict[str, int] = {}
    for one in events:
        key = str(one["key"])
        found[key] = 0 if one["deletes"] else found.get(key, 0) + 1
    return found


@contextmanager
def faust(folder: Path, source: str, until: Callable[[], bool]) -> Generator[subprocess.Popen[bytes]]:
    """A worker of Faust that has come so far."""
    (folder / "shop.py").write_text(source, "utf-8")
    with (folder / "faust.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "faust", "-A", "shop", "worker", "--without-web", "-l", "info"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'framework'}:{ROOT}"},
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: process.poll() is not None or until(), "Faust has done its work")
        assert process.poll() is None, (folder / "faust.log").read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_faust_app_hands_over_and_an_app_beside_another_counts_each_order_once(
    kafka_url: str, log: KafkaLog, tmp_path: Path
) -> None:
    """The second Faust app writes its events, runs it as a service, and reads its outputs."""
    bootstrap, _, prefix = kafka_url.removeprefix("kafka://").partition("/")
    where = ("--log", kafka_url)
    importing = ("faust", "import", APP, *where, "--from", "faust://shop/counts")
    before, after = fed(range(600)), fed(range(600, 1_000))
    done("topics", "apply", "--app", APP, *where)
    places = [TopicPartition("orders", number) for number in range(3)]
    for table in ("counts", "hours", "kept"):  # one that Faust creates has no partitions for it at first
        log.create_topic(f"shop-{table}-changelog", TopicSettings(3, compacted=True))
    log.append_all(outputs("orders", before))

    def has_read_all() -> bool:
        offsets = log.offsets_before_open_transactions("shop", places)
        return all(offsets.get(one, 0) >= log.end_offset(*one) - 1 for one in places)

    with faust(tmp_path, FAUST.format(bootstrap=bootstrap, prefix=prefix), has_read_all) as process:
        refused = run(*importing)
        assert refused.code == 1
        assert "the Faust app 'shop' runs: its group has 1 member" in refused.err
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    there = {key: count for key, count in counted(before).items() if count}
    (ended,) = done(*importing, "--json").lines
    assert ended["appended"] == len(there)
    assert "the topic 'counts' has records" in run(*importing).err
    done(*importing[:-1], "faust://shop/hours", "--windowed")
    done(*importing[:-1], "faust://shop/kept")

    written, wanted = tmp_path / "totals", counted(before + after)
    log.create_topic("requests", TopicSettings(3))
    log.append_all(outputs("requests", after))

    def has_counted_all() -> bool:
        lines = written.read_text().splitlines(True) if written.exists() else []
        found = dict(line.split() for line in lines if line.endswith("\n"))
        return found == {key: str(count) for key, count in wanted.items()}

    arguments = (APP, *where, "--state", str(tmp_path / "state"))
    source = BESIDE.format(bootstrap=bootstrap, prefix=prefix, arguments=arguments)
    with faust(tmp_path, source, has_counted_all) as process:
        process.send_signal(signal.SIGTERM)
        # Faust itself may stay: if it commits between two transactions while it stops, one of its threads never ends.
        left = '"message":"left"'
        wait_until(
            lambda: process.poll() is not None or left in (tmp_path / "faust.log").read_text(),
            "the app has left",
        )
    with log.reserve("takeover", ()):  # the app has left its group
        pass
    # Faust may also leave a transaction open, which ends by its time-out.
    cluster = log._cluster
    wait_until(lambda: cluster.stable_ends(places) == cluster.ends(places), "all orders can be read")
    done("replay", APP, *where)
    assert {one["key"]: one["value"] for one in values(log, "counts")} == there
    assert {one["key"]: one["count"] for one in values(log, "totals")} == wanted
    done("rebuild", APP, *where, "--order", "stages", "--workers", "1", "--to", tmp_path / "made")
    assert from_the_log(APP, kafka_url, snapshot=tmp_path / "made") == []
    windows = Counter((one["key"], HOUR_MS * (one["at_ms"] // HOUR_MS)) for one in before)
    found = values(log, "hours")
    assert {(one["key"], one["start_ms"]): one["value"] for one in found} == windows
    assert {one["end_ms"] - one["start_ms"] for one in found} == {HOUR_MS - 100}
    last = {one["key"]: one for one in before}
    kept = {one["key"]: one["value"] for one in values(log, "kept")}
    assert kept == {key: {"first_ms": one["at_ms"], "orders": [one]} for key, one in last.items()}
    refused = run(*importing)
    assert (refused.code, "has run already" in refused.err) == (1, True)
