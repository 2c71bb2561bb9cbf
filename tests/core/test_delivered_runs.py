"""In canonical order with messages, taking several records at once, and passing watermarks on late, changes no byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.canonical import Canonical
from tailrace.core.engine.delivery import Delivery
from tailrace.core.engine.input_lane import PartitionHistory
from tailrace.core.engine.task import Task
from tailrace.core.records import Head, InputRecord, Output
from tailrace.core.values.partitioner import partition_of
from tailrace.state import MemoryStore
from tests.cast.webs import Result, oracle, pieces, records, web_of
from tests.proof.canonical_orders import given
from tests.proof.seeds import each

Inputs = dict[tuple[str, int], list[InputRecord]]


class Reached(NamedTuple):
    """The end of a history: outputs, rows and cuts by partition, and the records that the app has sent itself."""

    outputs: list[list[Output]]
    rows: list[list[tuple[bytes, bytes]]]
    cuts: list[bytes]
    sent: list[tuple[str, int, InputRecord]]


def reached(plan: Plan, pasts: list[PartitionHistory], *, finish: bool, window: int | None = None) -> Reached:
    """Run all tasks of an app through their histories."""
    stores = [MemoryStore() for _ in pasts]
    tasks = [Task(plan, number, store, lineage=b"l" * 16) for number, store in enumerate(stores)]
    found = Reached([[] for _ in pasts], [], [], [])
    order = Canonical(
        tasks,
        pasts,
        deliver=lambda name, number, record: found.sent.append((name, number, record)),
        finish=finish,
        window=window,
    )
    for _ in order.go():
        pass
    for number, (task, store) in enumerate(zip(tasks, stores, strict=True)):
        found.outputs[number] += order.outputs(number)
        batch = task.commit_batch()
        store.write(batch.rows | batch.index_rows, batch.cut)
        cut = tape.decode_cut(batch.cut)
        cut.identity = b""  # it has the digest of the tape, which tells in which portions records were taken
        found.rows.append(list(store.rows()))
        found.cuts.append(tape.encode(cut))
    return found


class EagerDelivery(Delivery):
    """One record at a time, after each of which every task gets every watermark."""

    def next(self) -> tuple[int, InputPlan, list[InputRecord]]:
        place, to, record = self.waiting.popleft()
        self._stale.add(place)
        return place, to, [record]

    def run_until_ms(self, one: InputPlan) -> int:
        return NO_WATERMARK

    def is_silent(self, task: Task, source: int, mark: int) -> bool:
        return False


def eagerly(monkeypatch: pytest.MonkeyPatch, *given: Any, **options: Any) -> Reached:
    with monkeypatch.context() as patched:
        patched.setattr("tailrace.core.engine.canonical.Delivery", EagerDelivery)
        return reached(*given, **options)


def assert_same(one: Reached, other: Reached) -> None:
    for number, (here, there) in enumerate(zip(one, other, strict=True)):
        assert here == there, Reached._fields[number]


class Tick(msgspec.Struct, frozen=True):
    key: str
    at: int


class Remind(msgspec.Struct, frozen=True):
    after: int


def reminding() -> tr.App:
    """A clock that asks for a reminder at its first tick."""
    app = tr.App("reminding", partitions=1)
    ticks = app.topic("ticks", Tick, key="key", event_time="at", out_of_order=0)
    said = app.topic("said", Tick, key="key", event_time="at")

    @app.actor
    class Clock(tr.Actor):
        count: int = 0

        @tr.process(ticks)
        def tick(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.count += 1
            ctx.emit(said, Tick("tick", event.at))
            if self.count == 1:
                ctx.send(Reminder, "a", Remind(50))

    @app.actor
    class Reminder(tr.Actor):
        n: int = 0

        @tr.on_message
        def asked(self, message: Remind, ctx: tr.Context[str]) -> None:
            self.n += 1
            ctx.set_timer(ctx.event_time + message.after)

        @tr.on_timer
        def remind(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Tick("remind", ctx.event_time))

    return app


def test_a_timer_of_a_receiver_fires_between_the_records_that_are_taken_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = [
        InputRecord(at // 10, 0, b"k", msgspec.json.encode(Tick("k", 1_000 + at))) for at in range(0, 100, 10)
    ]
    plan = reminding().plan()
    taken: list[int] = []
    run = Task.run

    def counted(task: Task, number: int, heads: Sequence[Head], start: int = 0) -> int:
        after = run(task, number, heads, start)
        taken.append(after - start)
        return after

    monkeypatch.setattr(Task, "run", counted)
    here = reached(plan, [_past(plan, {("ticks", 0): ticks}, 0, "ticks")], finish=False)
    said = [
        msgspec.json.decode(one.value or b"", type=Tick) for one in here.outputs[0] if one.topic == "said"
    ]
    # The watermark is 1 ms behind the newest tick, so the tick at 60 ms lets the timer of 50 ms fire.
    wanted = [Tick("tick", 1_000 + at) for at in range(0, 100, 10)]
    wanted.insert(7, Tick("remind", 1_050))
    assert said == wanted
    assert max(taken) > 2
    assert_same(
        here, eagerly(monkeypatch, plan, [_past(plan, {("ticks", 0): ticks}, 0, "ticks")], finish=False)
    )


@pytest.mark.one_seed_in(5)  # one takes 40 ms
def test_programs_with_messages_come_to_the_same_bytes(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(seed: int, trace: list[str]) -> None:
        random = Random(seed)
        app = given(random, trace, messages=True)
        pasts = [app.past(number, inbox=False) for number in range(app.plan.partitions)]
        finish = random.random() < 0.5
        plainly = eagerly(monkeypatch, app.plan, pasts, finish=finish)
        assert_same(reached(app.plan, pasts, finish=finish, window=random.choice((2, 10_000))), plainly)

    each(seeds, check)


@pytest.mark.one_seed_in(5)  # one takes 30 ms
@pytest.mark.parametrize("circles", [False, True])
def test_apps_of_several_steps_come_to_the_same_bytes_and_to_what_an_oracle_says(
    seeds: range, circles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered = 0

    def check(seed: int, trace: list[str]) -> None:
        nonlocal delivered
        random = Random(seed)
        web = web_of(random, circles=circles)
        trace += [str(node) for node in web.nodes]
        found = pieces(web, random)
        log: Inputs = {}
        still = random.random() < 0.7  # records with later timestamps are not taken together
        for one in records(web, found):
            some = log.setdefault((one.topic, partition_of(one.key or b"", web.partitions)), [])
            some.append(
                InputRecord(len(some), 0 if still else one.timestamp_ms, one.key, one.value, one.headers)
            )
        plan = web.app.plan()
        pasts = [_past(plan, log, number) for number in range(web.partitions)]
        here = reached(plan, pasts, finish=True)
        assert_same(here, eagerly(monkeypatch, plan, pasts, finish=True))
        delivered += len(here.sent)
        if not circles:
            emitted = [one for some in here.outputs for one in some if one.topic == "results"]
            results = Counter(msgspec.json.decode(one.value or b"", type=Result) for one in emitted)
            assert results == oracle(web, found)

    each(seeds, check)
    assert delivered > len(seeds)


def _past(plan: Plan, log: Inputs, number: int, first: str = "s") -> PartitionHistory:
    def source(name: str, start: int, stop: int) -> list[InputRecord]:
        return log.get((name, number), [])[start:stop]

    outside = [one.name for one in plan.inputs if one.name.startswith(first) and not one.is_inbox]
    return PartitionHistory(source, {name: len(log.get((name, number), ())) for name in outside})
