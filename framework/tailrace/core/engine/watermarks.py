"""Watermarks: how far event time has come, per source and for each operator.

Theory. A source's watermark says "all up to here has been seen". It comes from one of

    events        highest event time seen - allowed disorder - 1 ms
    punctuated    what a pure function of the event says, where it says something
    generator     the same from an object with durable fields
    upstream      what the writers of the topic or channel have published, applied when the reader has come that far
    none          reference data and feedback: nobody goes by it

An operator's watermark is the least of its sources' (see ``declare.flow``), without those that are idle. If all are, or if
all that comes to the operator has ended, it is the highest of theirs. It never goes back, whatever a source does: a source
that wakes up behind it finds its records late. What other operators read does not matter to it. None of this reads a clock;
that a source is idle is told from outside.

A record is late for an operator if its input is one of the operator's sources and its time is at or before the operator's
watermark. So one record may be late for one operator and in time for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from tailrace.core.declare.plan import InputPlan, Plan, WatermarkGenerator
from tailrace.core.durations import INSTANT_LIMIT_MS, NO_WATERMARK
from tailrace.core.engine.tape import Cut
from tailrace.core.errors import UsageError
from tailrace.core.records import CHANNEL


def copy(generator: WatermarkGenerator) -> WatermarkGenerator:
    """A generator of the same state: each task has its own."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(generator), type=type(generator))


class Noted(NamedTuple):
    """For a cut, by name: watermarks of sources, who is idle, who has ended, generators, the lowest of the operators."""

    watermarks: dict[str, int]
    idle: list[str]
    ended: list[str]
    generators: dict[str, bytes]
    watermark: int


