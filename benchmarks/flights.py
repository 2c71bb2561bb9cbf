"""Cases with real, interleaved history: the flights of some weeks through their two services, live and replayed.

The inputs are merged by event time, so runs of one input are short (three records in the aircraft service). A bounded worker
over the embedded log with RocksDB is measured in this process, from its first record to the last timer.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from statistics import median

import tailrace as tr
from benchmarks.measure import Row, Scale, seconds
from services.flights import aircraft, airport
from services.flights.history import facts
from services.flights.load import load
from tailrace.core.engine.settings import TaskSettings
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.environment import timezones_version
from tailrace.runtime.progress import last_phase
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import RocksStore, StateIdentity, StateMemory

FIRST = date(2013, 1, 1)
LIVE_US, REPLAY_US = 32, 26
"""Targets: maximum microseconds per event."""
_SETTINGS = TaskSettings(timezones=timezones_version())
APPS = {"aircraft": aircraft.app, "airport": airport.app}


def flights(scale: Scale) -> list[Row]:
    """Processor time per event of each service, live and in a replay without comparison."""
    took: dict[str, list[float]] = {
        f"flights, {app}, {way}": [] for app in APPS for way in ("live", "replay")
    }
    with tempfile.TemporaryDirectory() as folder:
        loaded = Path(folder) / "loaded"
        with closing(EmbeddedLog(loaded)) as log:
            load(log, facts(FIRST, FIRST + timedelta(days=scale.flight_days)))
        for _ in range(scale.repeats):
            for case, us in _once(loaded, Path(folder) / "work"):
                took[case].append(us)
    return [_row(case, median(some)) for case, some in took.items()]


def _once(loaded: Path, work: Path) -> Iterator[tuple[str, float]]:
    """Microseconds per event by case: the services run one after the other on a copy of the log."""
    shutil.copytree(loaded, work / "log")
    with closing(EmbeddedLog(work / "log")) as log:
        for name, app in APPS.items():
            worker = worker_of(app, log, work / name)
            live_s = seconds(partial(run_to_end, worker))
            records = worker.status().records
            yield f"flights, {name}, live", live_s / records * 1e6
            replay_s = seconds(partial(replay, app.plan(), log, ReplayOptions(settings=_SETTINGS)))
            yield f"flights, {name}, replay", replay_s / records * 1e6
    shutil.rmtree(work)


def worker_of(app: tr.App, log: EmbeddedLog, folder: Path) -> Worker:
    """A bounded worker over all partitions, with its state in a new folder."""
    plan, memory = app.plan(), StateMemory()
    folder.mkdir()

    def state(number: int) -> RocksStore:
        return RocksStore(folder / str(number), StateIdentity(plan.app, number), memory)

    settings = WorkerSettings(bounded=True, partition=PartitionSettings(task=_SETTINGS))
    return Worker(plan, log, range(plan.partitions), state, settings=settings)


def run_to_end(worker: Worker) -> None:
    """Run a bounded worker to the last timer."""
    worker.start()
    while worker.turn() or not worker.quiet or worker.phase < last_phase(worker.plan):
        if worker.quiet:
            worker.advance()
    worker.leave()


def _row(case: str, us: float) -> Row:
    most = {"flights, aircraft, live": LIVE_US, "flights, aircraft, replay": REPLAY_US}.get(case)
    return Row(
        case=case,
        measured=us,
        unit="us/event",
        target="" if most is None else f"{most} us or less",
        met=None if most is None else us <= most,
    )
