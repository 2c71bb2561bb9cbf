"""Workers that die, sleep, come back, lose their disks and are told nothing: what is committed obeys the laws.

The simulator checks them after every step and replays everything in the end.
"""

from __future__ import annotations

import pytest

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.records import Output
from tailrace.runtime.slices import PartitionSettings
from tailrace.testing.every_point import every_point, unharmed
from tailrace.testing.simulator import SimulationReport, Simulator
from tests.proof.apps import Variant, build
from tests.proof.operations import Event
from tests.proof.programs import Op, Program
from tests.proof.seeds import START_MS, shuffled


def simulated(seed: int, steps: int = 40) -> SimulationReport:
    one = shuffled(seed)
    return Simulator(one.model.app.plan(), seed, one.inputs, steps=steps, flaky=one.flaky).run()


@pytest.mark.one_seed_in(5)  # one takes 50 ms
def test_no_fault_breaks_a_law(seeds: range) -> None:
    for seed in seeds:
        simulated(seed)


TINY = PartitionSettings(
    commit_interval_ms=0,
    commit_records=2,
    task=TaskSettings(firing_budget=1, timers_in_memory=2, cache_bytes=0),
)
SETTINGS = {
    "commits in every slice": TINY,
    "one commit": PartitionSettings(commit_interval_ms=1 << 40, task=TaskSettings(firing_budget=2)),
}


EMIT, NOTE = Op("emit", 3), Op("note")
PROGRAMS: tuple[Program, ...] = (
    (Op("timer", 2, 500, (EMIT, Op("append", 1))), Op("put", 1, 5), EMIT),
    (
        Op("timer", 0, 3, (NOTE,)),
        Op("timer", 3, 3, (EMIT, Op("past-timer", 2, 1, (EMIT,)))),
        Op("box-put", 1),
    ),
    (Op("fail"),),
    (Op("brief", 1, 3), Op("queue", 2), NOTE, Op("send", 2, 1, (EMIT,)), Op("clock-timer", 2, 3, (EMIT,))),
    (Op("clear"), EMIT),
    (Op("fade", 1), Op("send", 4, 2, (EMIT, Op("send-self")))),
)


def small_inputs(variant: Variant) -> tuple[Plan, list[Output]]:
    """A few records that set timers, change entries, fail, emit and, where the app knows them, send messages."""
    model = build(variant)
    topic = model.topics[0]
    inputs: list[Output] = []
    for number, program in enumerate(PROGRAMS):
        if not variant.messages:
            program = tuple(op for op in program if op.kind not in ("send", "clock-timer"))
        event = Event(("k", "kk", "last")[number % 3], START_MS + 300 * number, program)
        inputs.append(Output(topic.name, topic.encode_key(event), topic.encode(event), event.at))
    return model.app.plan(), inputs


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
