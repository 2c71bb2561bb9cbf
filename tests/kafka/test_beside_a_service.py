"""Commands that read history succeed beside a service that commits all the time, and what they give is of one consistent cut: also the
snapshot with which an app begins under another name.

Actors of the cast send each other money: none is ever lost or made. In a consistent cut the balances and the messages on their way add up
to nothing.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec

from tailrace.core import rows
from tailrace.core.errors import TailraceError
from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log.kafka import KafkaLog
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshot, Snapshots
from tests.cast.member import START_MS, Event
from tests.cli.commands import done
from tests.kafka.processes import Members, stopped
from tests.runtime.processes import wait_until

APP = "tests.cast.apps:messages_0"
PLAN = find_app(APP).plan()
PLANS = {"messages": PLAN, "copy": find_app(f"{APP}@copy").plan()}


class Payments:
    """Pays from a thread of its own, until it is stopped."""

    def __init__(self, url: str) -> None:
        self._log = KafkaLog(url)
        self._random = Random(5)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go)
        self.made = 0

    def pay(self) -> None:
        some: list[Output] = []
        for _ in range(20):
            one, other = (f"a{number}" for number in self._random.sample(range(30), 2))
            event = Event(one, START_MS + self.made * 10, self._random.randint(1, 99), other)
            some.append(Output("transfers", one.encode(), msgspec.json.encode(event), event.at))
            self.made += 1
        self._log.append_all(some)

    def start(self) -> None:
        self.pay()
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._log.close()

    def _go(self) -> None:
        while not self._stop.wait(0.4):
            with suppress(TailraceError):  # on a busy machine; then some payments are not made
                self.pay()


def balances(snapshot: Snapshot) -> dict[bytes, int]:
    """What each account has, by its row."""
    found: dict[bytes, int] = {}
    for task in snapshot.manifest.tasks:
        for row, value in snapshot.rows(task.partition):
            if row[:1] == rows.STATE:
                found[row] = msgspec.msgpack.decode(value[rows.start_of_fields(value) :]).get("total", 0)
    return found


def on_way(snapshot: Snapshot) -> list[int]:
    """The amounts in messages that are on their way: of an actor, a handler, and what was sent."""
    messages = [one for task in snapshot.manifest.tasks for one in snapshot.messages(task.partition)]
    sent = [msgspec.msgpack.decode(one.value or b"")[2] for one in messages]
    return [msgspec.msgpack.decode(one)["n"] for one in sent]


def money(snapshot: Snapshot) -> int:
    """All money there is: 0 if the tasks stand at a consistent cut."""
    return sum(balances(snapshot).values()) + sum(on_way(snapshot))


def test_what_is_read_beside_a_service_is_of_one_cut_and_a_copy_comes_to_its_state(
    log: KafkaLog, members: Members, tmp_path: Path
) -> None:
    """A service in two processes; each message on its way in the snapshot is delivered once, to the copy, too."""
    prepare_topics(log, PLAN, create_declared=True)

    def taken(app: str = "messages") -> Snapshot:
        snapshots = Snapshots(str(tmp_path / "taken"), app)
        return snapshots.open(take_snapshot(PLANS[app], log, snapshots).id)

    payments = Payments(log.place)
    payments.start()
    try:
        for name in ("one", "two"):
            members.start(APP, name, tasks=1)
        wait_until(lambda: log.end_offset("said", 0) > 100, "messages have arrived")
        snapshots = [taken() for _ in range(4)]
        while not on_way(snapshots[-1]) or not all(task.cut for task in snapshots[-1].manifest.tasks):
            snapshots.append(taken())
        assert [money(one) for one in snapshots] == [0] * len(snapshots)
        (found,) = done("replay", APP, "--log", log, "--compare", "--json").lines
        assert found["differences"] == 0
        assert found["records"] > 100
        archive, into = tmp_path / "archive", tmp_path / "rebuilt"
        done("archive", "--log", log, "--to", archive)
        done("rebuild", APP, "--archive", archive, "--to", into, "--workers", 1)
        assert money(Snapshots(str(into), "messages").open()) == 0

        automatic = Snapshots(str(tmp_path / "automatic"), "copy")
        options = [
            *("--as", "copy", "--from-snapshot", f"{tmp_path / 'taken'}#{snapshots[-1].manifest.id}"),
            *("--snapshots", str(tmp_path / "automatic"), "--snapshot-every", "1s"),
        ]
        copies = [members.start(APP, name, *options, tasks=1) for name in ("copy-one", "copy-two")]
        assert sum(one.text().count("seeded") for one in copies) == PLAN.partitions
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
    wait_until(lambda: "already begins with snapshot" in again.text(), "it finds that it has begun before")
    (found,) = done("replay", f"{APP}@copy", "--log", log, "--compare", "--json").lines
    assert found["differences"] == 0
