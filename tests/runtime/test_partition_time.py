"""Idleness, clocks, the order of inputs and their end, as a partition brings them to its task."""

from __future__ import annotations

from tailrace.core.engine import tape
from tailrace.core.engine.task import TaskSettings
from tailrace.log import TopicPartition
from tailrace.runtime.progress import last_phase
from tests.runtime.world import World, quiet_outputs, run_dry

SALES = [(f"s{number % 3}", 50 * number, number) for number in range(12)]


class TestTime:
    def test_an_input_without_anything_to_read_is_waited_for_until_it_is_idle(self) -> None:
        world = World()
        partition = world.running()
        world.sell(("a", 0, 1), ("b", 10_000, 1))
        run_dry(partition)
        world.now_ms += 4_999
        run_dry(partition)
        partition.commit()
        assert "quiet 1 100" not in world.said()
        assert partition.rest_ms() == 1
        world.now_ms += 1
        run_dry(partition)
        partition.commit()
        assert "quiet 1 100" in world.said()

    def test_hidden_behind_an_open_transaction_is_not_idle(self) -> None:
        world = World()
        partition = world.running()
        world.sell(("a", 0, 1), ("b", 10_000, 1))
        producer = world.log.writer("producer")
        producer.append([one._replace(topic="returns") for one in quiet_outputs([b"{}"])])
        run_dry(partition)
        for _ in range(3):
            world.now_ms += 60_000
            run_dry(partition)
        partition.commit()
        assert not [what for what in world.said() if what.startswith("quiet")]
        producer.abort()
        run_dry(partition)
        world.now_ms += 5_000
        run_dry(partition)
        partition.commit()
        assert "quiet 1 100" in world.said()

    def test_a_record_ends_idleness_and_it_begins_anew(self) -> None:
        world = World()
        partition = world.running()
        for round_ms in (10_000, 30_000):
            world.sell(("a", round_ms, 1))
            run_dry(partition)
            world.now_ms += 5_000
            run_dry(partition)
            world.sell(("a", round_ms + 1, 1), topic="returns")
            run_dry(partition)
        partition.commit()
        commits = [tape.decode_tape(one.value or b"").causes for one in world.log.read("shop.tape")]
        for number in range(len(world.plan.inputs) - 1):  # not the inbox
            fall = [tape.IDLE, number, 1]
            assert sum(codes[at : at + 3] == fall for codes in commits for at in range(len(codes))) == 2

    def test_a_processing_timer_fires_by_the_clock_alone(self) -> None:
        world = World()
        partition = world.running()
        world.sell(("a", 0, 1), topic="returns")
        run_dry(partition)
        partition.commit()
        assert partition.rest_ms() == 1_000
        world.now_ms += 999
        assert not partition.poll()
        world.now_ms += 1
        assert partition.poll()
        partition.commit()
        assert world.said() == ["returned -1", "later -1"]

    def test_a_clock_reading_that_changes_nothing_is_no_cause(self) -> None:
        world = World()
        partition = world.running()
        for _ in range(10):
            world.now_ms += 100
            assert not partition.poll()
        assert not partition.task.dirty
        assert partition.rest_ms() == 4_100

    def test_a_clock_that_jumps_back_delays_nothing_for_longer_than_itself(self) -> None:
        world = World(commit_interval_ms=500)
        partition = world.running()
        world.sell(*SALES)
        partition.poll()
        world.now_ms -= 1_000_000
        partition.poll()
        world.now_ms += 500
        partition.poll()
        assert world.committed()["sales"] == len(SALES)

    def test_the_clock_of_a_task_survives_its_move_and_does_not_go_back(self) -> None:
        world = World()
        first = world.running()
        world.sell(("a", 0, 1), topic="returns")
        run_dry(first)
        now_ms = first.task.now
        assert now_ms == world.now_ms
        first.revoke()
        world.now_ms -= 500
        second = world.running()
        world.sell(("a", 1, 1), topic="returns")
        run_dry(second)
        assert second.task.now == now_ms


class TestOrder:
    def test_records_of_two_inputs_are_taken_in_the_order_of_their_times(self) -> None:
        world = World(merge_tolerance_ms=0)
        for number in range(10):
            world.sell(("a", number * 10, 1), topic=("sales", "returns")[number % 2])
        partition = world.running()
        run_dry(partition)
        partition.commit()
        kinds = [what.split()[0] for what in world.said() if "quiet" not in what]
        assert kinds == ["sold", "returned"] * 5


class TestEnd:
    def test_at_the_end_of_input_the_watermark_rises_to_the_latest_timer(self) -> None:
        world = World(task=TaskSettings(firing_budget=1))
        partition = world.running()
        world.sell(*SALES)
        partition.end_input(last_phase(world.plan))
        assert partition.rest_ms() == 0
        run_dry(partition, 3)
        partition.commit()
        assert len([what for what in world.said() if what.startswith("sold")]) == len(SALES)
        assert len([what for what in world.said() if what.startswith("quiet")]) >= 3
        assert partition.task.watermark == SALES[-1][1] + 100

    def test_no_input_falls_idle_while_the_end_goes_through_the_app(self) -> None:
        world = World()
        partition = world.running()
        world.sell(*SALES)
        run_dry(partition)
        partition.end_input(1)  # the operators end in the phases after it
        run_dry(partition)
        for _ in range(3):
            world.now_ms += 60_000
            run_dry(partition)
        assert not any(partition.task.watermarks.idle)


class TestSharedReader:
    def test_partitions_may_share_a_reader_and_leave_only_their_own_behind(self) -> None:
        world = World()
        reader = world.log.reader({TopicPartition("said", 0): 0})
        partition = world.running(reader=reader)
        world.sell(*SALES)
        assert reader.wait(0)
        run_dry(partition)
        assert not reader.wait(0)
        partition.revoke()
        assert reader.wait(0)
        world.sell(*SALES)
        reader.forget("said", 0)
        assert not reader.wait(0)
