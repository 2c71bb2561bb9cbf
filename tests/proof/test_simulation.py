"""Workers that die, sleep, come back, lose their disks and are told nothing: what is committed obeys the laws.

The world checks them after every step and replays everything in the end.

The world tries random faults; one small run is struck at every point at which it can be. A run without faults counts the operations
of the log and the store, in their order. Then the run is repeated for every operation, every fault that can strike there, and every
recovery: the next owner has the same store, or none. The worst zombie is included, too: an owner that is suspended at this point,
between two of its own operations, and resumes after another has taken over and done all of its work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, TypeAlias

import pytest

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.errors import FencedError, LogUnavailableError, StateUnavailableError
from tailrace.core.records import Headers, Output
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import WorkerSettings
from tests.cast.world import World, repeatable
from tests.proof.apps import Variant, build
from tests.proof.operations import Event
from tests.proof.programs import Op, Program
from tests.proof.seeds import START_MS, shuffled, told
from tests.proof.strikes import STRIKES, Kill, Strike


@pytest.mark.one_seed_in(5)  # one takes 50 ms
def test_no_fault_breaks_a_law(seeds: range) -> None:
    for seed in seeds:
        one = shuffled(seed)
        world = World(one.model.app.plan(), seed, one.inputs, None, one.flaky, duplicates=True)
        with told(seed, world.trace):
            world.run(30)


# --- struck at every point

Aftermath = Literal["same store", "no store"]
AFTERMATHS: tuple[Aftermath, ...] = ("same store", "no store")
SLEEP = Strike("sleep", Kill, None)
"""Stands for no exception at all: the owner sleeps at that point while another takes over."""
Visible: TypeAlias = list[list[tuple[str, bytes | None, bytes | None, int, Headers]]]
"""Outputs of each task in their order: topic, key, value, timestamp, headers."""


class Point(NamedTuple):
    """The operation, the fault, and the recovery."""

    operation: int
    name: str
    strike: Strike
    aftermath: Aftermath


class Struck(NamedTuple):
    """What came of it."""

    point: Point | None
    outputs: Visible
    rows: dict[bytes, bytes]


def unharmed(plan: Plan, inputs: Sequence[Output], settings: PartitionSettings, slice_size: int) -> Struck:
    """The run without a fault."""
    run = _Run(plan, inputs, settings, slice_size)
    run.work()
    return run.finished(None)


def every_point(
    plan: Plan, inputs: Sequence[Output], settings: PartitionSettings, slice_size: int
) -> Iterator[Struck]:
    """The run with one fault, for every one there can be. Each has been replayed and obeys the laws.

    Raises LawBrokenError, or what else came out, with the point it was struck at.
    """
    dry = _Run(plan, inputs, settings, slice_size)
    dry.work()
    for number, name in enumerate(dry.names):
        for strike in (*STRIKES, SLEEP):
            if strike.at is not None and name not in strike.at:
                continue
            for aftermath in AFTERMATHS if strike is not SLEEP else ("no store",):
                point = Point(number, name, strike, aftermath)
                run = _Run(plan, inputs, settings, slice_size)
                try:
                    run.struck_at(point)
                    yield run.finished(point)
                except Exception as error:
                    error.add_note(f"struck by {strike.name} at operation {number}, {name}; then {aftermath}")
                    raise


class _Run(World):
    """One worker after another, until there is nothing to do; the names of operations are noted as they come."""

    def __init__(
        self, plan: Plan, inputs: Sequence[Output], settings: PartitionSettings, slice_size: int
    ) -> None:
        self.names: list[str] = []
        self._settings = WorkerSettings(slice_records=slice_size, partition=settings)
        super().__init__(plan, 0, inputs, None)
        self.tick_ms = 0
        self._feed(len(inputs))
        self.names.clear()

    def drawn_settings(self) -> WorkerSettings:
        """All workers have the same."""
        return self._settings

    def _pass(self, name: str) -> None:
        self.names.append(name)
        super()._pass(name)

    def work(self) -> None:
        """What a worker without trouble does: slices and commits."""
        worker = self._new()
        with repeatable():
            worker.start()
            while worker.turn():
                pass
            worker.leave()

    def struck_at(self, point: Point) -> None:
        """Work until struck; then the next owner works."""
        left = point.operation

        def struck(name: str) -> None:
            nonlocal left
            left -= 1
            # A thread that looks into the log may have come between this time: what strikes a commit strikes no other operation.
            if left < 0 and (point.strike.at is None or name in point.strike.at):
                self._armed = None
                if point.strike is not SLEEP:
                    raise point.strike.error()
                self._next(point)

        self._armed = struck
        with suppress(
            Kill,
            LogUnavailableError,
            StateUnavailableError,
            *((FencedError,) if point.strike is SLEEP else ()),
        ):
            self.work()
        self._armed = None
        if point.strike is not SLEEP:
            self._next(point)
        self.look()

    def _next(self, point: Point) -> None:
        """Another owner takes over and does all there is to do."""
        self.look()
        if point.aftermath == "no store":
            self.lose_state()  # one that sleeps keeps its own
        self.work()
        self.look()

    def finished(self, point: Point | None) -> Struck:
        """Everything to its end, and what is visible then."""
        self.rest()
        self.replay()
        assert self.observer is not None
        outputs = [
            [(topic, r.key, r.value, r.timestamp_ms, r.headers) for topic, r in of_task]
            for of_task in self.observer.outputs
        ]
        return Struck(point, outputs, self.rows())


# --- a small run

TINY = PartitionSettings(
    commit_interval_ms=0,
    commit_records=2,
    task=TaskSettings(firing_budget=1, timers_in_memory=2, cache_bytes=0),
)


EMIT, NOTE = Op("emit", 3), Op("note")


PROGRAMS: tuple[Program, ...] = (
    (Op("timer", 2, 500, (EMIT, Op("append", 1))), Op("put", 1, 5), EMIT),
    (
        Op("timer", 0, 3, (NOTE,)),
        Op("timer", 3, 3, (EMIT, Op("past-timer", 2, 1, (EMIT,)))),
        Op("box-put", 1),
    ),
    (Op("fail"),),
    (Op("brief", 1, 3), Op("queue", 2), NOTE, Op("send", 2, 1, (EMIT,)), Op("clock-timer", 2, 3, (EMIT,))),
    (Op("clear"), EMIT),
    (Op("fade", 1), Op("send", 4, 2, (EMIT, Op("send-self")))),
)


def small_inputs(variant: Variant) -> tuple[Plan, list[Output]]:
    """A few records that set timers, change entries, fail, emit and, where the app knows them, send messages."""
    model = build(variant)
    topic = model.topics[0]
    inputs: list[Output] = []
    for number, program in enumerate(PROGRAMS):
        if not variant.messages:
            program = tuple(op for op in program if op.kind not in ("send", "clock-timer"))
        event = Event(("k", "kk", "last")[number % 3], START_MS + 300 * number, program)
        inputs.append(Output(topic.name, topic.encode_key(event), topic.encode(event), event.at))
    return model.app.plan(), inputs


SETTINGS = {
    "commits in every slice": TINY,
    "one commit": PartitionSettings(commit_interval_ms=1 << 40, task=TaskSettings(firing_budget=2)),
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_struck_at_every_operation_of_log_and_store_a_run_with_one_input_comes_out_as_if_it_had_not_been(
    settings: str,
) -> None:
    variant = Variant(1, 1, "handle", 500, "events", "dead-letter-all", messages=False, lean=False)
    plan, inputs = small_inputs(variant)
    clean = unharmed(plan, inputs, SETTINGS[settings], 3)
    assert len(clean.outputs[0]) > 3
    points = 0
    for struck in every_point(plan, inputs, SETTINGS[settings], 3):
        assert struck.outputs == clean.outputs, struck.point
        assert struck.rows == clean.rows, struck.point
        points += 1
    assert points > 50


def test_struck_at_every_operation_two_tasks_that_send_one_another_messages_lose_and_repeat_nothing() -> None:
    variant = Variant(1, 2, "handle", 0, "events", "dead-letter-all", messages=True, lean=True)
    plan, inputs = small_inputs(variant)
    points = sum(1 for _ in every_point(plan, inputs, TINY, 4))
    assert points > 100
