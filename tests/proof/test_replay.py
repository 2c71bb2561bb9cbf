"""Given the same causes, state and outputs are the same bytes, whatever the batching and wherever a crash struck."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Replay
from tailrace.core.engine.task import Task
from tailrace.state import MemoryStore, RocksStore, StateIdentity
from tests.proof.apps import Variant, build
from tests.proof.operations import Chance, Model
from tests.proof.runs import LINEAGE, Committed, First, assert_equal, follow
from tests.proof.seeds import Feed, Records, pick, settings_of, told, variant_of

SIZES = (4, 4, 15, 15, 15, 40, 40, 40, 40, 300)
"""Records per input: mostly few, so that there can be many seeds."""


def first_run(model: Model, variant: Variant, random: Random, log: Records, trace: list[str]) -> First:
    """A run in which anything may happen."""
    Feed(model, variant, random, most=random.choice(SIZES)).fill(log)
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


def check_seed(seed: int, trace: list[str]) -> None:
    random = Random(seed)
    variant = variant_of(random)
    trace.append(str(variant))
    model = build(variant)
    log: Records = {}
    first = first_run(model, variant, random, log, trace)
    for run in first.runs:
        plan, number, then = run.plan, run.partition, run.committed
        assert_equal(then, replayed(plan, number, then.tapes, log, random), "replay")
        assert_equal(then, follow(plan, number, then.tapes, log, random, trace), "other batching")
        if seed % 20 == 0:  # the same on disk; fewer, as each opens a database
            with TemporaryDirectory() as folder:
                store = RocksStore(Path(folder) / "state", StateIdentity(plan.app, number))
                assert_equal(then, follow(plan, number, then.tapes, log, random, trace, store), "on disk")
                store.close()


@pytest.mark.one_seed_in(5)  # one takes 0.1 s
def test_the_same_causes_give_the_same_bytes_whatever_the_batching_and_wherever_a_crash_struck(
    seeds: range,
) -> None:
    for seed in seeds:
        trace: list[str] = []
        with told(seed, trace):
            check_seed(seed, trace)
