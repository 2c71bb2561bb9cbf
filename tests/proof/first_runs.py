"""A first run in which anything may happen, and its replay commit by commit."""

from __future__ import annotations

from random import Random

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Replay
from tailrace.core.engine.task import Task
from tailrace.state import MemoryStore
from tests.proof.apps import Variant
from tests.proof.operations import Chance, Model
from tests.proof.runs import LINEAGE, Committed, First
from tests.proof.seeds import Feed, Records, pick, settings_of

SIZES = (4, 4, 15, 15, 15, 40, 40, 40, 40, 300)
"""Records per input: mostly few, so that there can be many seeds."""


def first_run(
    model: Model, variant: Variant, random: Random, log: Records, trace: list[str], *, clock: bool = True
) -> First:
    """A run in which anything may happen. ``clock``: also timers of processing time."""
    Feed(model, variant, random, most=random.choice(SIZES), clock=clock).fill(log)
    flaky = random.choice((0.0, 0.3))
    Chance.fires = staticmethod(lambda: random.random() < flaky)
    try:
        first = First(model.app.plan(), log, random, trace)
        first.run(random.choice((5, 20, 60)))
    finally:
        Chance.fires = staticmethod(lambda: False)
    return first


def replayed(plan: Plan, partition: int, tapes: list[bytes], log: Records, random: Random) -> Committed:
    """A replay as the framework does it, commit by commit."""
    again = Committed(MemoryStore())
    task = Task(plan, partition, again.store, lineage=LINEAGE, settings=settings_of(random), replaying=True)
    replay = Replay(task, lambda name, start, stop: pick(log.get((name, partition), []), start, stop))
    for data in tapes:
        replay.take(tape.decode_tape(data))
        again.outputs += task.take_outputs()
        batch = task.commit_batch()
        again.store.write(batch.rows | batch.index_rows, batch.cut)
        again.measurements += batch.measurements
        task.committed()
    return again
