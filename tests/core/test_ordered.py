"""Ordered operators: what waits in scratch files, and what is refused. What they do is a law of the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.engine.task import Task
from tailrace.core.engine.waiting import Waiting
from tailrace.core.engine.waiting_runs import MOST_OF_A_TIER
from tailrace.core.errors import DefinitionError, IncompatibleStateError, StateUnavailableError
from tailrace.core.records import Head, InputRecord
from tailrace.state.memory import MemoryStore
from tests.core.ordered import Event, Said, joining

FILES = list[BinaryIO]()
"""The scratch files of the task that runs."""


@pytest.fixture(autouse=True)
def close_files() -> Iterator[None]:
    yield
    for file in FILES:
        file.close()
    FILES.clear()


def scratch() -> BinaryIO:
    FILES.append(TemporaryFile())  # noqa: SIM115  # the fixture closes it
    return FILES[-1]


TINY = TaskSettings(cache_bytes=20_000, firing_budget=3, scratch=scratch)


class Run:
    """A task that takes what a test gives it."""

    def __init__(self, events: dict[str, list[Event]], settings: TaskSettings | None = None) -> None:
        self.plan, self.events, self.settings = joining().plan(), events, settings or TaskSettings()
        self.store = MemoryStore()
        self.task = self.new(None)

    def new(self, cut: bytes | None) -> Task:
        return Task(self.plan, 0, self.store, cut, lineage=b"joining", settings=self.settings)

    def heads(self, name: str) -> tuple[int, list[Head]]:
        number = next(one.index for one in self.plan.inputs if one.name == name)
        records = [
            InputRecord(offset, event.at, event.key.encode(), msgspec.json.encode(event), ())
            for offset, event in enumerate(self.events[name])
        ]
        return number, self.task.decode(number, records)


def test_a_restart_refuses_to_go_on_if_the_log_has_lost_an_event_that_waits() -> None:
    events = {"left": [Event("k", 10, 0), Event("k", 20, 1), Event("k", 15, 2)], "right": [Event("k", 1, 0)]}
    run = Run(events)
    for name in events:
        run.task.run(*run.heads(name))
    batch = run.task.commit_batch()
    run.store.write(batch.rows | batch.index_rows, batch.cut)
    run.task = run.new(batch.cut)
    assert run.task.waiting_from() == {"left": 0, "right": 0}
    number, heads = run.heads("left")
    run.task.refill(number, [heads[0], heads[2]])
    run.task.refill(*run.heads("right"))
    with pytest.raises(IncompatibleStateError, match=r"3 events of 'left' from offset 0 .* and 2 of them"):
        run.task.refilled()


def test_an_input_that_is_ahead_is_held_back_also_when_what_waits_is_in_scratch_files() -> None:
    events = {"left": [Event("k", 1_000 + n, n) for n in range(200)], "right": [Event("k", 1, 0)]}
    run = Run(events, TINY)
    numbers = dict[str, int]()
    for name in ("right", "left"):
        numbers[name], heads = run.heads(name)
        run.task.run(numbers[name], heads)
    assert run.task._sweep.bytes_in_memory < TINY.cache_bytes // 8
    assert run.task.is_held_back(numbers["left"])
    assert not run.task.is_held_back(numbers["right"])


def test_a_scratch_file_that_cannot_be_written_is_an_error_that_may_pass() -> None:
    def full() -> Any:
        raise OSError(28, "No space left on device")

    events = {"left": [Event("k", 1_000 + n, n) for n in range(200)], "right": [Event("k", 1, 0)]}
    run = Run(events, TaskSettings(cache_bytes=20_000, scratch=full))
    run.task.run(*run.heads("right"))
    with pytest.raises(StateUnavailableError, match=r"scratch file: .*No space left on device.* \(TMPDIR\)"):
        run.task.run(*run.heads("left"))


@pytest.mark.parametrize("others", [False, True])
def test_a_stream_that_an_actor_feeds_itself_is_no_other_input(others: bool) -> None:
    app = tr.App("shop")
    carts, paid = app.topic("carts", Event), app.topic("paid", Event)
    steps = app.stream("steps", Said)

    @app.actor(emits=[steps])
    class Basket(tr.Actor):
        @tr.process(carts)
        def take(self, event: Event, ctx: tr.Context[str]) -> None: ...

        @tr.process(steps)
        def step(self, event: Said, ctx: tr.Context[str]) -> None: ...

    @app.process(paid, emits=[steps] if others else [])
    def pay(event: Event, ctx: tr.Context[str]) -> None: ...

    if others:
        with pytest.raises(DefinitionError, match="Basket has 2 inputs"):
            app.plan()
    else:
        assert not app.plan().operators[0].ordered


def test_what_waits_in_scratch_files_comes_out_in_order_however_many_runs_there_are() -> None:
    plan = joining().plan()
    task = Task(plan, 0, MemoryStore(), lineage=b"joining")
    waiting, random, taken = Waiting(task._inputs), Random(0), list[tuple[int, int, Any]]()
    pushed: list[tuple[int, int, int]] = []
    for offset in range(MOST_OF_A_TIER * 6):
        number = random.randrange(2)
        event = Event("k", random.randrange(100), offset)
        record = InputRecord(offset, event.at, b"k", msgspec.json.encode(event), ())
        (head,) = task.decode(number, [record])
        place_ms = event.at + random.randrange(2)
        waiting.push(number, head, place_ms)
        pushed.append((place_ms, plan.inputs[number].rank, offset))
        if offset % 3 == 2:
            waiting.spill(task.decode, TemporaryFile)
            assert waiting.in_memory == 0
    assert waiting.lows()[0][0] == min(offset for _, rank, offset in pushed if rank == plan.inputs[0].rank)
    while len(waiting):
        first = waiting.first()
        taken.append(first[:3])
        waiting.pop(first)
    assert taken == sorted(pushed)
    assert not waiting.lows()
    assert not any(waiting.late)
