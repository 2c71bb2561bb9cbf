"""The app of ``orders`` on a log of its own: it lives with wrong code, and then with right code."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tailrace.core import rows
from tailrace.core.records import InputRecord, Output
from tailrace.history.dead_letters.letters import DeadLetter, dead_letters
from tailrace.history.dead_letters.redriving import close_letters, closed_letters
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicPartition
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshot
from tests.history.rebuilding import lived, orders
from tests.history.rebuilding.lived import done, live, rebuilt
from tests.history.rebuilding.orders import Account, Order

ORDERS = "tests.history.rebuilding.orders:app"
ALL = frozenset({"orders", "timers"})
RIGHT = frozenset[str]()


class World:
    """A log with the app on it, which lives in bounded runs; noted is what each run has read, and how its
    code was.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, app: str = ORDERS) -> None:
        self.folder, self.app, self._patch = folder, app, patch
        self.plan = find_app(app).plan()
        self.runs: list[tuple[list[list[InputRecord]], frozenset[str]]] = []

    def order(self, *some: Order | Output) -> None:
        outputs = [one if isinstance(one, Output) else orders.record(one) for one in some]
        lived.append(self.folder, outputs, {"orders": 2})

    def code(self, broken: frozenset[str]) -> None:
        self._patch.setenv("ORDERS_BROKEN", " ".join(broken))

    def live(self, broken: frozenset[str]) -> None:
        self.code(broken)
        before = self._positions()
        lived.live_on(self.folder, self.app)
        log = self.log()
        read = [
            list(scan(log, "orders", number, before[number], at)) for number, at in self._positions().items()
        ]
        log.close()
        self.runs.append((read, broken))

    def read(self) -> list[InputRecord]:
        """All that the service has read."""
        return [one for read, _ in self.runs for part in read for one in part]

    def log(self) -> EmbeddedLog:
        return EmbeddedLog(self.folder / "log")

    def _positions(self) -> dict[int, int]:
        log = self.log()
        found = log.committed_offsets("orders", [TopicPartition("orders", number) for number in range(2)])
        log.close()
        return {number: found.get(TopicPartition("orders", number), 0) for number in range(2)}

    def letters(self) -> list[DeadLetter]:
        log = self.log()
        found = list(dead_letters(log, "orders"))
        log.close()
        return found

    def redrive(self, wanted: Any = lambda _: True) -> list[str]:
        log = self.log()
        sent = close_letters(log, "orders", "redriven", wanted, now_ms=0).done
        log.close()
        return sent

    def redriven(self) -> set[str]:
        """The ids of the letters that were redriven."""
        log = self.log()
        found = {*closed_letters(log, "orders")}
        log.close()
        return found

    def books(self) -> dict[str, Account]:
        """The accounts of the service, by plain reading."""
        found: dict[str, Account] = {}
        for number in range(2):
            found |= orders.kept_books([(read[number], broken) for read, broken in self.runs]).accounts
        return found

    def corrected(self) -> dict[str, Account]:
        """The accounts that corrected code comes to in one run, by plain reading without redriven records."""
        found: dict[str, Account] = {}
        for number in range(2):
            past = [one for read, _ in self.runs for one in read[number] if not has_header(one)]
            found |= orders.kept_books([(past, RIGHT)]).accounts
        return found

    def of_service(self) -> dict[str, Account]:
        return accounts([row for one in live(self.folder, self.plan) for row in one.rows])

    def rebuilt(self, **options: Any) -> tuple[RebuildReport, dict[str, Account]]:
        report, snapshot = done(self.folder, self.app, **options)
        return report, of(snapshot)


def of(snapshot: Snapshot) -> dict[str, Account]:
    return accounts([row for one in rebuilt(snapshot) for row in one.rows])


def accounts(found: list[tuple[bytes, bytes]]) -> dict[str, Account]:
    """The accounts that rows hold."""
    kept: dict[str, Account] = {}
    due: dict[str, int] = {}
    for row, value in found:
        parts = rows.read_state_row(row)
        if parts.actor == "Customer" and not parts.rest:
            kept[parts.key.decode()] = Account(**msgspec.msgpack.decode(value[rows.start_of_fields(value) :]))
            due |= {parts.key.decode(): timer.time_ms for timer in rows.timers_inside(value).values()}
    for key, time_ms in due.items():
        kept[key].due = time_ms
    return kept


def lived_through(world: World, random: Random) -> World:
    """Orders of which some failed once, some twice, and some are late; timers that failed; then the code is
    corrected.
    """
    world.order(*orders.some_orders(random, 60))
    world.live(ALL)
    some = {one.id for one in world.letters() if one.topic and random.random() < 0.5}
    world.redrive(lambda one: one.id in some)
    world.order(*orders.some_orders(random, 20, 1_400))
    world.live(ALL)
    world.redrive(lambda _: random.random() < 0.7)
    world.order(*orders.some_orders(random, 20, 1_600))
    world.live(RIGHT)
    return world


def has_header(record: InputRecord) -> bool:
    return any(name == "tailrace-redriven" for name, _ in record.headers)
