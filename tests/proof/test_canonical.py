"""The canonical order depends on the records alone: not on how they are read, on commits, or on a split by key."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.core.engine import tape
from tailrace.core.engine.canonical import Canonical
from tailrace.core.engine.replay import Limit
from tailrace.core.engine.task import Task
from tailrace.state import MemoryStore
from tests.proof.canonical_orders import check_messages, check_order, check_partition, given, taken
from tests.proof.runs import LINEAGE
from tests.proof.seeds import each, settings_of
from tests.proof.splitting import between, limit_of


@pytest.mark.one_seed_in(5)  # one takes 40 ms
def test_one_partition_comes_to_the_same_bytes_however_it_is_read_and_along_its_own_tape_and_in_shards(
    seeds: range,
) -> None:
    each(seeds, check_partition)


# --- the order itself --------------------------------------------------------------------------------------------


@pytest.mark.one_seed_in(5)  # one takes 15 ms
def test_the_order_is_that_of_the_live_merge_with_everything_at_hand(seeds: range) -> None:
    each(seeds, check_order)


# --- messages ----------------------------------------------------------------------------------------------------


@pytest.mark.one_seed_in(5)  # one takes 40 ms
def test_an_app_whose_messages_are_delivered_comes_to_the_same_bytes_and_along_its_own_tapes(
    seeds: range,
) -> None:
    each(seeds, check_messages)


# --- limits ------------------------------------------------------------------------------------------------------


def check_limit(seed: int, trace: list[str]) -> None:
    """Stopped on the way, it stands where a replay along the whole tape stands that is stopped there."""
    random = Random(seed)
    app = given(random, trace, messages=False)
    plan = app.plan
    for partition in range(plan.partitions):
        past = app.past(partition, inbox=False)
        _, tapes = taken(plan, partition, past, random, finish=False, window=100)
        limit = limit_of(random, plan, tapes, app.log, partition)
        if limit.offsets:
            limit = Limit()  # an input that ends earlier has the others taken in another order
        trace.append(str(limit))
        _, along, draining = between(plan, partition, tapes, 0, len(tapes), app.log, limit)
        if draining:
            continue  # a commit fell into the drain of the very step at which it is to stop
        task = Task(plan, partition, MemoryStore(), lineage=LINEAGE, settings=settings_of(random))
        canonical = Canonical([task], [past], limit=limit, window=random.choice((1, 9)))
        for _ in canonical.go():
            pass
        outputs = canonical.outputs()
        cut, then = tape.decode_cut(task.commit_batch().cut), along.standing()
        assert (cut.now, cut.watermark, cut.totals) == (then.now, then.watermark, then.totals)
        assert outputs == along.outputs


@pytest.mark.one_seed_in(5)  # one takes 25 ms
def test_the_canonical_order_stops_where_a_replay_along_it_stops(seeds: range) -> None:
    each(seeds, check_limit)
