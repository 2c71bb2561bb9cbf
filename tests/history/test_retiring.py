"""An app that will not come again holds its readers back no longer; one that comes again all the same publishes again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import tailrace as tr
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.errors import FencedError, TaskOwnedError, UnknownAppError
from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.retirement import RetiredTopic, publishers_of, retire
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.log.embedded.owning import owning

AT_ONCE = PartitionSettings(commit_interval_ms=0)


class Step(msgspec.Struct, frozen=True):
    key: str
    at: int


class Told(msgspec.Struct, frozen=True):
    at: int


def writing(name: str, inputs: str = "steps") -> tr.App:
    """Two tasks, which write what they read to ``middle``, and send each other messages."""
    app = tr.App(name, partitions=2)
    steps = app.topic(inputs, Step, key="key", event_time="at")
    middle = app.topic("middle", Step, key="key", event_time="at")

    @app.actor
    class Receiver(tr.Actor):
        told_at: int = 0

        @tr.on_message
        def told(self, message: Told, ctx: tr.Context[str]) -> None:
            self.told_at = message.at

    @app.process(steps)
    def forward(event: Step, ctx: tr.Context[str]) -> None:
        ctx.emit(middle, event)
        ctx.send(Receiver, event.key, Told(event.at))

    return app


def reading() -> tr.App:
    app = tr.App("reader", partitions=2)
    middle = app.topic("middle", Step, key="key", event_time="at", watermark="upstream")

    @app.actor
    class Seen(tr.Actor):
        steps: int = 0

        @tr.process(middle)
        def step(self, event: Step, ctx: tr.Context[str]) -> None:
            self.steps += 1

    return app


class Machine:
    """A log on disk, tasks over it, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.log = EmbeddedLog(folder / "log")
        self.now = 1_000

    def start(self, app: tr.App, number: int, store: MemoryStore | None = None) -> Partition:
        plan = app.plan()
        prepare_topics(self.log, plan, create_declared=True)
        partition = Partition(
            plan,
            number,
            self.log,
            store or MemoryStore(),
            lambda: self.now,
            lineage=b"lineage",
            settings=AT_ONCE,
        )
        partition.restore()
        settle(partition)
        return partition

    def steps(self, number: int, *times: int, topic: str = "steps") -> None:
        events = [Output(topic, b"k", msgspec.json.encode(Step("k", at)), at) for at in times]
        self.log.append_all(events, number)

    def live(self, app: tr.App, times: dict[int, int], topic: str = "steps") -> list[MemoryStore]:
        """All tasks of an app take one event each, by their numbers, and leave; their stores."""
        stores = [MemoryStore(), MemoryStore()]
        running = [self.start(app, number, store) for number, store in enumerate(stores)]
        for number, at in times.items():
            self.steps(number, at, topic=topic)
            settle(running[number])
        for one in running:
            one.close()
        return stores


def settle(*partitions: Partition) -> None:
    for partition in partitions:
        while partition.poll():
            pass


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    found.log.close()


def test_a_retired_app_leaves_its_readers_at_its_last_watermark(machine: Machine) -> None:
    machine.live(writing("old"), {0: 1_000, 1: 5_000})
    reader = machine.start(reading(), 0)
    assert reader.task.watermark == 999
    messages = ("old.inbox#Receiver", "old-0")
    before = machine.log.publications()[messages]
    done = retire(machine.log, "old")
    assert done.publishers == ["old-0", "old-1"]
    assert done.topics == [RetiredTopic("middle", 2, 999, 4_999)]
    assert retire(machine.log, "old") == ("old", [], []), "a second time, it does nothing"
    assert machine.log.publications()[messages] == before == 999
    settle(reader)
    assert reader.task.watermark == 4_999
    assert reader.task.watermarks.idle == [True]
    reader.close()


def test_readers_go_by_the_app_that_has_taken_its_place(machine: Machine) -> None:
    machine.live(writing("old"), {0: 1_000, 1: 5_000})
    new = machine.live(writing("new", "others"), {0: 8_000, 1: 9_000}, topic="others")
    reader = machine.start(reading(), 0)
    assert reader.task.watermark == 999
    retire(machine.log, "old")
    settle(reader)
    assert reader.task.watermark == 7_999
    again = machine.start(writing("new", "others"), 0, new[0])
    machine.steps(0, 9_500, topic="others")
    settle(again, reader)
    assert reader.task.watermark == 8_999
    again.close()
    reader.close()


def test_a_task_that_has_never_published_is_retired_with_the_others(machine: Machine) -> None:
    machine.live(writing("old"), {0: 1_000})
    assert set(publishers_of(machine.log)["old"]) == {0}
    reader = machine.start(reading(), 0)
    assert reader.task.watermark == NO_WATERMARK
    assert retire(machine.log, "old").publishers == ["old-0", "old-1"]
    settle(reader)
    assert reader.task.watermark == 999
    reader.close()


def test_a_retired_app_that_is_started_again_publishes_again(machine: Machine) -> None:
    stores = machine.live(writing("old"), {0: 1_000, 1: 5_000})
    retire(machine.log, "old")
    worker = Worker(
        writing("old").plan(),
        machine.log,
        range(2),
        lambda number: stores[number],
        settings=WorkerSettings(partition=AT_ONCE),
        clock=lambda: machine.now,
    )
    worker.start()
    # Before one of them reads what the others have published.
    assert publishers_of(machine.log)["old"] == {0: {"middle": 999}, 1: {"middle": 4_999}}
    reader = machine.start(reading(), 0)
    assert reader.task.watermark == 999
    worker.leave()
    reader.close()


def test_a_task_that_was_retired_before_its_first_commit_holds_its_readers_when_it_comes(
    machine: Machine,
) -> None:
    machine.live(writing("old"), {0: 1_000})
    retire(machine.log, "old")
    task = machine.start(writing("old"), 1)
    assert publishers_of(machine.log)["old"][1] == {"middle": NO_WATERMARK}
    reader = machine.start(reading(), 0)
    assert reader.task.watermark == NO_WATERMARK
    machine.steps(1, 3_000)
    settle(task, reader)
    assert reader.task.watermark == 2_999
    task.close()
    reader.close()


def test_an_app_that_runs_is_not_retired_and_goes_on(machine: Machine) -> None:
    machine.live(writing("old"), {0: 1_000})
    owner = owning(machine.log.path, "old", [1])
    with pytest.raises(TaskOwnedError, match=r"'old' runs.*old/1 is owned.*Stop it first"):
        retire(machine.log, "old")
    assert publishers_of(machine.log)["old"] == {0: {"middle": 999}}
    owner.close()
    assert retire(machine.log, "old").publishers == ["old-0", "old-1"]


def test_whoever_has_the_task_without_owning_it_is_fenced(machine: Machine) -> None:
    task = machine.start(writing("old"), 0)
    machine.steps(0, 1_000)
    settle(task)
    retire(machine.log, "old")
    machine.steps(0, 2_000)
    with pytest.raises(FencedError):
        settle(task)


def test_an_app_that_has_published_nothing_is_refused_with_the_names_of_those_that_have(
    machine: Machine,
) -> None:
    with pytest.raises(UnknownAppError, match="Nobody has: look at the path of the log"):
        retire(machine.log, "old")
    machine.live(writing("old"), {0: 1_000})
    with pytest.raises(UnknownAppError, match=r"no app 'odl'.*Did you mean 'old'\?.*published by 'old'\."):
        retire(machine.log, "odl")
    with pytest.raises(UnknownAppError, match="no app 'reader'"):
        retire(machine.log, "reader")
