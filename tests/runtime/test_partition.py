"""A partition takes slices and commits; nothing is visible before, nothing is lost or repeated after."""

from __future__ import annotations

import pytest

from tailrace.core.engine.task import CommitBatch, TaskSettings
from tailrace.core.errors import (
    BadRecordError,
    CommitUnknownError,
    FencedError,
    HandlerError,
    LifecycleError,
    LogUnavailableError,
    StateUnavailableError,
)
from tailrace.core.rows import CUT_ROW
from tailrace.runtime.lifecycle import State
from tailrace.state.store_cut import decode_store_cut
from tests.runtime.world import APPS, CountingStore, World, quiet_outputs, run_dry

SALES = [(f"s{number % 3}", 50 * number, number) for number in range(12)]


class TestCommit:
    def test_nothing_is_visible_before_the_commit_and_everything_at_once_after_it(self) -> None:
        world = World()
        partition = world.running()
        world.sell(*SALES)
        partition.poll()
        assert (world.said(), world.committed(), world.rows()) == ([], {}, [])
        assert world.log.read("shop.changelog") == world.log.read("shop.tape") == []
        partition.commit()
        assert len([what for what in world.said() if what.startswith("sold")]) == len(SALES)
        assert world.committed() == {"returns": 0, "sales": len(SALES), "shop.inbox": 0}
        assert {row.key: row.value for row in world.log.read("shop.changelog")}.items() >= {
            row: value for row, value in world.rows() if row[:1] != b"i"
        }.items()
        assert world.log.read("shop.changelog")[-1].key == CUT_ROW
        assert len(world.log.read("shop.tape")) == 1

    def test_the_store_is_written_only_after_the_log_has_committed(self) -> None:
        world = World()
        partition = world.running()
        world.sell(*SALES)
        partition.poll()
        world.operations.clear()
        partition.commit()
        assert world.operations == ["append", "append", "commit", "committed", "store", "stored"]

    def test_the_stores_position_covers_this_commit_and_nothing_after_it(self) -> None:
        world = World()
        partition = world.running()
        world.sell(*SALES)
        run_dry(partition)
        partition.commit()
        position = decode_store_cut(world.store.cut or b"").changelog_position
        assert position == world.log.read("shop.changelog")[-1].offset + 1

    def test_a_commit_falls_when_the_interval_has_passed_and_not_before(self) -> None:
        world = World(commit_interval_ms=500)
        partition = world.running()
        world.sell(SALES[0])
        partition.poll()
        world.now_ms += 499
        assert not partition.poll()
        assert partition.rest_ms() == 1
        world.now_ms += 1
        assert partition.poll()
        assert len(world.log.read("shop.tape")) == 1
        world.now_ms += 600
        assert not partition.poll()
        assert len(world.log.read("shop.tape")) == 1

    @pytest.mark.parametrize("limit", [{"commit_records": 4}, {"commit_entries": 2}])
    def test_a_commit_falls_early_when_there_is_much_to_commit(self, limit) -> None:
        world = World(commit_interval_ms=1_000_000, **limit)
        partition = world.running()
        world.sell(*SALES)
        run_dry(partition, 3)
        assert len(world.log.read("shop.tape")) > 1

    def test_nothing_taken_is_nothing_to_commit(self) -> None:
        world = World()
        partition = world.running()
        for _ in range(3):
            world.now_ms += 1_000
            partition.poll()
        partition.commit()
        assert world.log.read("shop.tape") == world.log.read("shop.changelog") == []

    def test_what_is_committed_is_reported_once(self) -> None:
        world = World()
        batches: list[CommitBatch] = []
        partition = world.running(on_committed=batches.append)
        world.sell(*SALES)
        partition.poll()
        assert batches == []
        partition.commit()
        partition.commit()
        assert [batch.positions["sales"] for batch in batches] == [len(SALES)]


class TestKills:
    """A process may end at any operation; who comes next finds everything, once."""

    def world(self, app: str = "two inputs") -> World:
        world = World(APPS[app](), commit_interval_ms=0, restore_batch=3, task=TaskSettings(firing_budget=2))
        world.sell(*SALES)
        return world

    def test_in_doubt_nothing_is_done_before_the_log_was_asked(self) -> None:
        world = self.world()
        partition = world.running()
        with world.striking("committed", CommitUnknownError("lost contact")):
            partition.poll(3)
        assert partition.state is State.IN_DOUBT
        with pytest.raises(LifecycleError):
            partition.commit()
        assert partition.poll()
        assert partition.task.positions["sales"] == 3
        partition.close()

    def test_one_in_doubt_may_leave_it_to_the_next_owner(self) -> None:
        world = self.world()
        partition = world.running()
        with world.striking("commit", CommitUnknownError("lost contact")):
            partition.poll(3)
        partition.revoke()
        assert partition.state is State.REVOKED
        assert world.running().task.positions["sales"] == 0


