"""With one input, or ordered operators, no messages and no processing time, nothing is left to chance: every run gives the
same bytes.

Here nobody follows a tape. Each run reads the same records, with slices, commits, crashes and settings of its own.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.failure import REASON_HEADER
from tailrace.core.engine.task import ORIGIN_HEADER
from tests.proof.apps import build
from tests.proof.runs import Committed, Run, assert_equal
from tests.proof.seeds import Feed, Records, each, pick, settings_of, slice_of, variant_of


def independent(run: Run, records: Records, random: Random, trace: list[str]) -> Committed:
    """Take all records of all inputs, somehow."""
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
            trace.append(f"commit at {task.positions}, draining {task.draining}")
            run.commit()
        elif task.draining:
            task.drain(random.choice((None, 1, 3)))
        else:
            left = [
                (one, some)
                for one in run.plan.inputs
                if (
                    some := pick(
                        records.get((one.name, run.partition), []), task.positions[one.name], 1 << 62
                    )
                )
            ]
            if not left:
                break
            one, some = random.choice(left)
            some = some[: slice_of(random)]
            trace.append(f"run {one.name} {some[0].offset}..{some[-1].offset}")
            task.run(one.index, task.decode(one.index, some))
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
        runs = _three_runs(model.app.plan(), partition, records, random, trace)
        for other in runs[1:]:
            assert_equal(runs[0], other, "an independent run")


def _three_runs(
    plan: Plan, partition: int, records: Records, random: Random, trace: list[str]
) -> list[Committed]:
    return [
        independent(Run(plan, partition, Committed(), settings_of(random), records), records, random, trace)
        for _ in range(3)
    ]


def check_any_order(seed: int, trace: list[str]) -> None:
    """If all operators are ordered, the records of two inputs may be taken in any order.

    Only the dead letters of refused records, which are written when these are taken, have other places among the outputs.
    """
    random = Random(seed)
    variant = variant_of(random, inputs=2, messages=False)
    variant = variant._replace(on_error="dead-letter-all", order="event-time", watermark="events")
    trace.append(str(variant))
    model = build(variant)
    records: Records = {}
    Feed(model, variant, random, most=random.choice((5, 5, 30, 30, 60, 200)), clock=False).fill(records)
    for partition in range(variant.partitions):
        runs = _three_runs(model.app.plan(), partition, records, random, trace)
        first = _without_refused(runs[0])
        for other in runs[1:]:
            assert_equal(first, _without_refused(other), "another order")


def _without_refused(run: Committed) -> Committed:
    """Without the letters of refused records, and without the outputs' numbers."""
    kept = [
        one
        for one in run.outputs
        if dict(one.headers).get(REASON_HEADER, b"handler-failed") == b"handler-failed"
    ]
    outputs = [
        one._replace(headers=tuple(pair for pair in one.headers if pair[0] != ORIGIN_HEADER)) for one in kept
    ]
    return replace(run, outputs=outputs)


@pytest.mark.one_seed_in(5)  # one takes 25 ms
def test_independent_runs_over_one_input_give_the_same_bytes(seeds: range) -> None:
    each(seeds, check_seed)


@pytest.mark.one_seed_in(5)  # one takes 60 ms
def test_ordered_operators_give_the_same_bytes_in_whatever_order_the_inputs_are_taken(seeds: range) -> None:
    each(seeds, check_any_order)
