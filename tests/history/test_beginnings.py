"""Where a task begins: with nothing, with the base that its tape names, or with a snapshot that is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import CorruptStateError, SnapshotMismatchError
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.beginnings import Beginning, rows_of_keys, taped_beginning
from tailrace.state import MemoryStore
from tailrace.state.snapshots import Snapshot
from tailrace.state.store_cut import decode_store_cut
from tests.runtime.state_world import KEYS, ROUNDS, World, of_snapshot
from tests.runtime.tallies import ticks


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    made = World(tmp_path)
    made.live()
    made.take()
    yield made
    made.log.close()


@pytest.fixture
def other(world: World) -> Plan:
    """An app of another name that was started from the snapshot, and has gone on."""
    plan = world.app.renamed("other").plan()
    world.run(plan, start=world.start())
    world.log.append_all(ticks(KEYS, ROUNDS))
    world.run(plan)
    return plan


def begun(world: World, plan: Plan, number: int, asked: Snapshot | None = None) -> Beginning:
    return taped_beginning(AppHistory(plan, world.log), number, world.cut(number, plan.app), asked)


def test_a_task_that_was_never_started_from_anything_begins_with_nothing(world) -> None:
    for number in range(world.plan.partitions):
        found, store = begun(world, world.plan, number), MemoryStore()
        assert (found.snapshot, found.cut, found.tape_number, found.outputs) == (None, None, 0, 0)
        assert found.positions == {"ticks": 0} | (
            {world.plan.inbox_topic: 0} if world.plan.inbox_topic else {}
        )
        assert found.load(store).core is None
        assert (store.cut, list(store.rows())) == (None, [])


def test_a_task_begins_with_the_rows_of_the_base_that_its_tape_names(world, other) -> None:
    for number, expected in enumerate(of_snapshot(world)):
        found, store = begun(world, other, number), MemoryStore()
        assert found.snapshot is not None
        assert found.snapshot.manifest.id == world.cut(number, "other").base
        assert found.decoded is not None
        assert (found.decoded.app, found.decoded.tape) == ("other", found.tape_number)
        cut = found.load(store, position=7)
        assert store.cut is not None
        assert decode_store_cut(store.cut) == cut
        assert (cut.core, cut.changelog_position) == (found.cut, 7)
        assert dict(store.scan(rows.STATE, rows.prefix_end(rows.STATE))) == expected


def test_of_some_keys_the_rows_of_no_other_are_loaded(world, other) -> None:
    for number, expected in enumerate(of_snapshot(world)):
        key, store = rows.read_state_row(next(iter(expected))).key, MemoryStore()
        begun(world, other, number).load(store, rows_of_keys(other, {key.decode()}))
        mine = {row: value for row, value in expected.items() if rows.read_state_row(row).key == key}
        assert 0 < len(mine) < len(expected)
        assert dict(store.scan(rows.STATE, rows.prefix_end(rows.STATE))) == mine


def test_a_snapshot_that_is_asked_for_needs_no_base(world, other) -> None:
    later = world.take(other)
    world.snapshots().delete(world.snapshots().list()[0].id)
    asked = world.snapshots("other").open(later.id)
    for number in range(other.partitions):
        found = begun(world, other, number, asked)
        assert (found.snapshot, found.decoded) == (asked, world.cut(number, "other"))
        with pytest.raises(SnapshotMismatchError, match="which cannot be used"):
            begun(world, other, number)


def test_a_snapshot_of_another_history_is_refused(world, other) -> None:
    with pytest.raises(
        SnapshotMismatchError, match=r"'other' partition 0 begins with the snapshot .* itself"
    ):
        begun(world, other, 0, world.snapshots().open())
    world.run()
    world.take()
    with pytest.raises(SnapshotMismatchError, match="is not of the history of app 'other' partition 0"):
        begun(world, other, 0, world.snapshots().open())


def test_a_base_that_the_tape_does_not_name_is_told(world, other) -> None:
    history, end = AppHistory(other, world.log), world.cut(0, "other")
    end.tape = begun(world, other, 0).tape_number - 1  # what comes before the record that names it
    with pytest.raises(CorruptStateError, match="its tape does not say so"):
        taped_beginning(history, 0, end)
