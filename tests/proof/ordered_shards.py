"""A task whose operators are all ordered, run in shards by key in one pass, and their merge."""

from __future__ import annotations

from random import Random

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.intake import refill
from tailrace.core.engine.key_split.chunks import Overview, gained
from tailrace.core.engine.key_split.ordered_shard import (
    OrderedShardReplay,
    OrderedShardTask,
    Skips,
    failed_units,
)
from tailrace.core.engine.key_split.shard import Ordered, check, in_order, numbered
from tailrace.core.errors import ReplayDivergedError, UnsplittableError
from tailrace.core.records import InputRecord
from tailrace.core.storage import Store
from tests.proof.apps import build
from tests.proof.first_runs import first_run
from tests.proof.runs import ALL, LINEAGE, Committed
from tests.proof.seeds import Records, pick, settings_of, variant_of
from tests.proof.splitting import assert_same, between, fails_a_timer, own_rows


class Shard:
    """One shard at work, with a store of its own, which commits when it likes."""

    def __init__(
        self,
        plan: Plan,
        partition: int,
        shard: int,
        shards: int,
        log: Records,
        base: Store | None,
        random: Random,
        skips: Skips,
    ) -> None:
        self.random, self.store, self.outputs = random, own_rows(base, shard, shards), list[Ordered]()
        cut = None if base is None else base.cut

        def source(name: str, start: int, stop: int) -> list[InputRecord]:
            return pick(log.get((name, partition), []), start, stop)

        settings = settings_of(random)
        self.task = OrderedShardTask(
            plan, partition, shard, shards, self.store, cut, lineage=LINEAGE, skips=skips, settings=settings
        )
        refill(self.task, source)
        self.replay = OrderedShardReplay(self.task, source)

    def run(self, tapes: list[bytes]) -> tape.Totals:
        for data in tapes:
            assert self.replay.take(tape.decode_tape(data))
            self.outputs += self.task.take_ordered()
            if self.random.random() < 0.5:
                self.task.defer_commit()
            else:
                self.commit()
        self.commit()
        return self.task.result()

    def commit(self) -> None:
        batch = self.task.commit_batch()
        self.store.write(batch.rows | batch.index_rows, batch.cut)
        self.task.committed()


def in_shards(
    plan: Plan,
    partition: int,
    tapes: list[bytes],
    log: Records,
    shards: int,
    random: Random,
    end: bytes,
    base: Store | None = None,
) -> Committed:
    """The task rebuilt in shards up to the cut ``end``, from nothing or from the state in a store."""
    cut = None if base is None else base.cut
    then = tape.Totals() if cut is None else tape.decode_cut(cut).totals
    totals = gained(then, tape.decode_cut(end).totals)
    overview = Overview(shards, LINEAGE, cut, end, totals, 0, totals.for_others)
    skips = failed_units(plan, map(tape.decode_tape, tapes))
    shards_ = [Shard(plan, partition, shard, shards, log, base, random, skips) for shard in range(shards)]
    counted = check(overview, [one.run(tapes) for one in shards_])
    state: dict[bytes, bytes | None] = {}
    for one in shards_:
        for row, value in one.store.scan(*ALL):
            assert row not in state or row[:1] == rows.KEEP, f"two shards have the row {row!r}"
            state[row] = value
    whole = Committed()
    whole.outputs = list(numbered(in_order(one.outputs for one in shards_), plan, partition, overview))
    whole.store.write(state, overview.cut_with(counted))
    return whole


def check_shards(seed: int, trace: list[str]) -> int:
    """From somewhere on the tape to somewhere else, in some shards; how often that could be done."""
    random = Random(seed)
    variant = variant_of(random, inputs=random.choice((1, 2)), messages=False)._replace(order="event-time")
    trace.append(str(variant))
    model = build(variant)
    log: Records = {}
    first = first_run(model, variant, random, log, trace, clock=False)
    done = 0
    for run in first.runs:
        plan, number, tapes = run.plan, run.partition, run.committed.tapes
        spans = [(0, len(tapes)), tuple(sorted(random.choices(range(len(tapes) + 1), k=2)))]
        for begin, stop in spans:
            if begin == stop:
                continue
            trace.append(f"commits {begin} to {stop} of {len(tapes)}")
            base, then, draining = between(plan, number, tapes, begin, stop, log)
            shards = random.choice((1, 2, 3, 7))
            try:
                again = in_shards(
                    plan, number, tapes[begin:stop], log, shards, random, then.store.cut or b"", base
                )
            except ReplayDivergedError as error:
                trace.append(f"unsplittable: {error}")
                assert draining, "a part drains to the end, and may meet a failure of a later commit there"
                continue
            except UnsplittableError as error:
                trace.append(f"unsplittable: {error}")
                refused = any(tape.decode_tape(one).totals.refused for one in tapes)
                assert draining or refused or fails_a_timer(tapes), (
                    "nothing else keeps a task from being split"
                )
                continue
            assert_same(then, again, f"{shards} shards")
            done += 1
    return done