class TestFencing:
    def test_a_zombie_is_told_at_its_next_write_and_nothing_of_it_remains(self) -> None:
        world = World()
        zombie = world.running()
        world.sell(*SALES)
        zombie.poll(4)
        store, world.store = world.store, CountingStore(world.operation)
        owner = world.running()
        with pytest.raises(FencedError):
            run_dry(zombie, 4)
        assert zombie.state is State.FENCED
        assert isinstance(zombie.error, FencedError)
        assert store.cut is None
        with pytest.raises(LifecycleError):
            zombie.poll()
        zombie.revoke()
        assert zombie.state is State.FENCED
        run_dry(owner)
        owner.revoke()
        assert len([what for what in world.said() if what.startswith("sold")]) == len(SALES)

    def test_a_zombie_with_a_full_transaction_cannot_commit_it(self) -> None:
        world = World()
        zombie = world.running()
        world.sell(*SALES)
        zombie.poll()
        world.new_store()
        world.running()
        with pytest.raises(FencedError):
            zombie.commit()
        assert (world.said(), world.committed()) == ([], {})

    def test_one_that_was_not_restored_takes_no_slice(self) -> None:
        partition = World().assigned()
        for act in (partition.poll, partition.commit, lambda: partition.end_input(1), lambda: partition.task):
            with pytest.raises(LifecycleError):
                act()
        partition.close()
        assert partition.state is State.REVOKED
        with pytest.raises(LifecycleError):
            partition.restore()


class TestFailures:
    def test_a_failing_handler_stops_the_partition_and_nothing_of_the_transaction_remains(self) -> None:
        world = World()
        partition = world.running()
        world.sell(("a", 1, 1), ("a", 2, -1), ("a", 3, 1))
        partition.poll(1)
        with pytest.raises(HandlerError) as raised:
            partition.poll()
        assert raised.value.offset == 1
        assert partition.state is State.FAILED
        assert partition.error is raised.value
        assert (world.said(), world.committed(), world.rows()) == ([], {}, [])
        # The transaction was aborted: it hides nothing from others.
        world.log.append("said", b"k", b"{}", 0)
        assert len(world.log.read("said")) == 1
        with pytest.raises(LifecycleError):
            partition.poll()

    def test_an_undecodable_record_stops_the_partition(self) -> None:
        world = World()
        partition = world.running()
        world.log.append_all(quiet_outputs([b"not json"]))
        with pytest.raises(BadRecordError):
            partition.poll()
        assert partition.state is State.FAILED

    def test_a_log_that_cannot_be_read_fails_nothing(self) -> None:
        world = World()
        partition = world.running()
        world.sell(*SALES)
        with world.striking("fetch", LogUnavailableError("away"), times=4):
            for _ in range(2):
                with pytest.raises(LogUnavailableError):
                    partition.poll()
        assert partition.state is State.RUNNING
        run_dry(partition)
        partition.commit()
        assert world.committed()["sales"] == len(SALES)

    def test_while_one_input_cannot_be_read_the_others_do_not_go_past_it(self) -> None:
        world = World()
        partition = world.running()
        world.sell(*SALES)
        with world.striking("fetch", LogUnavailableError("away")), pytest.raises(LogUnavailableError):
            partition.poll()
        assert partition.task.positions == {"returns": 0, "sales": 0, "shop.inbox": 0}

    @pytest.mark.parametrize("struck", ["append", "commit"])
    def test_a_log_that_cannot_be_written_ends_it_and_the_next_one_goes_on(self, struck) -> None:
        world = World()
        partition = world.running()
        world.sell(*SALES)
        with world.striking(struck, LogUnavailableError("full")), pytest.raises(LogUnavailableError):
            partition.poll()
            partition.commit()
        assert partition.state is State.FAILED
        following = world.running()
        run_dry(following)
        following.commit()
        assert len([what for what in world.said() if what.startswith("sold")]) == len(SALES)

    def test_a_store_that_cannot_be_written_ends_it_and_the_log_knows(self) -> None:
        world = World()
        partition = world.running()
        world.sell(*SALES)
        partition.poll()
        with (
            world.striking("store", StateUnavailableError("disk full")),
            pytest.raises(StateUnavailableError),
        ):
            partition.commit()
        assert partition.state is State.FAILED
        assert world.committed()["sales"] == len(SALES)
        following = world.running()
        assert following.task.positions["sales"] == len(SALES)
        assert not following.poll()
