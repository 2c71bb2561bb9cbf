"""Watermarks: how far event time has come, per input and for the whole task.

Theory. An input's watermark says "all up to here has been seen". It comes from one of

    events        highest event time seen - allowed disorder - 1 ms
    punctuated    what a pure function of the event says, where it says something
    generator     the same from an object with durable fields
    upstream      what the producing service has published, applied when the reader has come that far
    none          reference data and feedback: the input has no watermark and holds nobody back

The task's watermark is the minimum over the inputs that count: those with a watermark, neither idle nor ended. If none
counts, it is the highest of theirs. It never goes back, whatever an input does: an input that wakes up behind it
finds its records late. None of this reads a clock; that an input is idle is told from outside.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.core.declare.plan import InputPlan, WatermarkGenerator
from tailrace.core.durations import INSTANT_LIMIT_MS, NO_WATERMARK
from tailrace.core.engine.tape import Cut
from tailrace.core.errors import UsageError

NOTHING = NO_WATERMARK
"""The watermark before anything was seen: below any event time."""


def copy(generator: WatermarkGenerator) -> WatermarkGenerator:
    """A generator of the same state: each task has its own."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(generator), type=type(generator))


class Watermarks:
    """The watermarks of a task's inputs, by input number."""

    __slots__ = ("_counts", "_inputs", "ended", "generators", "idle", "of_input", "task_ms")

    def __init__(self, inputs: tuple[InputPlan, ...]) -> None:
        self._inputs = inputs
        self._counts = tuple(plan.watermark != "none" for plan in inputs)
        self.of_input = [NOTHING] * len(inputs)
        self.idle = [False] * len(inputs)
        self.ended = [False] * len(inputs)
        self.generators = [None if plan.generator is None else copy(plan.generator) for plan in inputs]
        self.task_ms = NOTHING

    def resume(self, cut: Cut) -> None:
        """Stand where a cut stands. Inputs that it does not know begin with nothing seen."""
        for number, plan in enumerate(self._inputs):
            self.of_input[number] = cut.watermarks.get(plan.name, NOTHING)
            self.idle[number] = plan.name in cut.idle
            self.ended[number] = plan.name in cut.ended
            generator = cut.generators.get(plan.name)
            if generator is not None and plan.generator is not None:
                self.generators[number] = msgspec.msgpack.decode(generator, type=type(plan.generator))
        self.task_ms = cut.watermark

    def noted(self) -> tuple[dict[str, int], list[str], list[str], dict[str, bytes], int]:
        """For a cut: the inputs' watermarks, who is idle, who has ended, the generators, the task's watermark."""
        names = [plan.name for plan in self._inputs]
        return (
            dict(zip(names, self.of_input, strict=True)),
            [name for name, idle in zip(names, self.idle, strict=True) if idle],
            [name for name, ended in zip(names, self.ended, strict=True) if ended],
            {
                name: msgspec.msgpack.encode(generator)
                for name, generator in zip(names, self.generators, strict=True)
                if generator is not None
            },
            self.task_ms,
        )

    @property
    def holds_nobody_back(self) -> bool:
        """Whether every input that has a watermark is idle or has ended."""
        return all(
            self.idle[number] or self.ended[number] for number, counts in enumerate(self._counts) if counts
        )

    def ceiling(self, but: int) -> int:
        """The least watermark of the inputs that count, without ``but``: it alone cannot lift the task past this."""
        return min(
            (
                mark
                for number, mark in enumerate(self.of_input)
                if self._counts[number] and number != but and not self.idle[number] and not self.ended[number]
            ),
            default=1 << 62,
        )

    def advance(self) -> int:
        """Work out the task's watermark anew, and return it."""
        of_input = self.of_input
        counting = [
            mark
            for number, mark in enumerate(of_input)
            if self._counts[number] and not self.idle[number] and not self.ended[number]
        ]
        if counting:
            mark = min(counting)
        else:
            mark = max((of_input[n] for n, counts in enumerate(self._counts) if counts), default=NOTHING)
        if mark > self.task_ms:
            self.task_ms = mark
        return self.task_ms

    def said(self, plan: InputPlan, event: Any, time_ms: int) -> int:
        """The watermark that an event states by itself, or NOTHING. It says nothing where its handlers failed."""
        generator = self.generators[plan.index]
        if generator is None:
            return NOTHING if plan.punctuate is None else _mark(plan, plan.punctuate(event, time_ms))
        before = msgspec.msgpack.encode(generator)
        try:
            return _mark(plan, generator.on_event(event, time_ms))
        except Exception:
            self.generators[plan.index] = msgspec.msgpack.decode(before, type=type(generator))
            raise


def _mark(plan: InputPlan, said: Any) -> int:
    """The watermark that a user's function has returned: no later than the last instant."""
    if said is None:
        return NOTHING
    if type(said) is not int:
        raise UsageError(
            f"the watermark function of {plan.name!r} returned {said!r:.60}",
            mend="Return an int of milliseconds since 1970, or None where an event says nothing of the watermark.",
        )
    return min(said, INSTANT_LIMIT_MS - 1)
