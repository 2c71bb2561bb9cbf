"""Snapshots of a service at work, and services started from them: in place, beside, instead."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Replay
from tailrace.core.engine.task import Task
from tailrace.core.errors import CorruptStateError, OtherHistoryError, SnapshotMismatchError
from tailrace.history.comparing.replayed_state import LiveState
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.beginnings import taped_beginning
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions, ReplayReport
from tailrace.history.snapshots import taking
from tailrace.history.snapshots.start_from_snapshot import start_from
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tailrace.state import MemoryStore
from tailrace.state.snapshots import Manifest
from tailrace.state.store_cut import FORMAT, StoreCut, decode_store_cut
from tests.runtime.served import make_app
from tests.runtime.state_world import KEYS, ROUNDS, World, edited, of_snapshot
from tests.runtime.tallies import ticks


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.log.close()


# --- taking one


def test_one_taken_while_the_service_runs_is_the_state_at_one_commit_of_each_task(world) -> None:
    """Each task's rows are those of a replay up to its cut; no task has read what its sender had not committed."""
    enough = threading.Event()

    def live() -> None:
        for number in itertools.count():
            world.live(rounds=5, first=5 * number)
            if enough.is_set():
                return

    thread = threading.Thread(target=live)
    other = EmbeddedLog(world.folder / "log", create=False)
    taken: dict[str, Manifest] = {}
    thread.start()
    try:
        while len(taken) < 4 and thread.is_alive():
            try:
                made = take_snapshot(world.plan, other, world.snapshots())
            except SnapshotMismatchError:
                continue  # nothing is committed yet
            taken[str(made.ends)] = made
    finally:
        enough.set()
        thread.join()
        other.close()
    assert len(taken) == 4
    history = AppHistory(world.plan, world.log)
    for made in taken.values():
        found = world.snapshots().open(made.id)
        for task in made.tasks:
            if not task.cut:
                continue
            cut = tape.decode_cut(task.cut)
            assert dict(found.rows(task.partition)) == replayed(world.plan, history, task.partition, cut)
            for name, position in cut.positions.items():
                assert position <= made.ends[name][task.partition]
            inbox = made.ends["tally.inbox"][task.partition] - cut.positions["tally.inbox"]
            assert len(list(found.messages(task.partition))) == inbox


def replayed(plan: Plan, history: AppHistory, number: int, cut: tape.Cut) -> dict[bytes, bytes]:
    store = MemoryStore()
    task = Task(plan, number, store, lineage=cut.lineage, replaying=True)
    replay = Replay(task, history.source(number), any_environment=True)
    for record in history.tapes(number, cut.tape):
        replay.take(record)
        task.discard_outputs()
        batch = task.commit_batch()
        store.write(batch.rows | batch.index_rows, batch.cut)
        task.committed()
    return dict(store.scan(rows.STATE, rows.prefix_end(rows.STATE)))


def test_an_incremental_one_holds_what_has_changed_and_reads_like_a_full_one(world) -> None:
    world.live()
    first = world.take()
    world.log.append_all(ticks(3, ROUNDS, ROUNDS))
    world.run(to_the_end=True)  # the timers' rows go
    second = world.take(incremental=True)
    assert (second.kind, second.parent) == ("incremental", first.id)
    assert of_snapshot(world) == world.rows() != of_snapshot(world, first.id)
    third = world.take(incremental=True)  # nothing has changed
    assert third.parent == second.id
    assert not any(task.files for task in third.tasks)
    assert of_snapshot(world) == world.rows()
    assert [task.cut for task in third.tasks] == [task.cut for task in second.tasks]


def test_without_a_fitting_parent_it_is_a_full_one(world, monkeypatch) -> None:
    world.live(rounds=1)
    assert world.take(incremental=True).kind == "full"
    with monkeypatch.context() as patch:
        patch.setattr(taking, "DELETIONS_KEPT_MS", -1_000_000)
        assert world.take(incremental=True).kind == "full"  # the parent is too old
    world.plan = world.app.renamed("other").plan()
    world.run(world.plan)
    assert world.take(world.plan, incremental=True).kind == "full"


def test_of_an_app_that_never_committed_there_is_none(world) -> None:
    with pytest.raises(SnapshotMismatchError, match="never committed"):
        world.take()


# --- starting from one


