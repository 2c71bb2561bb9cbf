"""A rebuild along the tape refuses the events that the service has refused by its clock. One in stages goes by its own clock."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine import tape
from tailrace.core.records import Output
from tailrace.history.dead_letters.letters import dead_letters
from tailrace.history.rebuilding.request import task_settings
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import done, live, rebuilt, totals

NOW_MS = time.time_ns() // 1_000_000
"""When this module was imported, by the clock of this machine."""
A_DAY_MS = 86_400_000
YEAR_2150_MS = 5_680_281_600_000


class Sale(msgspec.Struct, frozen=True):
    shop: str
    at: int


app = tr.App("future", partitions=2, on_error="dead-letter")
sales = app.topic("sales", Sale, key="shop", event_time="at")
closings = app.topic("totals", Sale, key="shop")


@app.actor
class Shop(tr.Actor):
    """Counts its sales, and those that were still to come when its timer fired."""

    count: int = 0
    closed: int = 0

    @tr.process(sales)
    def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
        self.count += 1
        ctx.set_timer(event.at + 100)

    @tr.on_timer
    def close(self, ctx: tr.Context[str]) -> None:
        self.closed += 1
        ctx.emit(closings, Sale(ctx.key, self.count))


def live_days_ago(folder: Path, days: int) -> None:
    """Run the service to the end of what is there, when the clock was so many days before."""
    plan, log = app.plan(), EmbeddedLog(folder / "log")
    prepare_log(log, plan, create_declared=True)
    stores = [MemoryStore() for _ in range(plan.partitions)]
    settings = WorkerSettings(partition=PartitionSettings(real_clock=True, task=task_settings()))
    clock_ms = NOW_MS - days * A_DAY_MS
    worker = Worker(plan, log, range(2), stores.__getitem__, settings=settings, clock=lambda: clock_ms)
    worker.start()
    while worker.turn():
        pass
    worker.leave()
    log.close()


def sell(folder: Path, *sold: tuple[str, int]) -> None:
    """Append sales at times from now, by shop, with the time of their events as their timestamps."""
    lived.append(
        folder,
        [
            Output(
                "sales", shop.encode(), msgspec.json.encode(Sale(shop, NOW_MS + ahead_ms)), NOW_MS + ahead_ms
            )
            for shop, ahead_ms in sold
        ],
        {"sales": 2},
    )


FUTURE = f"{__name__}:app"
SHOPS = [f"shop-{number}" for number in range(6)]


def mixed(folder: Path) -> None:
    """Each shop sells something now, something in 2150, something now again."""
    sell(folder, *((shop, 10 * at) for at in range(3) for shop in SHOPS))
    sell(folder, *((shop, YEAR_2150_MS - NOW_MS + at) for at, shop in enumerate(SHOPS)))
    sell(folder, *((shop, 1_000 + 10 * at) for at in range(3) for shop in SHOPS))


@pytest.mark.parametrize("ran", [True, False])
def test_in_stages_it_refuses_the_same_whether_a_service_has_run_or_not(tmp_path: Path, *, ran: bool) -> None:
    mixed(tmp_path)
    if ran:
        lived.live_on(tmp_path, FUTURE)
    _, snapshot = done(tmp_path, FUTURE, order="stages")
    found = totals(snapshot.manifest)
    assert (sum(one.records for one in found), sum(one.refused for one in found)) == (36, 6)
    assert sum(one.late for one in found) == 0
    cuts = [tape.decode_cut(one.cut) for one in snapshot.manifest.tasks]
    assert all(cut.now < NOW_MS + A_DAY_MS for cut in cuts)
    if ran:
        now = live(tmp_path, find_app(FUTURE).plan())
        assert [one.rows for one in rebuilt(snapshot)] == [one.rows for one in now]


def test_what_the_service_refused_is_handled_in_stages_when_its_time_has_come(tmp_path: Path) -> None:
    sell(tmp_path, *((shop, -30 * A_DAY_MS) for shop in SHOPS), *((shop, -10 * A_DAY_MS) for shop in SHOPS))
    live_days_ago(tmp_path, 20)
    before = live(tmp_path, find_app(FUTURE).plan())
    log = EmbeddedLog(tmp_path / "log", create=False)
    assert [one.reason for one in dead_letters(log, "future")] == 6 * ["from-the-future"]
    log.close()
    _, snapshot = done(tmp_path, FUTURE, order="stages")
    assert sum(one.refused for one in totals(snapshot.manifest)) == 0
    assert sum(one.records for one in totals(snapshot.manifest)) == 12
    _, snapshot = done(tmp_path, FUTURE)
    assert rebuilt(snapshot) == before
