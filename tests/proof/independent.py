"""Independent runs over one input: with slices, commits, crashes and settings of their own."""

from __future__ import annotations

from random import Random

from tests.proof.apps import build
from tests.proof.runs import Committed, Run, assert_equal
from tests.proof.seeds import Feed, Records, settings_of, slice_of, variant_of


def independent(run: Run, records: Records, random: Random, trace: list[str]) -> Committed:
    """Take all records of the one input, somehow."""
    name = run.plan.inputs[0].name
    mine = records.get((name, run.partition), [])
    commit_odds = random.choice((0.05, 0.4, 0.9))
    crashes = random.choice((0, 0, 8))
    while True:
        task = run.task
        chance = random.random()
        if crashes and chance < 0.1:
            crashes -= 1
            trace.append("crash")
            run.crash(settings_of(random))
        elif chance < 0.1 + commit_odds / 2 and task.dirty:
            trace.append(f"commit at {task.positions[name]}, draining {task.draining}")
            run.commit()
        elif task.draining:
            task.drain(random.choice((None, 1, 3)))
        else:
            position = task.positions[name]
            some = [record for record in mine if record.offset >= position][: slice_of(random)]
            if not some:
                break
            trace.append(f"run {some[0].offset}..{some[-1].offset}")
            task.run(0, task.decode(0, some))
    run.commit()
    return run.committed


def check_seed(seed: int, trace: list[str]) -> None:
    random = Random(seed)
    variant = variant_of(random, inputs=1, messages=False)._replace(on_error="dead-letter-all")
    trace.append(str(variant))
    model = build(variant)
    records: Records = {}
    Feed(model, variant, random, most=random.choice((5, 5, 30, 30, 60, 60, 60, 500)), clock=False).fill(
        records
    )
    for partition in range(variant.partitions):
        runs = [
            independent(
                Run(model.app.plan(), partition, Committed(), settings_of(random)), records, random, trace
            )
            for _ in range(3)
        ]
        for other in runs[1:]:
            assert_equal(runs[0], other, "an independent run")
