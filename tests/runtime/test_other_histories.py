"""State of another log, or of an end that the log has lost, is replaced by what the log has."""

from __future__ import annotations

import contextlib
import copy

import pytest

from tailrace.core.engine import tape
from tailrace.runtime.slices import PartitionSettings
from tailrace.state.store_cut import decode_store_cut
from tests.runtime.world import CountingStore, Kill, World, made, run_dry, sales, worked


def cut_of(world: World) -> tape.Cut:
    return tape.decode_cut(decode_store_cut(world.store.cut or b"").core or b"")


def test_state_ahead_of_the_log_is_restored_from_the_log_with_a_warning(caplog) -> None:
    world, other = made(), World()
    worked(other, 0, 6)
    expected = other.rows()
    identity = cut_of(world).identity
    other.store = world.store
    other.running()
    assert other.rows() == expected
    assert identity.hex()[:12] in caplog.text
    assert cut_of(other).identity.hex()[:12] in caplog.text
    assert "restored from the log" in caplog.text


def test_state_that_an_empty_log_does_not_have_is_emptied(caplog) -> None:
    world, other = made(), World()
    other.store = world.store
    other.running()
    assert other.rows() == []
    assert "this log has no commit of it" in caplog.text


@pytest.mark.parametrize("behind", [True, False])
def test_state_of_a_log_with_equal_counts_is_restored_whether_it_is_behind_or_not(behind) -> None:
    """Two logs with the same offsets, commits, counts and watermarks, and other amounts."""
    world, other = made(), World(commit_interval_ms=0)
    partition = other.running()
    other.sell(*((shop, at, amount + 1) for shop, at, amount in sales(0, 20)))
    run_dry(partition, 4)
    partition.revoke()
    assert cut_of(world).totals == cut_of(other).totals
    if behind:
        worked(other, 20, 40)
    expected = other.rows()
    other.store = world.store
    other.running()
    assert other.rows() == expected


def test_a_store_killed_on_its_way_to_an_end_that_is_lost_is_restored() -> None:
    """It holds a part of a commit that the log does not have any more."""
    settings = PartitionSettings(restore_batch=3)
    world = made()
    world.log.on_operation = lambda name: None  # a copy without the world
    kept = copy.deepcopy(world.log)
    world.log.on_operation = world.operation
    worked(world, 20, 40)
    world.new_store()
    places = [at for at in range(1, 200) if at % 7 == 0]
    for at in places:
        world.new_store()
        with contextlib.suppress(Kill), world.striking(at, Kill()):
            world.running(settings=settings).close()
            break
        half, whole_log = world.store, world.log
        world.log = copy.deepcopy(kept)
        world.new_store()
        partition = world.running()
        world.sell(*((shop, at, amount + 1) for shop, at, amount in sales(20, 40)))
        run_dry(partition, 4)
        partition.revoke()
        expected = world.rows()
        world.store = half
        world.running(settings=settings).close()
        assert world.rows() == expected, at
        world.log = whole_log
    else:
        raise AssertionError("it never came to its end")


def test_the_tape_that_retention_left_decides_or_the_log_restores(caplog) -> None:
    world = made()
    lagging = world.store
    world.new_store()
    worked(world, 20, 40)
    expected, commits = world.rows(), cut_of(world).tape
    tapes = world.log.read("shop.tape")
    old = tape.decode_cut(decode_store_cut(lagging.cut or b"").core or b"").tape
    for first, is_known in ((old - 1, True), (old, True), (old + 1, False), (commits, False)):
        caplog.clear()
        offsets = {tape.decode_tape(one.value or b"").number: one.offset for one in tapes}
        world.log.delete_before("shop.tape", 0, offsets[first] if first in offsets else tapes[-1].offset + 1)
        world.store = CountingStore(world.operation)
        world.store.write(dict(lagging.scan(b"\x01", b"\xff")), lagging.cut or b"")
        world.running().close()
        assert world.rows() == expected
        assert ("restored from the log" not in caplog.text) == is_known, first
    caplog.clear()
    world.running().close()  # the changelog still says it of a store at its end
    assert not caplog.text
