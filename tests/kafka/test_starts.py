"""An app begins with a snapshot on Kafka, under another name, in several processes; and takes snapshots by itself."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log.kafka import KafkaLog
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshot, Snapshots
from tests.kafka.commands import tailrace
from tests.kafka.payments import Payments, balances, money, on_way
from tests.soak.processes import Process, wait_until

APP = "tests.kafka.transfers:app"
PLAN = find_app(APP).plan()
COPY = find_app(f"{APP}@copy").plan()


def taken(log: KafkaLog, app: str, folder: Path) -> Snapshot:
    """A snapshot of an app as it stands."""
    snapshots = Snapshots(str(folder), app)
    return snapshots.open(take_snapshot(PLAN if app == PLAN.app else COPY, log, snapshots).id)


def test_a_copy_that_begins_with_a_snapshot_comes_to_the_state_of_the_original(
    kafka_url: str, tmp_path: Path
) -> None:
    """The snapshot is taken while the original runs, with messages on their way. Each of them is delivered once, to the copy, too."""
    log = KafkaLog(kafka_url)
    prepare_topics(log, PLAN, create_declared=True)
    payments = Payments(kafka_url)
    payments.pay()
    payments.start()
    processes: list[Process] = []

    def started(name: str, *options: object) -> Process:
        process = Process(
            tmp_path / f"{name}.log",
            *("tailrace", "run", APP, "--log", kafka_url, "--state", tmp_path / name),
            *("--commit-interval", "50ms", *options),
        )
        processes.append(process)
        return process

    try:
        started("original")
        wait_until(lambda: log.end_offset("booked", 0) > 50, "messages have arrived")
        begins = taken(log, PLAN.app, tmp_path / "begins")
        while not on_way(begins) or not all(task.cut for task in begins.manifest.tasks):
            begins = taken(log, PLAN.app, tmp_path / "begins")
        options = [
            *("--as", "copy", "--from-snapshot", f"{tmp_path / 'begins'}#{begins.manifest.id}"),
            *("--snapshots", str(tmp_path / "automatic"), "--snapshot-every", "1s"),
        ]
        copies = [started(name, *options) for name in ("copy-one", "copy-two")]
        wait_until(
            lambda: all("a partition runs" in one.text() for one in copies), "both run tasks of the copy"
        )
        assert sum(one.text().count("seeded") for one in copies) == PLAN.partitions
        wait_until(
            lambda: len(Snapshots(str(tmp_path / "automatic"), "copy").list()) > 1,
            "snapshots are taken automatically",
        )
        assert all(one.automatic for one in Snapshots(str(tmp_path / "automatic"), "copy").list())
        assert money(Snapshots(str(tmp_path / "automatic"), "copy").open()) == 0
        copies[0].signal(signal.SIGTERM)
        assert copies[0].ended() == 0
        payments.stop()

        def are_equal() -> bool:
            one, other = (taken(log, app, tmp_path / "ends") for app in (PLAN.app, "copy"))
            return not on_way(one) and not on_way(other) and balances(one) == balances(other)

        wait_until(are_equal, "the copy has the balances of the original")
        again = started("copy-one", *options)
        wait_until(
            lambda: "already begins with snapshot" in again.text(), "it finds that it has begun before"
        )
    finally:
        payments.stop()
        for one in processes:
            one.kill()
    found = json.loads(tailrace("replay", f"{APP}@copy", "--log", kafka_url, "--compare", "--json"))
    assert found["differences"] == 0
    log.close()
