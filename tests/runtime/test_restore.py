"""Restoring brings a store to the last commit, whatever it held, and refuses what does not belong together."""

from __future__ import annotations

import msgspec
import pytest

import tailrace as tr
from tailrace.core import errors, rows
from tailrace.core.engine import tape
from tailrace.core.records import Output
from tailrace.history.reading.changelog import fold
from tailrace.log import TopicPartition, TopicSettings
from tailrace.runtime.first_positions import note_first_positions
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition
from tailrace.runtime.restore import Restore, finished
from tailrace.runtime.slices import PartitionSettings
from tailrace.state import RocksStore, StateIdentity
from tailrace.state.store_cut import FORMAT, StoreCut, decode_store_cut
from tests.runtime.world import LINEAGE, Kill, World, made, run_dry, sales, worked

DAY_MS = 86_400_000


class TestState:
    def test_a_store_that_lagged_is_brought_to_the_end_from_where_it_stood(self) -> None:
        world = made()
        lagging = world.store
        world.new_store()
        worked(world, 20, 40)
        expected = world.rows()
        world.store = lagging
        whole = world.log.read("shop.changelog")
        world.log.delete_before("shop.changelog", 0, decode_store_cut(lagging.cut or b"").changelog_position)
        world.running()
        assert world.rows() == expected
        assert 0 < world.log.start_offset("shop.changelog", 0) < whole[-1].offset

    def test_a_kill_at_any_operation_of_a_restore_is_made_good_by_the_next_one(self) -> None:
        clean = made()
        expected = clean.rows()
        settings = PartitionSettings(restore_batch=3)
        clean.new_store()
        clean.operations.clear()
        clean.running(settings=settings)
        assert clean.operations.count("stored") > 5
        for number in range(1, len(clean.operations) + 1):
            world = made()
            world.new_store()
            with world.striking(number, Kill()), pytest.raises(Kill):
                world.running(settings=settings)
            world.running(settings=settings)
            assert world.rows() == expected, number

    def test_a_store_that_stands_at_the_end_is_not_written(self) -> None:
        world = made()
        world.operations.clear()
        world.running()
        assert "store" not in world.operations

    def test_a_compacted_changelog_restores_the_same_rows(self) -> None:
        world = made()
        expected = world.rows()
        world.log.compact("shop.changelog")
        world.new_store()
        partition = world.running()
        assert world.rows() == expected
        worked_on = len(world.said())
        run_dry(partition)
        assert len(world.said()) == worked_on

    def test_the_task_goes_on_as_if_it_had_never_been_away(self) -> None:
        results = []
        for away in (False, True):
            world = made()
            if away:
                world.new_store()
            worked(world, 20, 40)
            results.append((world.outputs(), world.rows()))
        assert results[0] == results[1]


class TestOnDisk:
    def test_a_store_on_disk_is_brought_to_the_end_emptied_and_filled_like_one_in_memory(
        self, tmp_path
    ) -> None:
        world = made()
        identity = StateIdentity("shop", 0)

        def restored(batch: int) -> list[tuple[bytes, bytes]]:
            store = RocksStore(tmp_path, identity)
            try:
                reader = world.log.reader({})
                restore = Restore(
                    world.plan,
                    0,
                    world.log,
                    reader,
                    store,
                    lambda: world.now_ms,
                    PartitionSettings(restore_batch=batch),
                )
                finished(restore.steps())
                return list(store.scan(b"\x01", b"\xff"))
            finally:
                store.close()

        assert restored(20) == world.rows()
        worked(world, 20, 40)
        assert restored(7) == world.rows()
        worked(world, 40, 41)
        world.now_ms += DAY_MS
        assert restored(11) == world.rows()


