"""Commands that read history succeed beside a service that commits all the time, and what they give is of one consistent cut: also the
snapshot with which an app begins under another name.

The app moves money between accounts by messages. In a consistent cut the balances and the messages on their way add up to nothing.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log.kafka import KafkaLog
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshot, Snapshots
from tests.kafka.bank import Payments, balances, money, on_way
from tests.kafka.processes import Members, await_tasks, stopped, tailrace
from tests.runtime.processes import wait_until

APP = "tests.kafka.bank:app"
PLANS = {name: find_app(f"{APP}{as_}").plan() for name, as_ in (("bank", ""), ("copy", "@copy"))}
PARTITIONS = PLANS["bank"].partitions


def test_what_is_read_beside_a_service_is_of_one_cut_and_a_copy_comes_to_its_state(
    kafka_url: str, tmp_path: Path
) -> None:
    """A service in two processes; each message on its way in the snapshot is delivered once, to the copy, too."""
    with closing(KafkaLog(kafka_url)) as log, closing(Members(kafka_url, tmp_path)) as members:
        prepare_topics(log, PLANS["bank"], create_declared=True)

        def taken(app: str = "bank") -> Snapshot:
            snapshots = Snapshots(str(tmp_path / "taken"), app)
            return snapshots.open(take_snapshot(PLANS[app], log, snapshots).id)

        payments = Payments(kafka_url)
        payments.pay()
        payments.start()
        try:
            originals = [members.start(APP, name) for name in ("one", "two")]
            for process in originals:
                await_tasks(process, 1)
            wait_until(lambda: log.end_offset("booked", 0) > 100, "messages have arrived")
            snapshots = [taken() for _ in range(4)]
            while not on_way(snapshots[-1]) or not all(task.cut for task in snapshots[-1].manifest.tasks):
                snapshots.append(taken())
            assert [money(one) for one in snapshots] == [0] * len(snapshots)
            found = json.loads(tailrace("replay", APP, "--log", kafka_url, "--compare", "--json"))
            assert found["differences"] == 0
            assert found["records"] > 100
            archive, into = tmp_path / "archive", tmp_path / "rebuilt"
            tailrace("archive", "--log", kafka_url, "--to", archive)
            tailrace("rebuild", APP, "--archive", archive, "--to", into, "--workers", 1)
            assert money(Snapshots(str(into), "bank").open()) == 0

            automatic = Snapshots(str(tmp_path / "automatic"), "copy")
            options = [
                *("--as", "copy", "--from-snapshot", f"{tmp_path / 'taken'}#{snapshots[-1].manifest.id}"),
                *("--snapshots", str(tmp_path / "automatic"), "--snapshot-every", "1s"),
            ]
            copies = [members.start(APP, name, *options) for name in ("copy-one", "copy-two")]
            for process in copies:
                await_tasks(process, 1)
            assert sum(one.text().count("seeded") for one in copies) == PARTITIONS
            wait_until(lambda: len(automatic.list()) > 1, "snapshots are taken automatically")
            assert all(one.automatic for one in automatic.list())
            assert money(automatic.open()) == 0
            stopped(copies[0])
        finally:
            payments.close()

        def are_equal() -> bool:
            one, other = taken(), taken("copy")
            return not on_way(one) and not on_way(other) and balances(one) == balances(other)

        wait_until(are_equal, "the copy has the balances of the original")
        again = members.start(APP, "copy-one", *options)
        wait_until(
            lambda: "already begins with snapshot" in again.text(), "it finds that it has begun before"
        )
    found = json.loads(tailrace("replay", f"{APP}@copy", "--log", kafka_url, "--compare", "--json"))
    assert found["differences"] == 0
