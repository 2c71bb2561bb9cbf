"""Ordered operators in a task: no schedule, restart or memory changes what they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Replay
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.engine.task import Task
from tailrace.core.engine.waiting import Waiting
from tailrace.core.engine.waiting_runs import MOST_OF_A_TIER
from tailrace.core.errors import DefinitionError, HandlerError, IncompatibleStateError, StateUnavailableError
from tailrace.core.records import Head, InputRecord
from tailrace.state.memory import MemoryStore
from tests.core.ordered import Event, Said, history, joining, oracle

FILES = list[BinaryIO]()
"""The scratch files of the task that runs."""


@pytest.fixture(autouse=True)
def close_files_after() -> Iterator[None]:
    yield
    close_files()


def close_files() -> None:
    for file in FILES:
        file.close()
    FILES.clear()


class Run:
    """A task that is fed in a random schedule, commits at random places, and starts again from its last commit."""

    def __init__(
        self, events: dict[str, list[Event]], random: Random, settings: TaskSettings, *, stops: bool
    ) -> None:
        self.plan = joining().plan()
        self.events, self.random, self.stops = events, random, stops
        self.scratch = settings.scratch
        self.settings = settings if self.scratch is None else replace(settings, scratch=self.new_file)
        self.store, self.outputs, self.tapes = MemoryStore(), list[Any](), list[bytes]()
        self.task = self.new(None)

    def new_file(self) -> BinaryIO:
        assert self.scratch is not None
        FILES.append(self.scratch())
        return FILES[-1]

    def new(self, cut: bytes | None) -> Task:
        close_files()  # of the task before, which is collected only later
        return Task(self.plan, 0, self.store, cut, lineage=b"joining", settings=self.settings)

    def records(self, name: str, start: int, stop: int) -> list[InputRecord]:
        return [
            InputRecord(start + n, event.at, event.key.encode(), msgspec.json.encode(event), ())
            for n, event in enumerate(self.events[name][start:stop])
        ]

    def heads(self, name: str, start: int, stop: int) -> tuple[int, list[Head]]:
        number = next(one.index for one in self.plan.inputs if one.name == name)
        return number, self.task.decode(number, self.records(name, start, stop))

    def restart(self) -> None:
        self.outputs += self.task.take_outputs()
        batch = self.task.commit_batch()
        self.store.write(batch.rows | batch.index_rows, batch.cut)
        self.tapes.append(batch.tape)
        self.task = self.new(batch.cut)
        for name, low in self.task.waiting_from().items():
            assert low == batch.offsets[name]
            self.task.refill(*self.heads(name, low, batch.positions[name]))
        self.task.refilled()

    def run(self) -> list[tuple[str, str]]:
        random = self.random
        while left := [name for name in self.events if self.task.positions[name] < len(self.events[name])]:
            name = random.choice(left)
            start = self.task.positions[name]
            number, heads = self.heads(name, start, start + random.randrange(1, 8))
            at = 0
            while at < len(heads):
                at = self.task.run(number, heads, at)
                while self.task.draining:
                    if self.stops and random.random() < 0.3:
                        self.restart()
                        at = len(heads)  # read again from the position of the new task
                    self.task.drain(random.randrange(1, 4))
            if self.stops and random.random() < 0.3:
                self.restart()
        self.task.ended(0)
        while self.task.draining:
            self.task.drain()
        self.outputs += self.task.take_outputs()
        return said_in(self.outputs)


def said_in(outputs: list[Any]) -> list[tuple[str, str]]:
    said = [msgspec.json.decode(one.value, type=Said) for one in outputs]
    return [(one.key, one.text) for one in said]


TINY = TaskSettings(cache_bytes=20_000, firing_budget=3, scratch=TemporaryFile)


@pytest.mark.one_seed_in(3)
def test_no_schedule_restart_or_memory_changes_what_an_ordered_actor_does(seeds: range) -> None:
    for seed in seeds:
        events = history(Random(seed))
        expected, states = oracle(events), list[Any]()
        for at, (settings, stops) in enumerate(
            [(TaskSettings(), False), (TaskSettings(), True), (TINY, True)]
        ):
            run = Run(events, Random(seed * 10 + at), settings, stops=stops)
            assert run.run() == expected, seed
            assert run.task.totals.late == sum(" late" in text for _, text in expected)
            run.restart()
            states.append([(row, value) for row, value in run.store.scan(b"\1", b"\xff")])
        assert states[0] == states[1] == states[2]


def test_events_that_come_back_behind_their_operator_are_handled_in_the_order_of_arrival() -> None:
    events = {
        "left": [Event("k", 1_000, 0), *(Event("k", 900 + number, number) for number in range(1, 4))],
        "right": [Event("k", 1_000, 0), *(Event("k", 950 + number, number) for number in range(1, 4))],
    }
    run = Run(events, Random(0), TaskSettings(), stops=False)

    def take(number: int) -> None:
        for name in events:
            run.task.run(*run.heads(name, number, number + 1))

    take(0)
    for source in (0, 1):
        run.task.idle(source)
    take(1)
    run.task.clock(5)  # no input is idle in the next records
    take(2)
    take(3)
    run.restart()
    came = [text.split()[:2] for _, text in said_in(run.outputs) if " late, " in text]
    assert came == [[name, str(number)] for number in (1, 2, 3) for name in ("left", "right")]


def test_a_restart_refuses_to_go_on_if_the_log_has_lost_an_event_that_waits() -> None:
    events = {"left": [Event("k", 10, 0), Event("k", 20, 1), Event("k", 15, 2)], "right": [Event("k", 1, 0)]}
    run = Run(events, Random(0), TaskSettings(), stops=False)
    for name in events:
        run.task.run(*run.heads(name, 0, 9))
    batch = run.task.commit_batch()
    run.store.write(batch.rows | batch.index_rows, batch.cut)
    run.task = run.new(batch.cut)
    assert run.task.waiting_from() == {"left": 0, "right": 0}
    number, heads = run.heads("left", 0, 9)
    run.task.refill(number, [heads[0], heads[2]])
    run.task.refill(*run.heads("right", 0, 9))
    with pytest.raises(IncompatibleStateError, match=r"3 events of 'left' from offset 0 .* and 2 of them"):
        run.task.refilled()


@pytest.mark.parametrize("inputs", [1, 2])
@pytest.mark.parametrize("fails", ["an event", "a timer"])
def test_a_task_that_stops_at_a_failure_commits_what_its_replay_comes_to(inputs: int, fails: str) -> None:
    app = tr.App("failing", partitions=1)
    topics = [app.topic(f"in-{number}", Event, out_of_order=5) for number in range(inputs)]
    failing = [fails]

    @app.actor
    class Failing(tr.Actor, order="event-time"):
        @tr.process(*topics)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            if event.number == 3 and "an event" in failing:
                raise ValueError("once")
            if event.number == 1:
                ctx.set_timer(35)

        @tr.on_timer
        def rings(self, ctx: tr.Context[str]) -> None:
            if "a timer" in failing:
                raise ValueError("once")

    plan = app.plan()
    log = [
        InputRecord(number, 10 + number * 10, b"k", msgspec.json.encode(Event("k", 10 + number * 10, number)))
        for number in range(6)
    ]
    task = Task(plan, 0, MemoryStore(), lineage=b"failing")
    for number in range(inputs - 1, 0, -1):
        task.run(number, task.decode(number, log))
    try:
        task.run(0, task.decode(0, log))
    except HandlerError:
        batch = task.commit_batch()  # while the exception is there
    else:
        pytest.fail("it has not failed")
    failing.clear()
    again = Task(plan, 0, MemoryStore(), lineage=b"failing", replaying=True)
    assert Replay(again, lambda _, start, stop: log[start:stop]).take(tape.decode_tape(batch.tape))
    assert again.commit_batch().cut == batch.cut


def test_an_input_that_is_ahead_is_held_back_also_when_what_waits_is_in_scratch_files() -> None:
    events = {"left": [Event("k", 1_000 + n, n) for n in range(200)], "right": [Event("k", 1, 0)]}
    run = Run(events, Random(0), TINY, stops=False)
    numbers = dict[str, int]()
    for name in ("right", "left"):
        numbers[name], heads = run.heads(name, 0, 200)
        run.task.run(numbers[name], heads)
    assert run.task._sweep.bytes_in_memory < TINY.cache_bytes // 8
    assert run.task.is_held_back(numbers["left"])
    assert not run.task.is_held_back(numbers["right"])


def test_a_scratch_file_that_cannot_be_written_is_an_error_that_may_pass() -> None:
    def full() -> Any:
        raise OSError(28, "No space left on device")

    events = {"left": [Event("k", 1_000 + n, n) for n in range(200)], "right": [Event("k", 1, 0)]}
    run = Run(events, Random(0), TaskSettings(cache_bytes=20_000, scratch=full), stops=False)
    run.task.run(*run.heads("right", 0, 9))
    with pytest.raises(StateUnavailableError, match=r"scratch file: .*No space left on device.* \(TMPDIR\)"):
        run.task.run(*run.heads("left", 0, 200))


def test_events_that_wait_keep_the_operator_ordered() -> None:
    run = Run({"left": [Event("k", 10, 0)], "right": []}, Random(0), TaskSettings(), stops=False)
    run.task.run(*run.heads("left", 0, 9))
    cut = run.task.commit_batch().cut
    with pytest.raises(IncompatibleStateError, match="1 events of 'left' wait for their turn in Join"):
        Task(joining("arrival").plan(), 0, run.store, cut, lineage=b"joining")


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
    waiting, random, taken = Waiting(plan.inputs), Random(0), list[tuple[int, int, int]]()
    task = Task(plan, 0, MemoryStore(), lineage=b"joining")
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
