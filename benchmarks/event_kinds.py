"""The cost of an event as a msgspec struct, a dataclass and a pydantic model. ``python -m benchmarks.event_kinds``.

Each kind is decoded, handled by a task (counted and emitted again), and encoded. The result is microseconds of processor time
per event, as medians of alternating runs, compared with the struct.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec
import pydantic

import tailrace as tr
from benchmarks.drive import SLICE, Drive
from benchmarks.measure import clock
from tailrace.core.records import InputRecord


class Struct(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    value: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plain:
    key: tr.Key[str]
    at: tr.EventTime[int]
    value: int
    note: str = ""


class Model(pydantic.BaseModel, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    value: int
    note: str = ""


class Validated(Model, frozen=True):
    """Because of its validator, Tailrace decodes each record again after encoding it."""

    @pydantic.field_validator("note")
    @classmethod
    def stripped(cls, note: str) -> str:
        return note.strip()


KINDS: dict[str, Callable[..., Any]] = {
    "msgspec struct": Struct,
    "dataclass": Plain,
    "pydantic model": Model,
    "pydantic model with a validator": Validated,
}
STEPS = ("decode", "encode", "through a task")


def app_of(event_type: Any) -> tr.App:
    app = tr.App("kinds", partitions=1)
    events = app.topic("events", event_type, out_of_order="1s")
    again = app.topic("again", event_type)

    @app.actor
    class Counter(tr.Actor):
        count: int = 0

        @tr.process(events)
        def counted(self, event: Any, ctx: tr.Context[str]) -> None:
            self.count += 1
            ctx.emit(again, event)

    return app


def once(make: Callable[..., Any], count: int) -> list[float]:
    """Measure the seconds of each step once."""
    topic = app_of(make).topics["events"]
    made = [
        make(key=f"key {n % 1_000}", at=1_600_000_000_000 + n, value=n, note="as it is") for n in range(count)
    ]
    begun_s = clock()
    written = [topic.encode_emitted(event) for event in made]
    encoded_s = clock()
    for value in written:
        topic.decode(value)
    decoded_s = clock()
    drive = Drive(app_of(make))
    for at in range(0, count, SLICE):
        values = enumerate(written[at : at + SLICE], at)
        records = [InputRecord(offset, 1_600_000_000_000, None, value, ()) for offset, value in values]
        drive.run(0, drive.task.decode(0, records))
    return [decoded_s - encoded_s, encoded_s - begun_s, clock() - decoded_s]


def measure(count: int, repeats: int) -> dict[str, list[float]]:
    """Microseconds per event, by kind and step."""
    runs: dict[str, list[list[float]]] = {name: [] for name in KINDS}
    for _ in range(repeats):
        for name, make in KINDS.items():
            runs[name].append(once(make, count))
    return {
        name: [median(one[step] for one in found) / count * 1e6 for step in range(len(STEPS))]
        for name, found in runs.items()
    }


def table(measured: dict[str, Sequence[float]] | dict[str, list[float]]) -> str:
    """The figures as a table, each with its ratio to the figure of the struct."""
    first = next(iter(measured.values()))
    lines = [f"| events as | {' | '.join(STEPS)} |", "|---" * (len(STEPS) + 1) + "|"]
    for name, found in measured.items():
        cells = [f"{one:.2f} µs ({one / least:.1f} x)" for one, least in zip(found, first, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000, 5)))
