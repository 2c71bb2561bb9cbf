"""The canonical order depends on the records alone: not on how they are read, or on commits."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.canonical import Canonical
from tailrace.core.engine.replay import Limit, Replay
from tailrace.core.engine.task import Task
from tailrace.state import MemoryStore
from tests.proof.canonical_orders import check_messages, check_order, check_partition, given, taken
from tests.proof.runs import LINEAGE, Committed
from tests.proof.seeds import START_MS, Records, each, pick, settings_of


@pytest.mark.one_seed_in(5)  # one takes 40 ms
def test_one_partition_comes_to_the_same_bytes_however_it_is_read_and_along_its_own_tape(
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


def stopped(
    plan: Plan, partition: int, tapes: list[bytes], log: Records, limit: Limit
) -> tuple[Committed, bool]:
    """A replay along a tape up to a limit, and whether it ends within a drain."""
    found = Committed()
    task = Task(plan, partition, found.store, lineage=LINEAGE, replaying=True)
    replay = Replay(
        task, lambda name, start, stop: pick(log.get((name, partition), []), start, stop), limit=limit
    )
    for data in tapes:
        more = replay.take(tape.decode_tape(data))
        found.outputs += task.take_outputs()
        batch = task.commit_batch()
        found.store.write(batch.rows | batch.index_rows, batch.cut)
        task.committed()
        if not more:
            break
    return found, task.draining


def limit_of(random: Random, tapes: list[bytes]) -> Limit:
    """None, or somewhere on the way."""
    if random.randrange(2):
        return Limit()  # an input that ends earlier has the others taken in another order
    watermark_ms = tape.decode_tape(tapes[-1]).watermark
    return Limit(watermark_ms=random.randint(min(START_MS, watermark_ms), watermark_ms))


def check_limit(seed: int, trace: list[str]) -> None:
    """Stopped on the way, it stands where a replay along the whole tape stands that is stopped there."""
    random = Random(seed)
    app = given(random, trace, messages=False)
    plan = app.plan
    for partition in range(plan.partitions):
        past = app.past(partition, inbox=False)
        _, tapes = taken(plan, partition, past, random, finish=False, window=100)
        limit = limit_of(random, tapes)
        trace.append(str(limit))
        along, draining = stopped(plan, partition, tapes, app.log, limit)
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
