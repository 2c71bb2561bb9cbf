"""Small simulated runs, for faults at every point."""

from __future__ import annotations

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.records import Output
from tailrace.runtime.slices import PartitionSettings
from tests.proof.apps import Variant, build
from tests.proof.operations import Event
from tests.proof.programs import Op, Program
from tests.proof.seeds import START_MS, shuffled
from tests.proof.simulator import SimulationReport, Simulator


def simulated(seed: int, steps: int = 40) -> SimulationReport:
    one = shuffled(seed)
    return Simulator(one.model.app.plan(), seed, one.inputs, steps=steps, flaky=one.flaky).run()


TINY = PartitionSettings(
    commit_interval_ms=0,
    commit_records=2,
    task=TaskSettings(firing_budget=1, timers_in_memory=2, cache_bytes=0),
)


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
