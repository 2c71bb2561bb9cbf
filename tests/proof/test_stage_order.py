"""The order of a stage depends on the records alone: not on how they are read, or on commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import pytest

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.input_lane import PartitionHistory, Stand
from tailrace.core.engine.merge import Merge
from tailrace.core.engine.stage_order import StageOrder
from tailrace.core.engine.task import Task
from tailrace.core.records import Head, InputRecord, Refused
from tailrace.core.values.partitioner import partition_of
from tailrace.state import MemoryStore
from tests.proof.apps import Variant, build
from tests.proof.runs import LINEAGE, SIZES, Committed, assert_equal, replayed
from tests.proof.seeds import START_MS, Feed, Records, append, each, pick, settings_of, variant_of


class Given(NamedTuple):
    """An app and its history: records, and the watermarks that were published along with them."""

    variant: Variant
    plan: Plan
    log: Records
    upstream: dict[tuple[str, int], list[tuple[int, int]]]

    def past(self, partition: int, *, inbox: bool) -> PartitionHistory:
        def source(name: str, start: int, stop: int) -> list[InputRecord]:
            return pick(self.log.get((name, partition), []), start, stop)

        ends = {one.name: end_of(self.log, one.name, partition) for one in self.plan.inputs}
        if not inbox:
            del ends[self.plan.inbox_topic]
        return PartitionHistory(
            source, ends, {n: marks for (n, p), marks in self.upstream.items() if p == partition}
        )


def end_of(log: Records, name: str, partition: int) -> int:
    records = log.get((name, partition), [])
    return records[-1].offset + 2 if records else 0  # behind it, a marker


def given(random: Random, trace: list[str], *, messages: bool | None = None) -> Given:
    variant = variant_of(random, messages=messages)
    trace.append(str(variant))
    model = build(variant)
    log: Records = {}
    Feed(model, variant, random, most=random.choice(SIZES)).fill(log)
    for records in log.values():
        late = random.choice((0, 5, 5_000))  # timestamps are not event times
        records[:] = [
            record._replace(timestamp_ms=record.timestamp_ms + random.randint(-late, late) + late)
            for record in records
        ]
    plan = model.app.plan()
    upstream: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for one in plan.inputs:
        for partition in range(plan.partitions):
            if one.watermark == "upstream":
                offsets = sorted(random.randint(0, end_of(log, one.name, partition)) for _ in range(5))
                mark = START_MS
                for offset in offsets:
                    mark += random.choice((0, 300, 5_000))
                    upstream.setdefault((one.name, partition), []).append((offset, mark))
    return Given(variant, plan, log, upstream)


def driven(plan: Plan, partition: int, past: PartitionHistory, random: Random, **options: Any) -> Committed:
    """A task through its past, with commits where it likes."""
    one = Committed()
    task = Task(plan, partition, one.store, lineage=LINEAGE, settings=settings_of(random))
    order = StageOrder(task, past, **options)
    odds = random.choice((0.0, 0.1, 0.7, 0.9))

    def commit() -> None:
        one.outputs += task.take_outputs()
        batch = task.commit_batch()
        one.store.write(batch.rows | batch.index_rows, batch.cut)
        one.tapes.append(batch.tape)
        one.measurements += batch.measurements
        task.committed()

    for _ in order.go():
        if random.random() < odds:
            commit()
    commit()
    return one


def check_partition(seed: int, trace: list[str]) -> None:
    """The same whatever the window, at its end and at a cut, and the same along its own tape."""
    random = Random(seed)
    app = given(random, trace)
    plan, finish = app.plan, random.random() < 0.3
    if plan.has_messages:
        record_messages(app, random)
    for partition in range(plan.partitions):
        past = app.past(partition, inbox=True)
        first, again = (
            driven(plan, partition, past, random, finish=finish, window=random.choice(windows))
            for windows in ((1, 3, 10_000), (1, 7, 40))
        )
        assert_equal(first, again, "read in other portions")
        assert_equal(first, replayed(plan, partition, first.tapes, app.log, random), "along its own tape")
        drawn = {one.index: START_MS + random.randint(0, 100_000) for one in plan.operators}
        marks = {one.index: drawn[min(one.together)] for one in plan.operators}  # as in every cut
        cut = replace(past, stand=Stand(marks, START_MS + random.randint(0, 100_000)))
        first, again = (
            driven(plan, partition, cut, random, window=random.choice(windows))
            for windows in ((1, 3, 10_000), (1, 7, 40))
        )
        assert_equal(first, again, "read in other portions, to a cut")


def record_messages(app: Given, random: Random) -> None:
    """An inbox as some first run has left it."""
    plan = app.plan
    for partition in range(plan.partitions):
        task = Task(plan, partition, MemoryStore(), lineage=LINEAGE)
        for _ in StageOrder(task, app.past(partition, inbox=False)).go():
            pass
        for output in task.take_outputs():
            if output.topic == plan.inbox_topic and random.random() < 0.9:
                place = partition_of(output.key or b"", plan.partitions)
                append(app.log, output.topic, place, output.key, output.value, output.timestamp_ms)


class Order(Task):
    """Notes what it is given."""

    def __init__(self, plan: Plan, partition: int) -> None:
        super().__init__(plan, partition, MemoryStore(), lineage=LINEAGE)
        self.order: list[tuple[int, int]] = []

    def run(self, number: int, heads: Sequence[Head], start: int = 0) -> int:
        self.order += [(number, head[0]) for head in heads[start:]]
        return super().run(number, heads, start)


def check_order(seed: int, trace: list[str]) -> None:
    """The order is that of the live merge with everything offered at once."""
    random = Random(seed)
    app = given(random, trace, messages=False)
    for partition in range(app.plan.partitions):
        past, task = app.past(partition, inbox=False), Order(app.plan, partition)
        events = [one for one in app.plan.inputs if one.watermark != "none"]
        past = replace(past, ends={one.name: past.ends[one.name] for one in events if not one.is_inbox})
        for _ in StageOrder(task, past, window=random.choice((1, 4, 100))).go():
            pass
        merge = Merge(tuple(replace(one, watermark="events") for one in app.plan.inputs))
        for one in events:
            heads = task.decode(one.index, app.log.get((one.name, partition), []))
            merge.offer(one.index, [standing(head) for head in heads])
        expected: list[tuple[int, int]] = []
        while (run := merge.next_run()) is not None:
            expected += [(run[0], head[0]) for head in run[1]]
        assert task.order == expected


def standing(head: Head) -> Head:
    """An event without a time of its own stands where its record does."""
    offset, time_ms, key, event, record = head
    assert record is not None
    return (
        offset,
        record.timestamp_ms if time_ms is None and type(event) is not Refused else time_ms,
        key,
        event,
        record,
    )


@pytest.mark.one_seed_in(5)  # one takes 40 ms
def test_one_partition_comes_to_the_same_bytes_however_it_is_read_and_along_its_own_tape(
    seeds: range,
) -> None:
    each(seeds, check_partition)


@pytest.mark.one_seed_in(5)  # one takes 15 ms
def test_the_order_is_that_of_the_live_merge_with_everything_at_hand(seeds: range) -> None:
    each(seeds, check_order)
