"""Workers that die, sleep, come back, lose their disks and are told nothing: what is committed obeys the laws.

The world checks them after every step and replays everything in the end.
"""

from __future__ import annotations

import pytest

from tailrace.core.engine.settings import TaskSettings
from tailrace.runtime.slices import PartitionSettings
from tests.cast.world import World
from tests.proof.apps import Variant
from tests.proof.every_point import TINY, every_point, small_inputs, unharmed
from tests.proof.seeds import shuffled, told


@pytest.mark.one_seed_in(5)  # one takes 50 ms
def test_no_fault_breaks_a_law(seeds: range) -> None:
    for seed in seeds:
        one = shuffled(seed)
        world = World(one.model.app.plan(), seed, one.inputs, None, one.flaky, duplicates=True)
        with told(seed, world.trace):
            world.run(30)


SETTINGS = {
    "commits in every slice": TINY,
    "one commit": PartitionSettings(commit_interval_ms=1 << 40, task=TaskSettings(firing_budget=2)),
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_struck_at_every_operation_of_log_and_store_a_run_with_one_input_comes_out_as_if_it_had_not_been(
    settings: str,
) -> None:
    variant = Variant(1, 1, "handle", 500, "events", "dead-letter-all", messages=False, lean=False)
    plan, inputs = small_inputs(variant)
    clean = unharmed(plan, inputs, SETTINGS[settings], 3)
    assert len(clean.outputs[0]) > 3
    points = 0
    for struck in every_point(plan, inputs, SETTINGS[settings], 3):
        assert struck.outputs == clean.outputs, struck.point
        assert struck.rows == clean.rows, struck.point
        points += 1
    assert points > 50


def test_struck_at_every_operation_two_tasks_that_send_one_another_messages_lose_and_repeat_nothing() -> None:
    variant = Variant(1, 2, "handle", 0, "events", "dead-letter-all", messages=True, lean=True)
    plan, inputs = small_inputs(variant)
    points = sum(1 for _ in every_point(plan, inputs, TINY, 4))
    assert points > 100
