"""A task that is split by key: the first pass, the shards, and the merge."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.key_split.chunks import Chunk, Overview, is_of_shard
from tailrace.core.engine.key_split.first_pass import FirstPass
from tailrace.core.engine.key_split.shard import Ordered, ShardTask, check, in_order, numbered
from tailrace.core.engine.replay import Limit, Replay
from tailrace.core.engine.task import Task
from tailrace.core.engine.units import TIMER
from tailrace.core.errors import UnsplittableError
from tailrace.core.storage import Store
from tailrace.state import MemoryStore
from tests.proof.apps import build
from tests.proof.first_runs import first_run
from tests.proof.runs import ALL, LINEAGE, Committed
from tests.proof.seeds import START_MS, Records, pick, settings_of, variant_of


def passed(
    plan: Plan,
    partition: int,
    tapes: list[bytes],
    log: Records,
    shards: int,
    random: Random,
    base: bytes | None,
    limit: Limit | None = None,
) -> tuple[list[Chunk], Overview]:
    """The first pass; what it gives goes through bytes, as between processes."""
    first = FirstPass(
        plan,
        partition,
        shards,
        lambda name, start, stop: pick(log.get((name, partition), []), start, stop),
        base,
        lineage=LINEAGE,
        limit=limit,
        chunk_steps=random.choice((1, 5, 30, 1_000)),
    )
    chunks: list[Chunk] = []
    cut: bytes | None = None
    for data in tapes:
        more = first.take(tape.decode_tape(data))
        cut = first.task.commit_batch().cut
        first.task.committed()
        chunks += first.task.take_chunks()
        if not more:
            assert limit is not None
            break
    overview = first.overview(cut)
    chunks += first.task.take_chunks()
    return (
        msgspec.msgpack.decode(msgspec.msgpack.encode(chunks), type=list[Chunk]),
        msgspec.msgpack.decode(msgspec.msgpack.encode(overview), type=Overview),
    )


def own_rows(base: Store | None, shard: int, shards: int) -> MemoryStore:
    """The store that a shard begins with."""
    store = MemoryStore()
    if base is not None and base.cut is not None:
        mine = {row: value for row, value in base.scan(*ALL) if is_of_shard(row, shard, shards)}
        store.write(mine, base.cut)
    return store


class Shard:
    """One shard at work, with a store of its own, which commits when it likes."""

    def __init__(
        self,
        plan: Plan,
        partition: int,
        shard: int,
        overview: Overview,
        base: Store | None,
        random: Random,
        *,
        replaying: bool = True,
    ) -> None:
        self.random = random
        self.shard = shard
        self.store = own_rows(base, shard, overview.shards)
        self.outputs: list[Ordered] = []
        self.task = ShardTask(
            plan, partition, shard, overview, self.store, settings=settings_of(random), replaying=replaying
        )
        if random.random() < 0.5:
            self.task.pause = self.commit

    def commit(self) -> None:
        self.outputs += self.task.take_ordered()
        batch = self.task.commit_batch()
        self.store.write(batch.rows | batch.index_rows, batch.cut)
        self.task.committed()

    def run(self, chunks: list[Chunk]) -> tape.Totals:
        for chunk in chunks:
            self.outputs += self.task.take(chunk.series, chunk.shards[self.shard])
            if self.random.random() < 0.5:
                self.commit()
        self.commit()
        result = self.task.result()
        return msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=tape.Totals)


def split(
    plan: Plan,
    partition: int,
    tapes: list[bytes],
    log: Records,
    shards: int,
    random: Random,
    base: Store | None = None,
    *,
    draining: bool = False,
    limit: Limit | None = None,
) -> Committed:
    """The task rebuilt in shards, from nothing or from the state in a store."""
    cut = None if base is None else base.cut
    chunks, overview = passed(plan, partition, tapes, log, shards, random, cut, limit)
    parts = [Shard(plan, partition, shard, overview, base, random) for shard in range(shards)]
    try:
        counted = check(overview, [part.run(chunks) for part in parts])
    except UnsplittableError:
        assert draining, "nothing else keeps shards from adding up to the whole"
        raise
    state: dict[bytes, bytes | None] = {}
    for part in parts:
        for row, value in part.store.scan(*ALL):
            assert row not in state or row[:1] == rows.KEEP, f"two shards have the row {row!r}"
            state[row] = value
    whole = Committed()
    whole.outputs = list(numbered(in_order(part.outputs for part in parts), plan, partition, overview))
    whole.store.write(state, overview.cut_with(counted))
    assert overview.totals is None or overview.cut_with(counted) == overview.cut
    return whole


def assert_same(first: Committed, again: Committed, what: str) -> None:
    for number, (one, other) in enumerate(zip(first.outputs, again.outputs, strict=False)):
        assert one == other, f"{what}: output {number} differs"
    assert len(first.outputs) == len(again.outputs), f"{what}: another number of outputs"
    then, now = first.state(), again.state()
    for row in sorted(then.keys() | now.keys()):
        assert then.get(row) == now.get(row), f"{what}: the row {row!r} differs"
    assert first.store.cut == again.store.cut, f"{what}: stands elsewhere"


def fails_a_timer(tapes: list[bytes]) -> bool:
    """Whether the handler of a timer has failed in the first run."""
    return any(skip.input == TIMER for data in tapes for skip in tape.decode_tape(data).skips)


def check_whole(seed: int, trace: list[str]) -> int:
    """From nothing to the last commit, in some shards; how often that could be done."""
    random = Random(seed)
    variant = variant_of(random)._replace(order="arrival")
    trace.append(str(variant))
    model = build(variant)
    log: Records = {}
    first = first_run(model, variant, random, log, trace)
    done = 0
    for run in first.runs:
        plan, number, then = run.plan, run.partition, run.committed
        for shards in (1, 2, 3, 7):
            try:
                again = split(plan, number, then.tapes, log, shards, random)
            except UnsplittableError:
                assert fails_a_timer(then.tapes), "nothing else keeps a whole tape from being split"
                continue
            assert_same(then, again, f"{shards} shards")
            done += 1
    return done


class Between(NamedTuple):
    """A whole replay of a part of a tape: what it started from, what it added, whether it ended within a drain."""

    base: Store
    added: Committed
    draining: bool


def between(
    plan: Plan,
    partition: int,
    tapes: list[bytes],
    first: int,
    last: int,
    log: Records,
    limit: Limit | None = None,
) -> Between:
    store, base = Committed(), MemoryStore()
    task = Task(plan, partition, store.store, lineage=LINEAGE, replaying=True)
    whole = Replay(task, lambda name, start, stop: pick(log.get((name, partition), []), start, stop))
    limited = Replay(
        task, lambda name, start, stop: pick(log.get((name, partition), []), start, stop), limit=limit
    )
    for number, data in enumerate(tapes[:last]):
        replay = whole if number < first else limited
        more = replay.take(tape.decode_tape(data))
        outputs = task.take_outputs()
        batch = task.commit_batch()
        store.store.write(batch.rows | batch.index_rows, batch.cut)
        task.committed()
        if number < first:
            base.write(batch.rows | batch.index_rows, batch.cut)
        else:
            store.outputs += outputs
        if not more:
            break
    return Between(base, store, task.draining)


def limit_of(random: Random, plan: Plan, tapes: list[bytes], log: Records, partition: int) -> Limit:
    """Somewhere on the way."""
    last = tape.decode_tape(tapes[-1])
    if random.randrange(2):
        name = random.choice(plan.inputs).name
        offsets = [record.offset for record in log.get((name, partition), [])]
        return Limit(offsets={name: random.choice(offsets)} if offsets else {})
    return Limit(watermark_ms=random.randint(min(START_MS, last.watermark), last.watermark))
