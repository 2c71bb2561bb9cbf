"""Watermarks between services, also of an app that will not come again: it holds its readers back no longer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import tailrace as tr
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.task import Task
from tailrace.core.errors import FencedError, TaskOwnedError, UnknownAppError
from tailrace.core.records import Output
from tailrace.history.retirement import RetiredTopic, publishers_of, retire
from tailrace.log.embedded import EmbeddedLog
from tests.log.embedded.owning import owning
from tests.runtime.joining import Service, Step


def first_app() -> tr.App:
    app = tr.App("first", partitions=1)
    steps = app.topic("steps", Step, key="key", event_time="at", out_of_order=10)
    middle = app.topic("middle", Step, key="key", event_time="at", out_of_order=100)

    @app.process(steps)
    def forward(event: Step, ctx: tr.Context) -> None:
        ctx.emit(middle, event)

    return app


def watermark(service: Service) -> int:
    """Where its first task stands."""
    return task_of(service).watermark


def task_of(service: Service) -> Task:
    partition = service.worker.slots[0].partition
    assert partition is not None
    return partition.task


@pytest.fixture
def chain() -> Iterator[tuple[Service, Service]]:
    """Two services on one log."""
    first = Service(first_app())
    second = Service(reading(1), first.log)
    yield first, second
    first.worker.leave()
    second.worker.leave()


def test_the_watermark_of_a_topic_is_its_producers_less_the_topics_disorder(
    chain: tuple[Service, Service],
) -> None:
    first, second = chain
    for at in (1_000, 2_000):
        first.run("steps", at)
        second.settle()
        assert watermark(first) == at - 10 - 1
        assert watermark(second) == at - 10 - 1 - 100


def test_a_publication_is_applied_only_after_what_was_written_before_it(
    chain: tuple[Service, Service],
) -> None:
    first, second = chain
    for at in (1_000, 5_000):
        first.run("steps", at)
    assert watermark(second) == NO_WATERMARK
    second.settle()
    assert watermark(second) == 5_000 - 111
    assert task_of(second).totals.late == 0


def test_a_reader_that_comes_when_its_producers_are_idle_stands_at_their_last_watermark(
    chain: tuple[Service, Service],
) -> None:
    first, second = chain
    first.run("steps", 1_000)
    first.run("steps", after_ms=60_000)
    assert set(first.log.publications().values()) == {None}
    second.settle()
    assert watermark(second) == 1_000 - 111


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


def reading(partitions: int = 2) -> tr.App:
    app = tr.App("reader", partitions=partitions)
    middle = app.topic("middle", Step, key="key", event_time="at", watermark="upstream")

    @app.actor
    class Seen(tr.Actor):
        steps: int = 0

        @tr.process(middle)
        def step(self, event: Step, ctx: tr.Context[str]) -> None:
            self.steps += 1

    return app


class Machine:
    """A log on disk, and services of two tasks over it."""

    def __init__(self, folder: Path) -> None:
        self.log = EmbeddedLog(folder / "log")

    def steps(self, number: int, *times: int, topic: str = "steps") -> None:
        events = [Output(topic, b"k", msgspec.json.encode(Step("k", at)), at) for at in times]
        self.log.append_all(events, number)

    def live(self, app: tr.App, times: dict[int, int], topic: str = "steps") -> None:
        """The tasks of an app take one event each, by their numbers, and leave."""
        service = Service(app, self.log)
        for number, at in times.items():
            self.steps(number, at, topic=topic)
            service.settle()
        service.worker.leave()

    def reader(self) -> Service:
        found = Service(reading(), self.log)
        found.settle()
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    found.log.close()


def test_a_retired_app_leaves_its_readers_at_its_last_watermark(machine: Machine) -> None:
    machine.live(writing("old"), {0: 1_000, 1: 5_000})
    reader = machine.reader()
    assert watermark(reader) == 999
    messages = ("old.inbox#Receiver", "old-0")
    before = machine.log.publications()[messages]
    done = retire(machine.log, "old")
    assert done.publishers == ["old-0", "old-1"]
    assert done.topics == [RetiredTopic("middle", 2, 999, 4_999)]
    assert retire(machine.log, "old") == ("old", [], []), "a second time, it does nothing"
    assert machine.log.publications()[messages] == before == 999
    reader.settle()
    assert watermark(reader) == 4_999
    assert task_of(reader).watermarks.idle == [True, False]
    reader.worker.leave()


def test_readers_go_by_the_app_that_has_taken_its_place(machine: Machine) -> None:
    machine.live(writing("old"), {0: 1_000, 1: 5_000})
    machine.live(writing("new", "others"), {0: 8_000, 1: 9_000}, topic="others")
    reader = machine.reader()
    assert watermark(reader) == 999
    retire(machine.log, "old")
    reader.settle()
    assert watermark(reader) == 7_999
    machine.live(writing("new", "others"), {0: 9_500}, topic="others")
    reader.settle()
    assert watermark(reader) == 8_999
    reader.worker.leave()


def test_a_retired_app_that_is_started_again_publishes_again(machine: Machine) -> None:
    machine.live(writing("old"), {0: 1_000, 1: 5_000})
    retire(machine.log, "old")
    again = Service(writing("old"), machine.log)
    # Before one of them reads what the others have published.
    assert publishers_of(machine.log)["old"] == {0: {"middle": 999}, 1: {"middle": 4_999}}
    reader = machine.reader()
    assert watermark(reader) == 999
    again.worker.leave()
    reader.worker.leave()


def test_a_task_that_has_never_published_is_retired_with_the_others(machine: Machine) -> None:
    machine.live(writing("old"), {0: 1_000})
    assert set(publishers_of(machine.log)["old"]) == {0}
    reader = machine.reader()
    assert watermark(reader) == NO_WATERMARK
    assert retire(machine.log, "old").publishers == ["old-0", "old-1"]
    reader.settle()
    assert watermark(reader) == 999
    reader.worker.leave()


def test_a_task_that_was_retired_before_its_first_commit_holds_its_readers_when_it_comes(
    machine: Machine,
) -> None:
    machine.live(writing("old"), {0: 1_000})
    retire(machine.log, "old")
    again = Service(writing("old"), machine.log)
    assert publishers_of(machine.log)["old"][1] == {"middle": NO_WATERMARK}
    reader = machine.reader()
    assert watermark(reader) == NO_WATERMARK
    machine.steps(1, 3_000)
    machine.steps(0, 4_000)
    again.settle()
    reader.settle()
    assert watermark(reader) == 2_999
    again.worker.leave()
    reader.worker.leave()


def test_an_app_that_runs_is_not_retired_and_goes_on(machine: Machine) -> None:
    machine.live(writing("old"), {0: 1_000})
    owner = owning(machine.log.path, "old", [1])
    with pytest.raises(TaskOwnedError, match=r"'old' runs.*old/1 is owned.*Stop it first"):
        retire(machine.log, "old")
    assert publishers_of(machine.log)["old"] == {0: {"middle": 999}}
    owner.close()
    assert retire(machine.log, "old").publishers == ["old-0", "old-1"]


def test_whoever_has_the_task_without_owning_it_is_fenced(machine: Machine) -> None:
    service = Service(writing("old"), machine.log)
    machine.steps(0, 1_000)
    service.settle()
    retire(machine.log, "old")
    machine.steps(0, 2_000)
    with pytest.raises(FencedError):
        service.settle()


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
