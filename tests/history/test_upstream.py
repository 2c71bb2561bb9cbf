"""Watermarks between services: published with commits, applied where they hold, never ahead of what was written."""

from __future__ import annotations

import msgspec

import tailrace as tr
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Replay
from tailrace.core.engine.task import Task
from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings
from tailrace.state import MemoryStore
from tailrace.testing import MemoryLog


class Step(msgspec.Struct, frozen=True):
    key: str
    at: int


class Alarm(msgspec.Struct, frozen=True):
    key: str
    at: int


def first_app(partitions: int = 1) -> tr.App:
    app = tr.App("first", partitions=partitions)
    steps = app.topic("steps", Step, key="key", event_time="at", out_of_order=10)
    middle = app.topic("middle", Step, key="key", event_time="at", out_of_order=100)

    @app.process(steps)
    def forward(event: Step, ctx: tr.Context) -> None:
        ctx.emit(middle, event)

    return app


def second_app(partitions: int = 1) -> tr.App:
    app = tr.App("second", partitions=partitions)
    middle = app.topic("middle", Step, key="key", event_time="at", watermark="upstream")
    alarms = app.topic("alarms", Alarm, key="key")

    @app.actor
    class Waiting(tr.Actor):
        steps: int = 0

        @tr.process(middle)
        def step(self, event: Step, ctx: tr.Context) -> None:
            self.steps += 1
            ctx.set_timer(event.at + 50, "alarm")

        @tr.on_timer("alarm")
        def alarm(self, ctx: tr.Context) -> None:
            ctx.emit(alarms, Alarm(ctx.key, ctx.event_time))

    return app


class Chain:
    """Two services on one log, each of one partition, and a clock."""

    def __init__(self) -> None:
        self.now = 1_000
        self.log = MemoryLog()
        self.first, self.second = self.start(first_app()), self.start(second_app())

    def start(self, app: tr.App) -> Partition:
        plan = app.plan()
        prepare_topics(self.log, plan, create_declared=True)
        partition = Partition(
            plan,
            0,
            self.log,
            MemoryStore(),
            lambda: self.now,
            lineage=b"chain",
            settings=PartitionSettings(commit_interval_ms=0),
        )
        partition.restore()
        return partition

    def steps(self, *times: int) -> None:
        writer = self.log.writer("outside")
        writer.append([Output("steps", b"k", msgspec.json.encode(Step("k", at)), at) for at in times])
        writer.commit()

    def settle(self, *partitions: Partition) -> None:
        for partition in partitions or (self.first, self.second):
            while partition.poll():
                pass

    def alarms(self) -> list[int]:
        return [msgspec.json.decode(record.value or b"", type=Alarm).at for record in self.log.read("alarms")]


def test_the_watermark_of_a_topic_is_its_producers_less_the_topics_disorder() -> None:
    chain = Chain()
    chain.steps(1_000)
    chain.settle()
    assert chain.first.task.watermark == 1_000 - 10 - 1
    assert chain.second.task.watermark == 1_000 - 10 - 1 - 100
    chain.steps(2_000)
    chain.settle()
    assert chain.second.task.watermark == 2_000 - 10 - 1 - 100


def test_a_publication_is_applied_only_after_what_was_written_before_it() -> None:
    chain = Chain()
    chain.steps(1_000)
    chain.settle(chain.first)
    chain.steps(5_000)
    chain.settle(chain.first)
    assert chain.second.task.watermark == NO_WATERMARK
    chain.settle(chain.second)
    assert chain.second.task.totals.late == 0
    assert chain.second.task.watermark == 5_000 - 111
    assert chain.alarms() == []  # the second step has moved the timer before event time came to it


def test_a_task_that_has_not_committed_yet_holds_everybody_back_if_its_app_is_known() -> None:
    log, now = MemoryLog(), 1_000

    def started(app: tr.App, number: int) -> Partition:
        plan = app.plan()
        prepare_topics(log, plan, create_declared=True)
        settings = PartitionSettings(commit_interval_ms=0)
        partition = Partition(plan, number, log, MemoryStore(), lambda: now, lineage=b"", settings=settings)
        partition.restore()
        return partition

    def settle(*partitions: Partition) -> None:
        for partition in partitions:
            while partition.poll():
                pass

    first = [started(first_app(partitions=3), number) for number in range(3)]
    second = started(second_app(partitions=3), 0)
    for number in (0, 1):
        writer = log.writer("outside")
        key = b"k%d" % number
        writer.append([Output("steps", key, msgspec.json.encode(Step(key.decode(), 1_000)), 1_000)], number)
        writer.commit()
    settle(first[0], second)
    settle(first[1], second)
    assert second.task.watermark == NO_WATERMARK
    # The third has nothing to read, and says so when it falls idle.
    settle(first[2])
    now += 60_000
    settle(first[2], second)
    assert second.task.watermark == 1_000 - 111


def test_a_restarted_reader_is_told_what_holds_where_it_stands() -> None:
    chain = Chain()
    chain.steps(1_000)
    chain.settle(chain.first)
    chain.second.close()
    chain.second = chain.start(second_app())
    chain.settle(chain.second)
    assert chain.second.task.watermark == 1_000 - 111


def test_a_producer_all_of_whose_inputs_are_idle_holds_nobody_back() -> None:
    chain = Chain()
    app = tr.App("other", partitions=1)
    other_steps = app.topic("other-steps", Step, key="key", event_time="at", idle_after="1s")
    middle = app.topic("middle", Step, key="key", event_time="at", out_of_order=100)

    @app.process(other_steps)
    def forward(event: Step, ctx: tr.Context) -> None:
        ctx.emit(middle, event)

    other = chain.start(app)
    writer = chain.log.writer("outside")
    writer.append([Output("other-steps", b"k", msgspec.json.encode(Step("k", 500)), 500)])
    writer.commit()
    chain.steps(1_000)
    chain.settle(other, chain.first, chain.second)
    assert chain.second.task.watermark == 500 - 1 - 100
    chain.settle(other)
    chain.now += 1_000
    chain.settle(other, chain.second)
    assert other.task.published_ms(0) is None
    assert chain.second.task.watermark == 1_000 - 111


def test_a_reader_that_comes_when_its_producers_are_idle_stands_at_their_last_watermark() -> None:
    chain = Chain()
    chain.steps(1_000)
    chain.settle(chain.first)
    chain.now += 60_000
    chain.settle(chain.first)
    assert set(chain.log.publications().values()) == {None}
    chain.settle(chain.second)
    assert chain.second.task.watermark == 1_000 - 111


def test_a_replay_applies_the_same_watermarks_in_the_same_places() -> None:
    chain = Chain()
    for at in (1_000, 1_200, 900, 3_000, 2_950, 7_000):
        chain.steps(at)
        chain.settle()
    plan = chain.second.plan
    again = Task(plan, 0, MemoryStore(), lineage=b"chain", replaying=True)
    records = {topic: chain.log.read(topic) for topic in ("middle",)}
    replay = Replay(
        again, lambda name, start, stop: [one for one in records[name] if start <= one.offset < stop]
    )
    for record in chain.log.read("second.tape"):
        replay.take(tape.decode_tape(record.value or b""))
        again.take_outputs()
        again.commit_batch()
        again.committed()
    assert again.watermark == chain.second.task.watermark
    assert again.totals == chain.second.task.totals
    assert chain.alarms()
