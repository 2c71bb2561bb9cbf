"""Apps of the cast on a real broker, by workers that take turns and die: what comes out is what their oracles say, and replays to the byte."""

from __future__ import annotations

import msgspec
import pytest

import tailrace as tr
from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.cast.apps import case_of
from tests.cast.member import Event, Found, Said
from tests.cast.world import decoded
from tests.runtime.bounded_run import BoundedRun
from tests.runtime.processes import wait_until
from tests.runtime.world import Kill


def written(log: KafkaLog, topic: str) -> list[Output]:
    """The records of a topic, by partition."""
    return [
        Output(topic, one.key, one.value, one.timestamp_ms, one.headers)
        for number in range(log.partitions(topic))
        for one in scan(log, topic, number)
    ]


@pytest.mark.parametrize("name", ["shop", "failing", "messages", "tables", "windows", "webs"])
def test_what_comes_out_is_what_the_oracle_says(log: KafkaLog, name: str) -> None:
    case = case_of(name, 7)
    app = case.make(3)
    settings = WorkerSettings(slice_records=50, partition=PartitionSettings(commit_interval_ms=20))
    run = BoundedRun(app, log, settings)
    for one in run.plan.inputs:
        if not one.is_inbox:
            log.create_topic(one.name, TopicSettings(3))
    log.append_all(case.inputs)
    operations = 0

    def strike(_: str) -> None:
        nonlocal operations
        operations += 1
        if operations in (3, 8, 13):
            raise Kill

    run.strike = strike
    run.run(2)
    assert run.deaths == 3
    found = Found()
    for topic in {*case.topics, run.plan.dead_letters_topic} & log.topics().keys():
        found.update(decoded(app, topic, written(log, topic)))
    assert found == case.expected
    report = replay(run.plan, log, ReplayOptions(compare=True, any_environment=True), live=run.live)
    assert (report.differences.count, list(report.differences.shown)) == (0, [])
    assert report.outputs


def test_a_partition_without_records_falls_idle_while_its_process_commits_for_others(log: KafkaLog) -> None:
    app, now_ms = tr.App("idling", partitions=3), 1_000_000
    events = app.topic("events", Event, idle_after="20s")
    said = app.topic("said", Said)

    @app.process(events, order="arrival")
    def tell(event: Event, ctx: tr.Context[str]) -> None:
        ctx.emit(said, Said(ctx.key, event.at, "told", event.n))

    plan, stores = app.plan(), [MemoryStore() for _ in range(3)]
    prepare_log(log, plan, create_declared=True)
    worker = Worker(
        plan, log, range(3), stores.__getitem__,
        settings=WorkerSettings(partition=PartitionSettings(commit_interval_ms=0)),
        clock=lambda: now_ms, reader=log.reader({}, live=True),
    )  # fmt: skip
    worker.start()

    def happen(*keys: str) -> None:
        log.append_all(
            Output("events", k.encode(), msgspec.json.encode(Event(k, now_ms, 1)), 1) for k in keys
        )

    def published(after_ms: int) -> list[int | None]:
        nonlocal now_ms
        now_ms += after_ms
        worker.turn()
        return list(log.publications().values())

    happen(*(f"k{n}" for n in range(12)))
    wait_until(lambda: published(10) == [999_999] * 3, "all tasks have published their watermarks")

    def idle() -> bool:
        happen("k1")
        for _ in range(4):
            published(500)
        # On a loaded machine the records come so late that their task falls idle, too, until they are there.
        running = [one for one in published(10) if one is not None]
        return len(running) == 1 and running[0] > 999_999

    wait_until(idle, "the tasks without records hold nobody back")
    worker.leave()
