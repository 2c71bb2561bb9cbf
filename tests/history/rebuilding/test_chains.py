"""A chain of two apps, the first in nightly runs: what the second comes to is an oracle's, and so it is
rebuilt.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tailrace.core.engine.task import TaskSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.environment import timezones_version
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import append, done, live, live_on, rebuilt
from tests.runtime import chained
from tests.runtime.bounded_run import read_all
from tests.runtime.chained import Window

FIRST, SECOND = "tests.runtime.chained:first", "tests.runtime.chained:second"
NIGHTS = 4
READINGS = [one for number in range(NIGHTS) for one in chained.night(number)]


def nights(folder: Path, *apps: str) -> None:
    """Every night some readings come, and the apps are run to the end of them, one after the other."""
    for number in range(NIGHTS):
        append(folder, chained.records(chained.night(number)), {"left": 3, "right": 3})
        for app in apps:
            live_on(folder, app)


class Reader:
    """The second app at work between the nights, in this process."""

    def __init__(self, folder: Path) -> None:
        self.log = EmbeddedLog(folder / "log")
        plan = chained.second.plan()
        prepare_log(self.log, plan, create_declared=True)
        task = TaskSettings(timezones=timezones_version())
        settings = WorkerSettings(partition=PartitionSettings(commit_interval_ms=0, task=task))
        self.worker = Worker(plan, self.log, range(3), lambda _number: MemoryStore(), settings=settings)
        self.worker.start()

    def work(self) -> None:
        while self.worker.turn():
            pass

    def close(self) -> None:
        self.worker.leave()
        self.log.close()


def windows(folder: Path) -> Counter[Window]:
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        return Counter(read_all(log, "windows", Window))


def emitted(folder: Path, order: str) -> Counter[Window]:
    """The windows that a rebuild of the second app emits."""
    done(folder, SECOND, order=order, outputs=f"parquet:{folder / 'out'}")
    again = lived.emitted(folder / "out", "windows")
    return Counter(msgspec.json.decode(one.value or b"", type=Window) for one in again)


def up_to_the_last() -> Counter[Window]:
    """All windows but those that the last reading may still belong to, as after a bounded run."""
    return chained.expected(READINGS, READINGS[-1][1].at)


@pytest.mark.parametrize("live_between", [False, True], ids=["comes-later", "reads-along"])
def test_a_live_reader_behind_nightly_runs_gets_every_window(tmp_path: Path, live_between: bool) -> None:
    if not live_between:
        nights(tmp_path, FIRST)
    reader = None
    for number in range(NIGHTS if live_between else 1):
        if live_between:
            append(tmp_path, chained.records(chained.night(number)), {"left": 3, "right": 3})
            live_on(tmp_path, FIRST)
        reader = reader or Reader(tmp_path)
        reader.work()
    assert reader is not None
    reader.close()
    assert windows(tmp_path) == up_to_the_last()
    assert emitted(tmp_path, "tape") == up_to_the_last()
    assert [one.rows for one in rebuilt(done(tmp_path, SECOND, order="tape")[1])] == [
        one.rows for one in live(tmp_path, chained.second.plan())
    ]


def test_nightly_runs_of_both_give_every_window_and_so_do_their_rebuilds(tmp_path: Path) -> None:
    nights(tmp_path, FIRST, SECOND)
    assert windows(tmp_path) == chained.expected(READINGS)
    for app, plan in ((FIRST, chained.first.plan()), (SECOND, chained.second.plan())):
        again = rebuilt(done(tmp_path, app, order="tape")[1])
        assert [one.rows for one in again] == [one.rows for one in live(tmp_path, plan)]


@pytest.mark.parametrize("second", ["nightly", "live", "never ran"])
def test_a_chain_is_rebuilt_with_every_window(tmp_path: Path, second: str) -> None:
    nights(tmp_path, *((FIRST, SECOND) if second == "nightly" else (FIRST,)))
    if second == "live":
        reader = Reader(tmp_path)
        reader.work()
        reader.close()
    # A rebuild in canonical order ends the inputs as the service's last run did.
    wanted = chained.expected(READINGS) if second == "nightly" else up_to_the_last()
    assert emitted(tmp_path, "canonical") == wanted