class TestOldState:
    def away(self, hours: float, *, compacted_away: bool = True) -> World:
        """A store that was away while a key was deleted, and the deletion maybe compacted from the changelog."""
        world = World(commit_interval_ms=0)
        worked(world, 0, 20)
        stale = world.store
        world.new_store()
        # Returns end the idleness of their input and let the watermark pass every timer: keys over 20 are cleared.
        world.sell(("s9", 1_000_000, 1), topic="returns")
        worked(world, 20_000, 20_005)
        world.log.compact("shop.changelog", drop_deletions=compacted_away)
        world.now_ms += int(hours * 3_600_000)
        self.expected = world.rows()
        world.store = stale
        return world

    @pytest.mark.parametrize(
        "hours", [13, -13], ids=["half of the time that deletions are kept", "a clock that was ahead"]
    )
    def test_a_store_away_for_too_long_is_filled_anew(self, hours: int) -> None:
        world = self.away(hours)
        assert dict(world.rows()).keys() - dict(self.expected).keys()
        world.running()
        assert world.rows() == self.expected

    def test_a_store_away_for_less_is_only_brought_to_the_end(self) -> None:
        world = self.away(11, compacted_away=False)
        world.operations.clear()
        world.running()
        assert world.operations.count("store") == 2
        assert world.rows() == self.expected

    def test_a_store_that_misses_a_deletion_anyway_is_refused(self) -> None:
        world = self.away(11)
        for _ in range(2):
            with pytest.raises(
                errors.OtherHistoryError, match=r"its last commit notes .*Move the state folder"
            ):
                world.running()
        world.new_store()
        world.running()
        assert world.rows() == self.expected

    def test_who_is_killed_while_emptying_or_filling_is_no_obstacle_to_the_next(self) -> None:
        world = self.away(13)
        world.operations.clear()
        world.running()
        count = len(world.operations)
        for number in range(1, count + 1):
            world = self.away(13)
            with world.striking(number, Kill()):
                with pytest.raises(Kill):
                    world.running()
                world.running()
            assert world.rows() == self.expected, number

    def test_a_store_that_was_killed_on_its_way_to_the_end_is_no_fresher_for_it(self) -> None:
        world = self.away(11)
        with world.striking("store", Kill(), times=1), pytest.raises(Kill):
            world.running(settings=PartitionSettings(restore_batch=3))
        with world.striking("stored", Kill(), times=1), pytest.raises(Kill):
            world.running(settings=PartitionSettings(restore_batch=3))
        world.now_ms += 3 * 3_600_000
        world.running()
        assert world.rows() == self.expected

    def test_a_store_brought_to_the_end_is_fresh_again(self) -> None:
        world = self.away(11, compacted_away=False)
        world.running().close()
        assert decode_store_cut(world.store.cut or b"").at_end_ms == world.now_ms

    def test_time_alone_empties_nothing_where_nothing_was_missed(self) -> None:
        world = made()
        world.now_ms += 10 * DAY_MS
        world.operations.clear()
        world.running()
        assert "store" not in world.operations


class TestOffsets:
    def test_a_new_task_begins_with_the_oldest_record_that_is_kept(self) -> None:
        world = World()
        world.sell(*sales(0, 10))
        world.log.delete_before("sales", 0, 4)
        partition = world.running()
        assert partition.task.positions == {"sales": 4, "returns": 0, "shop.inbox": 0}
        run_dry(partition)
        partition.commit()
        assert world.committed()["sales"] == 10

    def test_expired_offsets_change_nothing_as_the_changelog_is_the_authority(self) -> None:
        world = made()
        world.log.expire_offsets("shop")
        assert world.running().task.positions["sales"] == 20

    def test_offsets_that_were_reset_are_refused_and_both_are_named(self) -> None:
        world = made()
        world.log.writer("tool").commit({TopicPartition("sales", 0): 3}, "shop")
        partition = world.assigned()
        with pytest.raises(errors.OtherHistoryError, match=r"(?s)sales.*offset 3.*offset 20") as raised:
            partition.restore()
        assert "delete the group" in raised.value.hint
        assert partition.state is State.FAILED

    def test_a_group_with_offsets_and_no_changelog_is_refused(self) -> None:
        world = World()
        world.log.writer("tool").commit({TopicPartition("sales", 0): 3}, "shop")
        with pytest.raises(errors.OtherHistoryError, match="no commit at all") as raised:
            world.running()
        assert "Keep the group" in raised.value.hint

    def test_an_input_that_is_new_begins_at_its_start_or_where_its_group_stood(self) -> None:
        app = tr.App("shop", partitions=1)

        class Word(msgspec.Struct):
            text: str

        words = app.topic("words", Word, key="text", event_time=tr.RECORD_TIME)

        @app.process(words)
        def ignore(event: Word, ctx: tr.Context[str]) -> None: ...

        for stood in (None, 2):
            world = made()
            world.log.create_topic("words", TopicSettings(1))
            for _ in range(3):
                world.log.append("words", b"w", b'{"text":"w"}', 0)
            world.log.delete_before("words", 0, 1)
            if stood is not None:
                world.log.writer("tool").commit({TopicPartition("words", 0): stood}, "shop")
            world.plan = app.plan()
            assert world.running().task.positions == {"words": stood or 1, "shop.inbox": 0}

    def test_an_input_that_lost_what_was_not_read_is_an_error_that_names_it(self) -> None:
        world = made()
        world.sell(*sales(20, 30))
        partition = world.running()
        world.log.delete_before("sales", 0, 25)
        with pytest.raises(errors.OffsetGoneError) as raised:
            partition.poll()
        assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("sales", 0, 20)
        assert partition.state is State.FAILED
        with pytest.raises(errors.OffsetGoneError, match="offsets 20 to 24 of 'sales' partition 0") as raised:
            world.running()
        assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("sales", 0, 20)

    def test_a_task_without_a_commit_is_told_what_was_deleted_since_the_app_began(self) -> None:
        world = World()
        note_first_positions(world.plan, world.log)
        world.sell(*sales(0, 30))
        world.log.delete_before("sales", 0, 7)
        with pytest.raises(errors.OffsetGoneError, match="offsets 0 to 6 of 'sales' partition 0") as raised:
            world.running()
        assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("sales", 0, 0)
        beginner = World()
        beginner.sell(*sales(0, 30))
        beginner.log.delete_before("sales", 0, 7)
        note_first_positions(beginner.plan, beginner.log)
        assert beginner.running().task.positions["sales"] == 7


