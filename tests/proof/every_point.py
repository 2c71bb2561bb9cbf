"""One small run, struck once at every point at which it can be struck.

The simulator tries random faults; this tries all. A run without faults counts the operations of the log and
the store, in their order. Then the run is repeated for every operation, every fault that can strike there,
and every recovery: the next owner has the same store, or none. The worst zombie is included, too: an owner
that is suspended at this point, between two of its own operations, and resumes after another has taken over
and done all of its work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, TypeAlias

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import FencedError, LogUnavailableError, StateUnavailableError
from tailrace.core.records import Headers, Output
from tailrace.runtime.lifecycle import State
from tailrace.runtime.slices import PartitionSettings
from tests.proof.simulator import Simulator
from tests.proof.strikes import STRIKES, Kill, Strike

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
    rows: list[dict[bytes, bytes]]


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


class _Run(Simulator):
    """One owner per partition, in turn, until there is nothing to do; names are noted as they come."""

    def __init__(
        self, plan: Plan, inputs: Sequence[Output], settings: PartitionSettings, slice_size: int
    ) -> None:
        self.names: list[str] = []
        self._count_names = False
        super().__init__(plan, 0, inputs, settings=lambda _: settings)
        self.feed_all()
        self._slice_size = slice_size
        self._count_names = True

    def on_operation(self, name: str) -> None:
        """Note the operation's name before a fault may strike."""
        if self._count_names:
            self.names.append(name)
        super().on_operation(name)

    def work(self) -> None:
        """What a worker without trouble does: slices and commits."""
        for number in range(self.plan.partitions):
            owner = self.owned(number)
            while owner.partition.poll(self._slice_size):
                pass
            if owner.partition.state is State.RUNNING:
                owner.partition.commit()

    def struck_at(self, point: Point) -> None:
        """Work until struck; then the next owner works."""
        left = point.operation

        def struck(_: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                self.armed = None
                if point.strike is not SLEEP:
                    raise point.strike.error()
                self._next(point)

        self.armed = struck
        expected: tuple[type[BaseException], ...] = (Kill, LogUnavailableError, StateUnavailableError)
        with suppress(*expected, *((FencedError,) if point.strike is SLEEP else ())):
            self.work()
        self.armed = None
        if point.strike is not SLEEP:
            self._next(point)
        self.look()

    def _next(self, point: Point) -> None:
        """Another owner takes over and does all there is to do."""
        self.look()
        self.forget_owners()
        if point.aftermath == "no store":
            self.stores.clear()  # one that sleeps keeps its own
        self.work()
        self.look()

    def finished(self, point: Point | None) -> Struck:
        """Everything to its end, and what is visible then."""
        self.armed = None
        self.settle()
        self.validate()
        outputs = [
            [(topic, r.key, r.value, r.timestamp_ms, r.headers) for topic, r in of_task]
            for of_task in self.observer.outputs
        ]
        return Struck(point, outputs, self.state())