class Watermarks:
    """The watermarks of a task: ``of_source`` and ``of_operator``, by the numbers that these have in the plan."""

    __slots__ = (
        "_alike",
        "_concerned",
        "_judged",
        "_plan",
        "_sources",
        "ended",
        "ended_operators",
        "generators",
        "idle",
        "of_operator",
        "of_source",
    )

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sources = tuple(one.sources for one in plan.operators)
        self._concerned = tuple(tuple(sorted({*one.touches, *one.moves})) for one in plan.inputs)
        self._alike = tuple(not one.moves or set(one.touches) <= set(one.moves) for one in plan.inputs)
        self.of_source = [NO_WATERMARK] * len(plan.sources)
        self.idle = [False] * len(plan.sources)
        self.ended = [False] * len(plan.sources)
        self.generators = [None if one.generator is None else copy(one.generator) for one in plan.inputs]
        self.of_operator = [NO_WATERMARK] * len(plan.operators)
        self._judged = frozenset(_judged(plan))
        self.ended_operators = [False] * len(plan.operators)
        """Operators to which nothing more comes; ``ended`` are inputs, of histories up to format 1."""

    def resume(self, cut: Cut) -> None:
        """Stand where a cut stands. Sources that it does not know begin with nothing seen, operators with their sources."""
        for number, name in enumerate(self._plan.sources):
            self.of_source[number] = cut.watermarks.get(name, NO_WATERMARK)
            self.idle[number] = name in cut.idle
            self.ended[number] = name in cut.ended
        for number, plan in enumerate(self._plan.inputs):
            generator = cut.generators.get(plan.name)
            if generator is not None and plan.generator is not None:
                self.generators[number] = msgspec.msgpack.decode(generator, type=type(plan.generator))
        self.ended_operators = [one.name in cut.ended_operators for one in self._plan.operators]
        known = cut.operators
        if known is None:  # of a task whose operators had one watermark
            self.of_operator = [cut.watermark] * len(self.of_operator)
            return
        self.of_operator = [known.get(one.name, NO_WATERMARK) for one in self._plan.operators]
        self.advance([one.index for one in self._plan.operators if one.name not in known])

    def noted(self) -> Noted:
        """What a cut says of them."""
        names = self._plan.sources
        return Noted(
            dict(zip(names, self.of_source, strict=True)),
            [name for name, idle in zip(names, self.idle, strict=True) if idle],
            [name for name, ended in zip(names, self.ended, strict=True) if ended],
            {
                one.name: msgspec.msgpack.encode(generator)
                for one, generator in zip(self._plan.inputs, self.generators, strict=True)
                if generator is not None
            },
            self.lowest,
        )

    @property
    def lowest(self) -> int:
        """How far all operators have come."""
        return min(self.of_operator, default=NO_WATERMARK)

    @property
    def foremost(self) -> int:
        """How far the operators have come that are nearest to the sources; what follows from them comes after them."""
        first = [one.index for one in self._plan.operators if not one.level]
        return min((self.of_operator[one] for one in first), default=NO_WATERMARK)

    def reading_limit_ms(self, plan: InputPlan) -> int | None:
        """Up to which event time an input is to be read, where the others stand; None if it is not limited."""
        if plan.ahead_ms is None or any(self.ended_operators[one] for one in plan.moves):
            return None
        waited = [self.of_source[one] for one in plan.waits_for if not self.idle[one] and not self.ended[one]]
        return min(waited) + plan.ahead_ms if waited else None

    def holds_nobody_back(self, operator: int) -> bool:
        """Whether all sources of an operator are idle: then it may be long until one says more."""
        sources = self._sources[operator]
        idle = bool(sources) and all(self.idle[source] for source in sources)
        return idle and not self.ended_operators[operator]

    def concerned(self, number: int) -> tuple[int, ...]:
        """The operators that a record of an input comes to, or whose watermark it moves."""
        return self._concerned[number]

    def published_ms(self, operator: int, held_ms: Callable[[int], int | None]) -> int | None:
        """Up to where nothing is to come of an operator any more; None if it holds nobody back.

        ``held_ms`` gives for an actor the time of its first timer that is due and has not fired, None if there is none.
        """
        held = [at for actor in self._plan.operators[operator].holders if (at := held_ms(actor)) is not None]
        if held:
            return min(*held, self.of_operator[operator] + 1) - 1
        return None if self.holds_nobody_back(operator) else self.of_operator[operator]

    def common(self, number: int) -> int | None:
        """Where the operators stand that an input concerns, if they cannot be told apart by it: None if they can.

        That is so in most apps at most times.
        """
        if not self._alike[number]:
            return None
        operators, of_operator = self._concerned[number], self.of_operator
        mark = of_operator[operators[0]]
        for operator in operators[1:]:
            if of_operator[operator] != mark:
                return None
        return mark

    def together(self, number: int) -> tuple[int, int] | None:
        """The common watermark, and up to where the input alone can lift it; None if either differs from one to another."""
        mark = self.common(number)
        if mark is None:
            return None
        operators = self._concerned[number]
        ceiling = self.ceiling(operators[0], number)
        for operator in operators[1:]:
            if self.ceiling(operator, number) != ceiling:
                return None
        return mark, ceiling

    def highest(self, number: int) -> int:
        """The highest watermark of the operators that an input concerns: what is later is late for none of them."""
        of_operator = self.of_operator
        return max(of_operator[one] for one in self._concerned[number])

    def ceiling(self, operator: int, but: int) -> int:
        """The least watermark of an operator's sources that count, without ``but``: it cannot lift it past this."""
        least = 1 << 62
        for source in () if self.ended_operators[operator] else self._sources[operator]:
            mark = self.of_source[source]
            if mark < least and source != but and not self.idle[source] and not self.ended[source]:
                least = mark
        return least

    def stand(self, number: int, source_ms: int, operator_ms: int) -> None:
        """Put an input, and all operators that it moves, where a run of its records has brought them together."""
        self.of_source[number] = source_ms
        for operator in self._plan.inputs[number].moves:
            self.of_operator[operator] = operator_ms

    def advance(self, operators: Iterable[int] | None = None) -> None:
        """Work out the watermarks of operators anew, of all if none are named."""
        of_source, idle, ended = self.of_source, self.idle, self.ended
        for operator in range(len(self.of_operator)) if operators is None else operators:
            sources = self._sources[operator]
            counting = (
                []
                if self.ended_operators[operator]
                else [of_source[one] for one in sources if not idle[one] and not ended[one]]
            )
            mark = (
                min(counting) if counting else max((of_source[one] for one in sources), default=NO_WATERMARK)
            )
            if mark > self.of_operator[operator]:
                self.of_operator[operator] = mark

    def judges_messages(self) -> bool:
        """Whether messages may be late: where an actor is sent them from outside of its circle, and by nobody within it."""
        return bool(self._judged)

    def late_for(self, plan: InputPlan, time_ms: int, receiver: int = -1) -> frozenset[int]:
        """The operators for which a record of this time is late; of a message ``receiver`` is the one that gets it."""
        if plan.is_inbox:
            late = receiver in self._judged and time_ms <= self.of_operator[receiver]
            return frozenset((receiver,)) if late else frozenset()
        if plan.repartitioned:
            return frozenset()
        of_operator, moved = self.of_operator, plan.moves
        return frozenset(one for one in plan.touches if time_ms <= of_operator[one] and one in moved)

    def said(self, plan: InputPlan, event: Any, time_ms: int) -> int:
        """The watermark that an event states by itself, or NO_WATERMARK. It says nothing where its handlers failed."""
        generator = self.generators[plan.index]
        if generator is None:
            return NO_WATERMARK if plan.punctuate is None else _mark(plan, plan.punctuate(event, time_ms))
        before = msgspec.msgpack.encode(generator)
        try:
            return _mark(plan, generator.on_event(event, time_ms))
        except Exception:
            self.generators[plan.index] = msgspec.msgpack.decode(before, type=type(generator))
            raise


def _mark(plan: InputPlan, said: Any) -> int:
    """The watermark that a user's function has returned: no later than the last instant."""
    if said is None:
        return NO_WATERMARK
    if type(said) is not int:
        raise UsageError(
            f"the watermark function of {plan.name!r} returned {said!r:.60}",
            hint="Return an int of milliseconds since 1970, or None where an event says nothing of the watermark.",
        )
    return min(said, INSTANT_LIMIT_MS - 1)


def _judged(plan: Plan) -> Iterator[int]:
    """The actors whose messages all come from outside of their circles."""
    writers = {one.name: one.writers for one in plan.published}
    for channel in plan.sources[len(plan.inputs) :]:
        actor = next(one for one in plan.actors if one.name == channel.partition(CHANNEL)[2])
        senders = tuple(one.index for one in plan.operators if actor.cls in one.sends)
        if senders == writers[channel]:
            yield actor.index