class TestRefusals:
    def test_state_of_another_app_or_partition_is_refused_before_anything_is_written(self) -> None:
        world = made()
        cut = tape.decode_cut(decode_store_cut(world.store.cut or b"").core or b"")
        for change in ({"app": "other"}, {"partition": 1}):
            foreign = StoreCut(FORMAT, 0, 0, tape.encode(msgspec.structs.replace(cut, **change)))
            world.new_store()
            world.store.write({b"srow": b"value"}, foreign.encode())
            with pytest.raises(errors.StateFolderError, match="folder of its own"):
                world.running()
            assert world.rows() == [(b"srow", b"value")]

    @pytest.mark.parametrize(
        "cut", [b"", b"junk", msgspec.msgpack.encode([FORMAT, "x"]), msgspec.msgpack.encode([])]
    )
    def test_a_cut_that_cannot_be_read_is_corrupt(self, cut) -> None:
        with pytest.raises(errors.CorruptStateError):
            decode_store_cut(cut)

    def test_a_cut_of_a_newer_version_is_refused_whatever_else_it_holds(self) -> None:
        with pytest.raises(errors.FormatError):
            decode_store_cut(msgspec.msgpack.encode([FORMAT + 1, {"new": "shape"}]))

    def test_a_changelog_with_records_of_others_is_refused(self) -> None:
        world = World()
        world.log.append_all([Output("shop.changelog", None, b"junk", 0)], 0)
        with pytest.raises(errors.CorruptStateError, match="offset 0"):
            world.running()

    def test_a_changelog_that_gives_nothing_is_an_error_after_a_while(self) -> None:
        world = World(restore_patience_s=0.2)
        world.log.writer("intruder").append([Output("shop.changelog", b"k", b"v", 0)], 0)
        with pytest.raises(errors.LogUnavailableError, match=r"shop\.changelog"):
            world.running()


class TestOrder:
    def test_the_id_is_taken_over_before_the_end_is_asked_for(self) -> None:
        world = made()
        world.operations.clear()
        world.running()
        assert world.operations[:2] == ["take-over", "query"]

    def test_what_an_earlier_owner_left_open_is_neither_waited_for_nor_seen(self) -> None:
        world = made()
        zombie = world.running()
        world.sell(*sales(20, 30))
        zombie._running("stage").slice(world.now_ms, 0, 5)
        zombie._running("stage").stage()
        world.new_store()
        partition = world.running()
        assert partition.task.positions["sales"] == 20


class TestHoles:
    def test_a_record_that_is_lost_in_the_middle_is_missed_even_if_an_older_one_of_its_row_is_left(
        self,
    ) -> None:
        whole = made()
        last = {one.key: one.offset for one in whole.log.read("shop.changelog") if one.key != rows.CUT_ROW}
        assert len(last) > 10
        for lost in last.values():
            world = made()
            (part,) = world.log._of("shop.changelog")
            part.records = [one for one in part.records if one.offset != lost]
            world.running()  # its own store has read it
            world.new_store()
            for _ in range(2):
                with pytest.raises(errors.OtherHistoryError, match="its last commit notes"):
                    world.running()
            with pytest.raises(errors.OtherHistoryError, match="its last commit notes"):
                fold(world.log, TopicPartition("shop.changelog", 0), 0)

    def test_a_row_of_another_program_between_commits_is_not_taken_for_one_of_the_task(self) -> None:
        world = made()
        partition = world.running()
        row = next(one for one in world.log.read("shop.changelog") if (one.key or b"")[:1] == rows.STATE)
        world.log.append("shop.changelog", row.key or b"", row.value or b"", 0)
        world.sell(*sales(21, 22))
        run_dry(partition)
        partition.revoke()
        world.new_store()
        with pytest.raises(errors.OtherHistoryError, match="its last commit notes"):
            world.running()


class TestStopped:
    @pytest.mark.parametrize("emptied", [False, True])
    @pytest.mark.parametrize("batches", [1, 3, 6])
    def test_a_restore_that_is_not_to_go_on_ends_after_the_batch_and_the_next_goes_on(
        self, batches: int, emptied: bool
    ) -> None:
        world = made()
        expected = world.rows()
        lagging = world.store
        world.new_store()
        if emptied:  # the store was away for too long: what it holds goes first
            worked(world, 20, 40)
            expected = world.rows()
            world.store = lagging
            world.now_ms += 10 * DAY_MS
        partition = Partition(
            world.plan, 0, world.log, world.store, lambda: world.now_ms,
            lineage=LINEAGE, settings=PartitionSettings(restore_batch=5),
        )  # fmt: skip
        writes = world.operations.count("store")
        for _ in range(batches):
            assert partition.step()
            assert partition.state is State.RESTORING
        partition.close()
        assert partition.state is State.REVOKED
        assert 0 < world.operations.count("store") - writes <= batches
        assert world.rows() != expected
        world.running()
        assert world.rows() == expected
