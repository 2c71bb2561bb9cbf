from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.errors import ReplayDivergedError, WorkerLostError
from tailrace.core.values.partitioner import partition_of
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import Engine, OnProgress
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.results import UnitResult
from tailrace.processes.app_loading import find_app
from tailrace.spark.engine import SparkEngine
from tailrace.state.snapshots import Snapshots
from tests.history.rebuilding.lived import TaskState, append, changed, live, live_on, rebuilt, request
from tests.spark import doomed
from tests.spark.cluster import DONE
from tests.spark.travel import output

APP = "tests.spark.doomed:app"
KEYS, ROUNDS = 24, 25


class World:
    """A service that has lived; in each partition one event has a doom that waits for a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        hops = [
            doomed.Hop(f"who-{key}", 700 * (number * KEYS + key))
            for number in range(ROUNDS)
            for key in range(KEYS)
        ]
        plan = find_app(APP).plan()
        codec = plan.topics["hops"]
        # Far into the history of its partition, so that there is much to lose.
        self.dooms: dict[int, Path] = {}
        for at in reversed(range(len(hops) * 3 // 4)):
            number = partition_of(codec.encode_key(hops[at]) or b"", plan.partitions)
            if number not in self.dooms:
                self.dooms[number] = folder / f"doom-{number}"
                hops[at] = msgspec.structs.replace(hops[at], doom=str(self.dooms[number]))
        append(folder, [output(doomed.hops, one, one.at) for one in hops], {"hops": 4})
        live_on(folder, APP)
        self.live: list[TaskState] = live(folder, plan)

    def doom(self, said: str, *partitions: int) -> None:
        for number in partitions:
            self.dooms[number].write_text(said)
            self.dooms[number].with_suffix(".met").unlink(missing_ok=True)

    def met(self, partition: int) -> list[list[str]]:
        """Each meeting: what was said, and the process."""
        path = self.dooms[partition].with_suffix(".met")
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def rebuild(self, engine: Engine, name: str) -> RebuildReport:
        return rebuild(changed(request(self.folder, APP), name=name), engine)

    def snapshot(self, name: str) -> list[TaskState]:
        return rebuilt(Snapshots(str(self.folder / "snapshots"), "doomed").open(name))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("doomed"))


@pytest.fixture(autouse=True)
def harmless(world) -> Iterator[None]:
    yield
    for path in world.dooms.values():
        path.unlink(missing_ok=True)


def test_a_worker_that_is_killed_is_replaced_and_the_result_is_the_same(spark, world):
    world.doom("die", 1, 2)
    told: list[str] = []
    asked = changed(request(world.folder, APP), name="killed")
    report = rebuild(asked, SparkEngine(spark), on_progress=lambda stage, _: told.append(stage))
    assert told
    assert report.engine == "spark"
    assert world.snapshot("killed") == world.live
    for number in (1, 2):
        ((said, process),) = world.met(number)
        assert said == "die"
        assert int(process) != os.getpid()


class Twice:
    """Has each unit run twice, at the same time."""

    name = "twice"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.results: list[UnitResult] = []

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        for one in self._engine.run([unit for unit in units for _ in range(2)], on_progress):
            self.results.append(one)
            yield one

    def close(self) -> None:
        self._engine.close()


def test_a_unit_that_runs_twice_at_once_counts_once(spark, world):
    twice = Twice(SparkEngine(spark))
    world.doom("die", 0)
    world.rebuild(twice, "twice")
    assert world.snapshot("twice") == world.live
    assert len(twice.results) == 8
    for number in range(4):
        first, second = (one for one in twice.results if one.tasks[0].partition == number)
        assert first == second


def test_a_handler_that_fails_is_not_tried_again_and_the_event_is_named(spark, world):
    world.doom("raise", 3)
    with pytest.raises(
        ReplayDivergedError, match=r"the disk is tired.*'hops', partition 3, offset \d+, key 'who-\d+'"
    ):
        world.rebuild(SparkEngine(spark), "failed")
    assert len(world.met(3)) == 1
    world.rebuild(SparkEngine(spark), "failed")
    assert world.snapshot("failed") == world.live


def test_a_unit_that_kills_every_worker_is_given_up_and_gone_on_with_later(spark, world):
    world.doom("always die", 2)
    with pytest.raises(WorkerLostError, match=r"given up a part of the rebuild.*it resumes"):
        world.rebuild(SparkEngine(spark), "lost")
    assert len(world.met(2)) == 4
    world.dooms[2].unlink()
    report = world.rebuild(SparkEngine(spark), "lost")
    assert report.resumed
    assert world.snapshot("lost") == world.live


def test_results_come_as_they_are_made_and_who_stops_listening_ends_the_work(spark, world):
    found: list[Unit] = []

    class Listening:
        name = "listening"

        def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
            found.extend(units)
            results: Any = SparkEngine(spark).run(units, on_progress)
            # One of two slots is held by a unit that waits, or will be, so this comes before all are done.
            yield next(results)
            begun_s = time.monotonic()
            while not world.met(0):
                time.sleep(0.01)
            results.close()
            assert time.monotonic() - begun_s < doomed.SLOW_S / 2
            raise InterruptedError

        def close(self) -> None:
            pass

    world.doom("wait", 0)
    with pytest.raises(InterruptedError):
        world.rebuild(Listening(), "stopped")
    assert len(found) == 4
    assert len(world.met(0)) == 1
    world.rebuild(SparkEngine(spark), "stopped")
    assert world.snapshot("stopped") == world.live


def test_on_two_hosts_a_slow_task_is_overtaken_by_its_copy(world):
    world.doom("wait", 1)
    world.doom("die", 3)
    arguments = [sys.executable, "-m", "tests.spark.cluster", str(world.folder), "speculated"]
    begun_s = time.monotonic()
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=doomed.SLOW_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert DONE in done.stdout
    assert time.monotonic() - begun_s < doomed.SLOW_S
    assert world.snapshot("speculated") == world.live
    assert [said for said, _ in world.met(1)] == ["wait"]
    assert [said for said, _ in world.met(3)] == ["die"]
