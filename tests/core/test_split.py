"""A task split by key, where the random apps of the proof do not go: keyless records, other keys, odd
watermarks.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.canonical import Canonical
from tailrace.core.engine.input_lane import PartitionHistory
from tailrace.core.engine.key_split.chunks import shard_of
from tailrace.core.engine.key_split.first_pass import KeySplitPlan
from tailrace.core.engine.key_split.shard import check
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.errors import UnsplittableError
from tailrace.core.records import InputRecord
from tests.proof.first_runs import replayed
from tests.proof.runs import LINEAGE, Committed, Run
from tests.proof.seeds import Records, pick
from tests.proof.splitting import Shard, assert_same, passed, split


class Sale(msgspec.Struct, frozen=True):
    item: int
    at: int
    note: str = ""


class Said(msgspec.Struct, frozen=True):
    item: int
    what: str


def log_of(app: tr.App, topic: str, events: list[Any]) -> Records:
    """The records of one topic; bytes are taken as they are, and a key of the record goes along."""
    declared = app.topics[topic]
    values = [event if isinstance(event, bytes) else declared.encode(event) for event in events]
    return {
        (topic, 0): [
            InputRecord(at, at * 10, None if at % 3 else b"k%d" % (at % 5), value)
            for at, value in enumerate(values)
        ]
    }


class Life(Run):
    """A first run: causes one after the other, a commit where it is told."""

    def __init__(self, plan: Plan, log: Records) -> None:
        super().__init__(plan, 0, Committed(), TaskSettings())
        self.log = log

    def records(self, topic: str, count: int = 1 << 30) -> None:
        number = next(one.index for one in self.plan.inputs if one.name == topic)
        start = self.task.positions[topic]
        heads = self.task.decode(number, pick(self.log.get((topic, 0), []), start, start + count))
        taken = 0
        while taken < len(heads):
            taken = self.task.run(number, heads, taken)
            self.settle()

    def settle(self) -> None:
        while self.task.draining:
            self.task.drain()

    def split_alike(self, shards: int = 3) -> None:
        """Whether the shards come to what this run has come to; a replay does."""
        tapes = self.committed.tapes
        assert replayed(self.plan, 0, tapes, self.log, Random(1)).state() == self.committed.state()
        assert_same(
            self.committed, split(self.plan, 0, tapes, self.log, shards, Random(2)), f"{shards} shards"
        )


def test_records_without_a_key_and_stateless_handlers_are_split() -> None:
    app = tr.App("keyless", partitions=1, on_error="dead-letter")
    sales = app.topic("sales", Sale, event_time="at")
    said = app.topic("said", Said, key="item")

    @app.process(sales)
    def heard(event: Sale, ctx: tr.Context[bytes | None]) -> None:
        ctx.emit(said, Said(event.item, f"{ctx.key!r} {ctx.is_late} {ctx.uuid()}"))
        if event.item == 7:
            raise ValueError("no sevens")

    events: list[Any] = [Sale(item % 9, 1_000 + item * 37 % 50) for item in range(60)]
    events[5] = b"{"
    life = Life(app.plan(), log_of(app, "sales", events))
    life.records("sales")
    life.commit()
    assert len(life.committed.outputs) == 60
    life.split_alike()


def test_a_repartitioned_input_and_what_it_forwards_are_split() -> None:
    app = tr.App("moved", partitions=1)
    sales = app.topic("sales", Sale, key="item", event_time="at", repartition=True)

    @app.actor
    class Item(tr.Actor):
        sold: int = 0

        @tr.process(sales)
        def take(self, event: Sale, ctx: tr.Context[int]) -> None:
            self.sold += 1

    plan = app.plan()
    log = log_of(app, "sales", [Sale(item % 9, 1_000 + item) for item in range(40)])
    life = Life(plan, log)
    life.records("sales")
    inner = next(one.name for one in plan.inputs if one.name != "sales")
    forwarded = [out for out in life.commit() if out.topic == inner]
    assert len(forwarded) == 40
    log[inner, 0] = [
        InputRecord(at, out.timestamp_ms, out.key, out.value) for at, out in enumerate(forwarded)
    ]
    life.records(inner)
    life.commit()
    life.split_alike()


def alarms() -> tuple[tr.App, tr.Topic[Sale, int]]:
    """Timers that set others, before and behind them, and most of them speak."""
    app = tr.App("alarms", partitions=1)
    sales = app.topic("sales", Sale, key="item", event_time="at")
    said = app.topic("said", Said, key="item")

    @app.actor
    class Item(tr.Actor):
        left: int = 3

        @tr.process(sales)
        def take(self, event: Sale, ctx: tr.Context[int]) -> None:
            ctx.set_timer(2_000 + event.item % 7, name=event.note)
            ctx.set_processing_timer(5_000)

        @tr.on_timer("a")
        def backwards(self, ctx: tr.Context[int]) -> None:
            if self.left % 2 == 0:  # what says nothing has its place in the order as well
                ctx.emit(said, Said(ctx.key, f"a {ctx.event_time} {ctx.watermark} {ctx.now}"))
            if self.left:
                self.left -= 1
                ctx.set_timer(ctx.event_time - 100 * (ctx.key % 3) - 1, name="a")
                ctx.set_timer(ctx.event_time + 50 * (ctx.key % 4), name="b")

        @tr.on_timer("b")
        def forwards(self, ctx: tr.Context[int]) -> None:
            ctx.emit(said, Said(ctx.key, f"b {ctx.event_time} {ctx.watermark} {ctx.now}"))

        @tr.on_processing_timer
        def rings(self, ctx: tr.Context[int]) -> None:
            ctx.emit(said, Said(ctx.key, f"c {ctx.event_time} {ctx.watermark} {ctx.now}"))
            ctx.set_timer(ctx.event_time - 5_000, name="b")

    return app, sales


@pytest.mark.parametrize("shards", [1, 2, 8])
def test_one_drain_of_all_shards_is_merged_in_the_order_of_the_whole(shards: int) -> None:
    app, _ = alarms()
    events: list[Any] = [Sale(item, 1_000, "a" if item % 5 else "b") for item in range(40)]
    life = Life(app.plan(), log_of(app, "sales", [*events, Sale(99, 9_000, "b")]))
    life.records("sales")
    life.task.clock(6_000)
    life.settle()
    life.commit()
    assert len(life.committed.outputs) > 150
    life.split_alike(shards)


def test_the_watermark_at_the_end_of_all_input_is_that_of_the_tape() -> None:
    app, _ = alarms()
    life = Life(app.plan(), log_of(app, "sales", [Sale(item, 1_000 + item, "a") for item in range(20)]))
    life.records("sales")
    life.commit()
    life.task.ended(0)
    life.task.finish(0)
    life.settle()
    life.commit()
    assert life.task.watermark == 2_006
    life.split_alike()


def test_a_commit_that_goes_on_after_the_end_of_all_input_is_split_alike() -> None:
    app, _ = alarms()
    life = Life(app.plan(), log_of(app, "sales", [Sale(item, 1_000 + item, "b") for item in range(20)]))
    life.records("sales", 10)
    life.task.finish(0)
    life.settle()
    life.records("sales")
    life.commit()
    life.split_alike()


class Named(msgspec.Struct, frozen=True):
    name: str
    at: int


def test_keys_that_no_instance_can_have_are_dealt_to_somebody() -> None:
    app = tr.App("named", partitions=1, on_error="dead-letter")
    names = app.topic(
        "names", Named, key=lambda event: event.name.replace("x", "\ud800"), key_type=str, event_time="at"
    )

    @app.actor
    class Name(tr.Actor):
        n: int = 0

        @tr.process(names)
        def take(self, event: Named, ctx: tr.Context[str]) -> None:
            self.n += 1

    values: list[Any] = [Named("ab"[at % 2], 1_000 + at) for at in range(20)]
    values[3] = Named("x", 1_004)
    life = Life(app.plan(), log_of(app, "names", values))
    life.records("names")
    life.commit()
    assert [dict(one.headers)["tailrace-reason"] for one in life.committed.outputs] == [b"handler-failed"]
    life.split_alike()


def test_a_shard_keeps_nothing_but_its_state_however_long_it_runs() -> None:
    app = tr.App("metered", partitions=1)
    sales = app.topic("sales", Sale, key="item", event_time="at")

    @app.actor
    class Item(tr.Actor):
        n: int = 0

        @tr.process(sales)
        def take(self, event: Sale, ctx: tr.Context[int]) -> None:
            self.n += 1
            ctx.metrics.count("sold")

    life = Life(app.plan(), log_of(app, "sales", [Sale(at % 3, 1_000 + at) for at in range(50)]))
    life.records("sales")
    life.commit()
    chunks, overview = passed(life.plan, 0, life.committed.tapes, life.log, 1, Random(1), None)
    shard = Shard(life.plan, 0, 0, overview, None, Random(1))
    for chunk in chunks:
        assert shard.task.take(chunk.series, chunk.shards[0]) == []
        assert shard.task.commit_batch().measurements == []
    assert shard.task.dirty_count == 3
    assert shard.task.result().records == 50


def test_totals_that_do_not_add_up_are_noticed() -> None:
    app, _ = alarms()
    life = Life(app.plan(), log_of(app, "sales", [Sale(item, 1_000, "b") for item in range(20)]))
    life.records("sales")
    life.commit()
    chunks, overview = passed(life.plan, 0, life.committed.tapes, life.log, 3, Random(1), None)
    results = [Shard(life.plan, 0, shard, overview, None, Random(1)).run(chunks) for shard in range(3)]
    assert check(overview, results) == overview.totals
    with pytest.raises(UnsplittableError, match="records: 20 on the tape"):
        check(overview, results[:2])


def test_a_first_pass_without_a_tape_does_not_guess_the_end_of_all_input() -> None:
    app, _ = alarms()
    log = log_of(app, "sales", [Sale(1, 1_000, "a")])
    past = PartitionHistory(lambda name, start, stop: pick(log[name, 0], start, stop), {"sales": 1})
    passing = KeySplitPlan(app.plan(), 0, 2, lineage=LINEAGE)
    with pytest.raises(UnsplittableError, match="latest pending timer"):
        for _ in Canonical([passing], [past], finish=True).go():
            pass


def test_the_shard_of_a_key_is_the_same_in_every_version() -> None:
    keys = [b"", b"a", b"key-1", bytes(8), "ünïcode".encode()]
    assert [shard_of(key, 1_000) for key in keys] == [886, 672, 202, 523, 313]
