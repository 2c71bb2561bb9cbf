"""Snapshots that a service takes of itself: when, how many, and what is told where it cannot."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.log.options import LogOptions
from tailrace.runtime.automatic_snapshots import AutomaticSnapshots, SnapshotSchedule, take_automatic
from tailrace.state.snapshots import Manifest
from tests.runtime.processes import wait_until
from tests.runtime.state_world import KEYS, World, of_snapshot
from tests.runtime.tallies import ticks

APP = "tests.runtime.served:app"
HOUR_MS = 3_600_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.log.append_all(ticks(KEYS, 1))
    made.run()
    yield made
    made.log.close()


def schedule(world: World, **options: Any) -> SnapshotSchedule:
    return SnapshotSchedule(str(world.folder / "snapshots"), **options)


def automatic(world: World, **options: Any) -> AutomaticSnapshots:
    return AutomaticSnapshots(APP, world.folder / "log", LogOptions(), schedule(world, **options), "json")


def taken(world: World, **options: Any) -> Manifest:
    """One taken in this process."""
    take_automatic(APP, world.folder / "log", LogOptions(), schedule(world, **options))
    return world.snapshots().list()[-1]


def moved(world: World, by_ms: int) -> None:
    """The clock was so far ahead when the only snapshot was taken."""
    (made,) = world.snapshots().list()
    world.snapshots().delete(made.id)
    draft = world.snapshots().begin()
    tasks = tuple(msgspec.structs.replace(one, files=()) for one in made.tasks)
    later = msgspec.structs.replace(
        made, id=draft.id, created_ms=made.created_ms + by_ms, tasks=tasks, checksum=""
    )
    world.snapshots().publish(later)


def test_most_are_incremental_a_full_one_begins_a_chain_and_old_ones_go(world) -> None:
    kinds: list[str] = []
    for number in range(12):
        world.log.append_all(ticks(2, 1, number + 1))
        world.run()
        kinds.append(taken(world, keep=2).kind)
        assert of_snapshot(world) == world.rows()
    assert kinds == ["full", *["incremental"] * 9, "full", "incremental"]
    assert [one.kind for one in world.snapshots().list()] == ["full", "incremental"]


def test_the_next_is_due_when_the_last_is_old_enough_and_a_clock_that_was_ahead_puts_it_off_no_longer(
    world,
) -> None:
    assert due_s(automatic(world, every_s=100)) == pytest.approx(100, abs=5)
    taken(world)
    assert due_s(automatic(world, every_s=100)) == pytest.approx(100, abs=5)
    moved(world, -HOUR_MS)
    assert due_s(automatic(world, every_s=100)) <= 0
    moved(world, 9_000 * HOUR_MS)
    assert due_s(automatic(world, every_s=100)) == pytest.approx(100, abs=5)


def due_s(of: AutomaticSnapshots) -> float:
    return of._due_s - time.monotonic()


def test_one_from_the_future_is_not_built_upon(world) -> None:
    taken(world)
    moved(world, HOUR_MS)
    assert world.take(incremental=True).kind == "full"


def test_one_that_has_lost_a_file_is_not_built_upon(world) -> None:
    made = taken(world)
    for file in made.tasks[0].files:
        (world.folder / "snapshots" / "tally" / made.id / file.name).unlink()
    again = taken(world)
    assert (again.kind, again.id != made.id) == ("full", True)


def test_a_process_that_dies_is_told_of_and_the_next_is_taken(world, caplog) -> None:
    taking = automatic(world, every_s=0.0)
    try:
        taking.look()
        (process,) = multiprocessing.active_children()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        taking.look()
        assert "its process died" in caplog.text

        def look() -> bool:
            taking.look()
            return bool(world.snapshots().list())

        wait_until(look, "a snapshot is taken")
    finally:
        taking.close()
