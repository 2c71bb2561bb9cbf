"""A log that has lost its end and has grown past it again, and another log: no snapshot from there is taken up in silence.

Both ends have the same records but for their amounts, and so the same offsets and counts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tailrace.core.engine import tape
from tailrace.core.errors import OtherHistoryError, SnapshotMismatchError
from tailrace.core.records import RecordMark
from tailrace.history.moving.moving import move_apps
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.changelog import last_cut
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.history.snapshots.start_from_snapshot import start_from
from tailrace.log import TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tailrace.state import MemoryStore
from tailrace.state.contents import Contents
from tailrace.state.provenance import provenance_of
from tests.history.rebuilding.lived import request
from tests.runtime.served import Tick
from tests.runtime.state_world import KEYS, World
from tests.runtime.tallies import check_counts, ticks

ROUNDS = 5


def tell(world: World, first: int, *, amount: int) -> None:
    """Ticks of an amount come."""
    for one in ticks(KEYS, ROUNDS, first):
        tick = msgspec.structs.replace(msgspec.json.decode(one.value or b"", type=Tick), amount=amount)
        world.log.append_all([one._replace(value=msgspec.json.encode(tick))])


def live(world: World, first: int, *, amount: int) -> None:
    tell(world, first, amount=amount)
    world.run()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    live(made, 0, amount=1)
    yield made
    made.log.close()


@pytest.fixture
def lost(world: World) -> World:
    """The log has lost the end that the state and a snapshot are of, and has grown past it with other amounts."""
    log, before = world.folder / "log", world.folder / "before"
    world.log.close()
    shutil.copytree(log, before)
    world.log = EmbeddedLog(log)
    live(world, ROUNDS, amount=2)
    world.take()
    world.log.close()
    shutil.rmtree(log)
    before.rename(log)
    world.log = EmbeddedLog(log)
    live(world, ROUNDS, amount=3)
    return world


def committed(world: World, number: int) -> tape.Cut:
    """The last cut in the log."""
    data = AppHistory(world.plan, world.log).committed(number).cut
    assert data is not None
    return tape.decode_cut(data)


def test_a_snapshot_of_a_lost_end_is_left_aside(lost: World, caplog: pytest.LogCaptureFixture) -> None:
    made = lost.snapshots().open().manifest
    lost.stores.clear()
    lost.run(start=lost.start())
    said = f"the snapshot {made.id} stands after a commit that this log does not have"
    assert caplog.text.count(said) == lost.plan.partitions
    assert "left aside" in caplog.text
    live(lost, 2 * ROUNDS, amount=1)
    check_counts(lost.log, KEYS, 3 * ROUNDS)
    assert not replay(
        lost.plan, lost.log, ReplayOptions(compare=True, any_environment=True)
    ).differences.count
    assert lost.take(incremental=True).parent is None
    with pytest.raises(SnapshotMismatchError, match="does not stand where"):
        lost.run(start=lost.start(made.id, replace=True))


@pytest.mark.parametrize(("amount", "fits"), [(1, True), (4, False)])
def test_a_snapshot_does_not_begin_an_app_in_a_log_that_has_other_records(
    world: World, tmp_path: Path, amount: int, fits: bool
) -> None:
    """There is no commit to compare, so the last record of each input is."""
    made, other = world.take(), World(tmp_path / "other")
    tell(other, 0, amount=amount)
    if fits:
        other.run(start=world.start())
        assert [committed(other, number).totals for number in range(4)] == [
            committed(world, number).totals for number in range(4)
        ]
    else:
        with pytest.raises(OtherHistoryError, match="has read another record at offset"):
            other.run(start=world.start())
        assert AppHistory(other.plan, other.log).committed(0).cut is None
        other.run()
        base = {"base": str(world.folder / "snapshots"), "base_id": made.id}
        with pytest.raises(OtherHistoryError, match="has read another record at offset"):
            rebuild(request(other.folder, order="canonical", **base), LocalEngine(1))
    other.log.close()


def test_marks_and_rows_go_with_a_state_that_begins_with_a_snapshot_or_moves(
    world: World, tmp_path: Path
) -> None:
    world.take()
    copy = world.app.renamed("copy").plan()
    prepare_log(world.log, copy, create_declared=True)
    start_from(copy, 0, world.log, MemoryStore(), world.start(), 1)

    def noted(log: EmbeddedLog, name: str) -> tuple[Mapping[str, RecordMark], Contents | None]:
        found = provenance_of(last_cut(log, TopicPartition(f"{name}.changelog", 0)))
        return found.read, found.rows

    wanted = noted(world.log, "tally")
    assert all(wanted)
    assert noted(world.log, "copy") == wanted
    with closing(EmbeddedLog(tmp_path / "moved")) as other:
        move_apps([world.plan], world.log, other)
        assert noted(other, "tally") == wanted
