"""A task split by key comes to the same bytes as the whole: rows, cut, and outputs in their order."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.core.errors import UnsplittableError
from tests.proof.apps import build
from tests.proof.first_runs import first_run
from tests.proof.ordered_shards import check_shards
from tests.proof.seeds import Records, each, variant_of
from tests.proof.splitting import assert_same, between, check_whole, limit_of, split


@pytest.mark.one_seed_in(5)  # one takes 80 ms
def test_a_task_split_by_key_comes_to_the_same_bytes_as_the_whole(seeds: range) -> None:
    each(seeds, check_whole)


def check_limit(seed: int, trace: list[str]) -> None:
    """Up to an offset, a watermark or a clock reading."""
    random = Random(seed)
    variant = variant_of(random)._replace(order="arrival")
    trace.append(str(variant))
    model = build(variant)
    log: Records = {}
    for run in first_run(model, variant, random, log, trace).runs:
        plan, number, tapes = run.plan, run.partition, run.committed.tapes
        limit = limit_of(random, plan, tapes, log, number)
        trace.append(str(limit))
        base, then, draining = between(plan, number, tapes, 0, len(tapes), log, limit)
        try:
            again = split(plan, number, tapes, log, 3, random, base, draining=draining, limit=limit)
        except UnsplittableError:
            continue
        if not draining:
            assert_same(then, again, str(limit))


def check_part(seed: int, trace: list[str]) -> None:
    """From somewhere on the tape to somewhere else."""
    random = Random(seed)
    variant = variant_of(random)._replace(order="arrival")
    trace.append(str(variant))
    model = build(variant)
    log: Records = {}
    for run in first_run(model, variant, random, log, trace).runs:
        plan, number, tapes = run.plan, run.partition, run.committed.tapes
        first, last = sorted(random.choices(range(len(tapes) + 1), k=2))
        if first == last:
            continue
        trace.append(f"commits {first} to {last} of {len(tapes)}")
        base, then, draining = between(plan, number, tapes, first, last, log)
        part, shards = tapes[first:last], random.choice((1, 2, 5))
        try:
            assert_same(
                then, split(plan, number, part, log, shards, random, base, draining=draining), "in shards"
            )
        except UnsplittableError as error:
            trace.append(f"unsplittable: {error}")


@pytest.mark.one_seed_in(10)  # one takes 60 ms
def test_any_part_of_a_tape_can_be_split_unless_it_ends_in_the_middle_of_a_drain(seeds: range) -> None:
    each(seeds, check_part)


@pytest.mark.one_seed_in(10)  # one takes 90 ms
def test_a_split_stops_where_a_replay_stops(seeds: range) -> None:
    each(seeds, check_limit)


@pytest.mark.one_seed_in(10)  # one takes 90 ms
def test_an_ordered_task_comes_in_shards_to_the_same_bytes_as_the_whole(seeds: range) -> None:
    each(seeds, check_shards)
