"""A task split by key comes to the same bytes as the whole: rows, cut, and outputs in their order."""

from __future__ import annotations

from random import Random

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.passing import Chunk, Course, FirstPass
from tailrace.core.engine.split import (
    Ordered,
    ShardResult,
    ShardTask,
    check,
    in_order,
    is_of_shard,
    numbered,
)
from tailrace.core.errors import UnsplittableError
from tailrace.core.storage import Store
from tailrace.state import MemoryStore
from tests.proof.apps import build
from tests.proof.runs import ALL, LINEAGE, Committed
from tests.proof.seeds import Records, pick, settings_of, told, variant_of
from tests.proof.test_replay import first_run


def passed(
    plan: Plan,
    partition: int,
    tapes: list[bytes],
    log: Records,
    shards: int,
    random: Random,
    base: bytes | None,
) -> tuple[list[Chunk], Course]:
    """The first pass; what it gives goes through bytes, as between processes."""
    first = FirstPass(
        plan,
        partition,
        shards,
        lambda name, start, stop: pick(log.get((name, partition), []), start, stop),
        base,
        lineage=LINEAGE,
        chunk_steps=random.choice((1, 5, 30, 1_000)),
    )
    chunks: list[Chunk] = []
    for data in tapes:
        done, more = first.take(tape.decode_tape(data))
        assert more
        chunks += done
    done, course = first.finish()
    chunks += done
    return (
        msgspec.msgpack.decode(msgspec.msgpack.encode(chunks), type=list[Chunk]),
        msgspec.msgpack.decode(msgspec.msgpack.encode(course), type=Course),
    )


class Shard:
    """One shard at work, with a store of its own, which commits when it likes."""

    def __init__(
        self,
        plan: Plan,
        partition: int,
        shard: int,
        course: Course,
        base: Store | None,
        random: Random,
        *,
        leave_last: bool = False,
    ) -> None:
        self.random = random
        self.shard = shard
        self.store = MemoryStore()
        self.outputs: list[Ordered] = []
        if base is not None and base.cut is not None:
            mine = {row: value for row, value in base.scan(*ALL) if is_of_shard(row, shard, course.shards)}
            self.store.write(mine, base.cut)
        self.task = ShardTask(
            plan, partition, shard, course, self.store, settings=settings_of(random), leave_last=leave_last
        )
        if random.random() < 0.5:
            self.task.pause = self.commit

    def commit(self) -> None:
        self.outputs += self.task.take_ordered()
        batch = self.task.commit_batch()
        self.store.write(batch.rows | batch.index_rows, batch.cut)
        self.task.committed()

    def run(self, chunks: list[Chunk]) -> ShardResult:
        for chunk in chunks:
            self.outputs += self.task.take(chunk.series, chunk.shards[self.shard])
            if self.random.random() < 0.5:
                self.commit()
        self.commit()
        result = self.task.result()
        return msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=ShardResult)


def split(
    plan: Plan,
    partition: int,
    tapes: list[bytes],
    log: Records,
    shards: int,
    random: Random,
    base: Store | None = None,
) -> Committed:
    """The task rebuilt in shards, from nothing or from the state in a store."""
    chunks, course = passed(plan, partition, tapes, log, shards, random, None if base is None else base.cut)
    parts = [Shard(plan, partition, shard, course, base, random) for shard in range(shards)]
    try:
        counted = check(course, [part.run(chunks) for part in parts])
    except UnsplittableError:
        assert course.timer_skips, "there is nothing that could not be told apart"
        raise
    state: dict[bytes, bytes | None] = {}
    for part in parts:
        for row, value in part.store.scan(*ALL):
            assert row not in state or row[:1] == rows.KEEP, f"two shards have the row {row!r}"
            state[row] = value
    whole = Committed()
    whole.outputs = list(numbered(in_order(part.outputs for part in parts), plan, partition, course))
    whole.store.write(state, course.cut_with(counted))
    assert course.cut_with(counted) == course.cut
    return whole


def assert_same(first: Committed, again: Committed, what: str) -> None:
    for number, (one, other) in enumerate(zip(first.outputs, again.outputs, strict=False)):
        assert one == other, f"{what}: output {number} differs"
    assert len(first.outputs) == len(again.outputs), f"{what}: another number of outputs"
    then, now = first.state(), again.state()
    for row in sorted(then.keys() | now.keys()):
        assert then.get(row) == now.get(row), f"{what}: the row {row!r} differs"
    assert first.store.cut == again.store.cut, f"{what}: stands elsewhere"


def check_seed(seed: int, trace: list[str]) -> None:
    random = Random(seed)
    variant = variant_of(random)
    trace.append(str(variant))
    model = build(variant)
    log: Records = {}
    first = first_run(model, variant, random, log, trace)
    for run in first.runs:
        plan, number, then = run.plan, run.partition, run.committed
        for shards in (1, 2, 3, 7):
            try:
                again = split(plan, number, then.tapes, log, shards, random)
            except UnsplittableError:
                continue
            assert_same(then, again, f"{shards} shards")


def test_a_task_split_by_key_comes_to_the_same_bytes_as_the_whole(seeds: range) -> None:
    for seed in seeds:
        trace: list[str] = []
        with told(seed, trace):
            check_seed(seed, trace)