def test_a_state_that_was_half_filled_is_emptied_first(world) -> None:
    world.live()
    world.take()
    expected = world.rows()
    world.stores.clear()
    world.state("tally", 0).write({b"sCounter\0gone\0\0": b"stale", b"i stale": b""}, b"")
    stuck = world.state("tally", 0)
    stuck.write({}, StoreCut(FORMAT, -1, 0, None).encode())
    world.run(start=world.start())
    assert world.rows() == expected
    assert stuck.get(b"i stale") is None


# --- instead of the state there is


def without_auditors(row: bytes, value: bytes) -> bytes | None:
    return None if row.startswith(b"sAuditor\0") else value


def test_an_edited_one_replaces_the_state_where_it_is_told_to_and_stands_at_the_same_place(world) -> None:
    world.live()
    world.take()
    made = edited(world.snapshots(), without_auditors)
    with pytest.raises(SnapshotMismatchError, match="history of its own"):
        world.run(start=world.start())
    world.run(start=world.start(replace=True))
    assert world.rows() == of_snapshot(world, made.id)
    assert not any(row.startswith(b"sAuditor\0") for found in world.rows() for row in found)
    outputs = world.cut(0).totals.outputs
    world.stores.clear()
    world.run()  # from the log alone
    assert world.rows() == of_snapshot(world, made.id)
    assert world.cut(0).totals.outputs == outputs
    world.log.append_all(ticks(KEYS, 1, ROUNDS))
    world.run(start=world.start(replace=True))  # the same order again
    audited = [row for found in world.rows() for row in found if row.startswith(b"sAuditor\0")]
    assert audited
    assert world.cut(0).base == made.id
    assert [str(one) for one in compared(world, world.plan).differences.shown] == []


# --- what does not fit


def test_another_number_of_partitions(world) -> None:
    world.live(rounds=1)
    world.take()
    other = make_app(partitions=2).renamed("other").plan()
    with pytest.raises(SnapshotMismatchError, match="give the app partitions=4"):
        start_from(other, 0, world.log, world.start(), 1)


def test_another_log(world, tmp_path) -> None:
    world.live(rounds=1)
    world.take()
    log = EmbeddedLog(tmp_path / "another")
    prepare_log(log, world.plan, create_declared=True)
    with pytest.raises(OtherHistoryError, match="in this log it ends at 0"):
        start_from(world.plan, 0, log, world.start(), 1)
    log.close()


# --- replayed, rebuilt, compared: from the base on


def compared(world: World, plan: Plan) -> ReplayReport:
    def live(number: int) -> list[LiveState]:
        store = world.state(plan.app, number)
        data = store.cut
        assert data is not None
        return [LiveState("the store", store, decode_store_cut(data).core, indexed=True)]

    return replay(plan, world.log, ReplayOptions(compare=True, any_environment=True), live=live)


def test_some_keys_of_what_was_started_from_a_snapshot(world) -> None:
    world.live()
    world.take()
    other = world.app.renamed("other").plan()
    world.run(other, start=world.start())
    world.log.append_all(ticks(KEYS, 2, ROUNDS))
    world.run(other, to_the_end=True)
    chosen, stores = named_keys(other, ("k3", "k7")), defaultdict[int, MemoryStore](MemoryStore)
    options = ReplayOptions(
        partitions=sorted(chosen.partitions), keys=chosen.keys, compare=True, any_environment=True
    )
    assert replay(other, world.log, options, open_store=stores.__getitem__).differences.count == 0
    kept = [row for one in stores.values() for row, _ in one.scan(rows.STATE, rows.prefix_end(rows.STATE))]
    assert {rows.read_state_row(row).key for row in kept} == {b"k3", b"k7"}


def test_without_its_base_nothing_can_be_replayed_and_it_is_said_why(world) -> None:
    world.live()
    made = world.take()
    other = world.app.renamed("other").plan()
    world.run(other, start=world.start())
    world.snapshots().delete(made.id)
    with pytest.raises(
        SnapshotMismatchError, match=f"begins with the snapshot {made.id}, which cannot be used"
    ):
        replay(other, world.log, ReplayOptions(any_environment=True))


def test_a_base_that_the_tape_does_not_name_is_told(world) -> None:
    world.live()
    world.take()
    other = world.app.renamed("other").plan()
    world.run(other, start=world.start())
    history, end = AppHistory(other, world.log), world.cut(0, "other")
    end.tape = taped_beginning(history, 0, end).tape_number - 1  # what comes before the record that names it
    with pytest.raises(CorruptStateError, match="its tape does not say so"):
        taped_beginning(history, 0, end)
