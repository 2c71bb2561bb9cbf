"""A partition takes slices and commits; nothing is visible before, nothing is lost or repeated after."""

from __future__ import annotations

from typing import Any

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
from tests.runtime.world import (
    APPS,
    CountingStore,
    Kill,
    World,
    counting_app,
    quiet_outputs,
    replayed,
    run_dry,
)

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
        assert world.committed() == {"returns": 0, "sales": len(SALES)}
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


class TestRestart:
    def test_the_next_owner_goes_on_where_the_last_one_committed(self) -> None:
        world = World()
        first = world.running()
        world.sell(*SALES[:6])
        run_dry(first)
        first.revoke()
        assert first.state is State.REVOKED
        assert world.store.closed
        world.sell(*SALES[6:])
        second = world.running()
        run_dry(second)
        second.revoke()
        clean = World()
        clean.sell(*SALES)
        partition = clean.running()
        run_dry(partition)
        partition.revoke()
        assert world.outputs() == clean.outputs()
        assert world.rows() == clean.rows()

    def test_a_closed_partition_leaves_what_it_did_not_commit_to_the_next(self) -> None:
        world = World()
        first = world.running()
        world.sell(*SALES)
        run_dry(first)
        first.close()
        first.close()
        assert world.said() == []
        second = world.running()
        run_dry(second)
        second.commit()
        assert len([what for what in world.said() if what.startswith("sold")]) == len(SALES)

    @pytest.mark.parametrize("app", APPS)
    def test_results_do_not_depend_on_slices_commits_or_budget(self, app) -> None:
        results: list[tuple[list[Any], list[Any]]] = []
        for most, interval_ms, budget in (
            (1, 0, 1),
            (3, 1_000_000, 1),
            (1_000, 0, 2),
            (1_000, 1_000_000, 1_000),
        ):
            world = World(
                APPS[app](), commit_interval_ms=interval_ms, task=TaskSettings(firing_budget=budget)
            )
            partition = world.running()
            world.sell(*SALES, ("s1", 100_000, 5), ("s2", 200_000, 5))
            run_dry(partition, most)
            partition.revoke()
            results.append((world.outputs(), world.rows()))
            assert replayed(world) == results[0]
            assert len([what for what in world.said() if what.startswith("sold")]) == len(SALES) + 2
        assert all(result == results[0] for result in results)

    def test_a_commit_in_the_middle_of_a_drain_is_taken_up_there(self) -> None:
        world = World(commit_interval_ms=0, task=TaskSettings(firing_budget=1))
        partition = world.running()
        world.sell(*[(f"s{number}", 0, 1) for number in range(5)], ("s9", 100_000, 1))
        run_dry(partition)
        world.now_ms += 5_000
        partition.poll()
        assert partition.task.draining
        partition.close()
        fired = len([what for what in world.said() if what.startswith("quiet")])
        assert 0 < fired < 5
        following = world.running()
        run_dry(following)
        assert len([what for what in world.said() if what.startswith("quiet")]) == 5
        assert following.rest_ms() is not None
        assert replayed(world) == (world.outputs(), world.rows())

    def test_a_replay_along_the_tape_ends_where_the_partition_ended(self) -> None:
        world = World(commit_interval_ms=1_000)
        partition = world.running()
        for number, sale in enumerate(SALES):
            world.now_ms += 300
            world.sell(sale)
            if number % 4 == 0:
                world.sell(sale, topic="returns")
            run_dry(partition)
        world.now_ms += 10_000
        run_dry(partition)
        partition.revoke()
        assert replayed(world) == (world.outputs(), world.rows())


class TestKills:
    """A process may end at any operation; who comes next finds everything, once."""

    def finished(self, world: World) -> tuple[list[Any], list[Any]]:
        """Run what is there in small slices to the end."""
        partition = world.running()
        run_dry(partition, 3)
        partition.revoke()
        return world.outputs(), world.rows()

    def world(self, app: str = "two inputs") -> World:
        world = World(APPS[app](), commit_interval_ms=0, restore_batch=3, task=TaskSettings(firing_budget=2))
        world.sell(*SALES)
        return world

    @pytest.mark.parametrize("app", APPS)
    def test_a_kill_at_any_operation_loses_nothing_and_repeats_nothing(self, app) -> None:
        clean = self.world(app)
        clean.operations.clear()
        expected = self.finished(clean)
        count = len(clean.operations)
        assert count > 40
        for number in range(1, count + 1):
            for disk_survives in (True, False):
                world = self.world(app)
                world.operations.clear()
                with world.striking(number, Kill()):
                    with pytest.raises(Kill):
                        self.finished(world)
                    if not disk_survives:
                        world.new_store()
                    assert self.finished(world) == expected, number
                assert replayed(world) == expected, number

    def test_an_unknown_outcome_at_any_commit_is_resolved_by_looking(self) -> None:
        clean = self.world()
        clean.operations.clear()
        expected = self.finished(clean)
        for name in ("commit", "committed"):
            for number in [at for at, one in enumerate(clean.operations, 1) if one == name]:
                world = self.world()
                world.operations.clear()
                with world.striking(number, CommitUnknownError("lost contact")):
                    assert self.finished(world) == expected, number

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

    def test_the_store_is_never_ahead_of_the_log(self) -> None:
        for number in range(1, 40):
            world = self.world()
            world.operations.clear()
            with world.striking(number, Kill()), pytest.raises(Kill):
                self.finished(world)
            if world.store.cut is not None:
                held = decode_store_cut(world.store.cut)
                assert held.core in [one.value for one in world.log.read("shop.changelog")]


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

    def test_with_dead_letters_it_goes_on(self) -> None:
        world = World(counting_app(on_error="dead-letter"))
        partition = world.running()
        world.sell(("a", 1, 1), ("a", 2, -1), ("a", 3, 1))
        world.log.append_all(quiet_outputs([b"not json"]))
        run_dry(partition)
        partition.commit()
        assert len(world.log.read("shop.dead-letters")) == 2
        assert len(world.said()) == 2

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
        assert partition.task.positions == {"returns": 0, "sales": 0}

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
