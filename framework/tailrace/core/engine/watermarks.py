"""Watermarks: how far event time has advanced, for each source and each operator.

Theory. A source's watermark means "all events up to this time have been read". It comes from one of:

    events        highest event time read - allowed disorder - 1 ms
    upstream      the watermark published by the writers of the topic or channel, once the reader reaches it
    none          reference data and feedback: no operator uses it

An operator's watermark is the lowest of its sources' watermarks (see ``declare.flow``), without idle sources.
If all sources are idle, or all input of the operator has ended, it is the highest of theirs. It never goes
back, whatever a source does: a source that wakes up behind it finds its records late. The inputs of other
operators do not affect it. Nothing here reads a clock; the driver reports that a source is idle.

A record is late for an operator if its input is one of the operator's sources and its time is at or before
the operator's watermark. So one record may be late for one operator and not for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.tape import Cut
from tailrace.core.records import CHANNEL


class Watermarks:
    """The watermarks of a task: ``of_source`` and ``of_operator``, by their numbers in the plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sources = tuple(one.sources for one in plan.operators)
        self._concerned = tuple(tuple(sorted({*one.touches, *one.moves})) for one in plan.inputs)
        self._alike = tuple(not one.moves or set(one.touches) <= set(one.moves) for one in plan.inputs)
        self.of_source = [NO_WATERMARK] * len(plan.sources)
        self.idle = [False] * len(plan.sources)
        self.of_operator = [NO_WATERMARK] * len(plan.operators)
        self._judged = frozenset(_judged(plan))
        self.ended_operators = [False] * len(plan.operators)
        """Operators that get no more input."""

    def resume(self, cut: Cut) -> None:
        """Take the watermarks of a cut. A source that the cut does not have starts without any event; a new
        operator starts with its sources.
        """
        for number, name in enumerate(self._plan.sources):
            self.of_source[number] = cut.watermarks.get(name, NO_WATERMARK)
            self.idle[number] = name in cut.idle
        self.ended_operators = [one.name in cut.ended_operators for one in self._plan.operators]
        known = cut.operators
        self.of_operator = [known.get(one.name, NO_WATERMARK) for one in self._plan.operators]
        self.advance([one.index for one in self._plan.operators if one.name not in known])

    def noted(self) -> tuple[dict[str, int], list[str], int]:
        """For a cut, by name: watermarks of sources, idle sources, the lowest operator watermark."""
        names = self._plan.sources
        watermarks = dict(zip(names, self.of_source, strict=True))
        return watermarks, [name for name, idle in zip(names, self.idle, strict=True) if idle], self.lowest

    @property
    def lowest(self) -> int:
        """The lowest watermark of all operators."""
        return min(self.of_operator, default=NO_WATERMARK)

    @property
    def of_first_level(self) -> int:
        """The lowest watermark of the operators nearest to the sources; all other operators follow these."""
        first = [one.index for one in self._plan.operators if not one.level]
        return min((self.of_operator[one] for one in first), default=NO_WATERMARK)

    def holds_nobody_back(self, operator: int) -> bool:
        """Whether all sources of an operator are idle, so that its next watermark may take long."""
        sources = self._sources[operator]
        idle = bool(sources) and all(self.idle[source] for source in sources)
        return idle and not self.ended_operators[operator]

    def concerned(self, number: int) -> tuple[int, ...]:
        """The operators that get a record of an input, or whose watermark it advances."""
        return self._concerned[number]

    def published_ms(self, operator: int, held_ms: Callable[[int], int | None]) -> int | None:
        """See ``TaskState.published_ms``. ``held_ms``: the time of an actor's first timer that is due."""
        held = [at for actor in self._plan.operators[operator].holders if (at := held_ms(actor)) is not None]
        if held:
            return min(*held, self.of_operator[operator] + 1) - 1
        return None if self.holds_nobody_back(operator) else self.of_operator[operator]

    def shared_watermark(self, number: int) -> tuple[int, int] | None:
        """The watermark of all operators that an input concerns, and how far the input alone can raise it.

        None if operators differ in either, or if the input moves only some of them.
        """
        if not self._alike[number]:
            return None
        first, *others = self._concerned[number]
        mark, ceiling = self.of_operator[first], self.ceiling(first, number)
        for operator in others:
            if self.of_operator[operator] != mark or self.ceiling(operator, number) != ceiling:
                return None
        return mark, ceiling

    def highest(self, number: int) -> int:
        """The highest watermark of the operators an input concerns: a later event is late for none."""
        of_operator = self.of_operator
        return max(of_operator[one] for one in self._concerned[number])

    def ceiling(self, operator: int, but: int) -> int:
        """The lowest watermark of an operator's counting sources except ``but``, which is its limit."""
        least = 1 << 62
        for source in () if self.ended_operators[operator] else self._sources[operator]:
            mark = self.of_source[source]
            if mark < least and source != but and not self.idle[source]:
                least = mark
        return least

    def set_after_run(self, number: int, source_ms: int, operator_ms: int) -> None:
        """Set an input, and the operators that it advances, to the watermarks at the end of a run."""
        self.of_source[number] = source_ms
        for operator in self._plan.inputs[number].moves:
            self.of_operator[operator] = operator_ms

    def advance(self, operators: Iterable[int] | None = None) -> None:
        """Recompute the watermarks of the given operators (default: all)."""
        of_source, idle = self.of_source, self.idle
        for operator in range(len(self.of_operator)) if operators is None else operators:
            sources = self._sources[operator]
            counting = (
                [] if self.ended_operators[operator] else [of_source[one] for one in sources if not idle[one]]
            )
            mark = (
                min(counting) if counting else max((of_source[one] for one in sources), default=NO_WATERMARK)
            )
            if mark > self.of_operator[operator]:
                self.of_operator[operator] = mark

    def judges_messages(self) -> bool:
        """Whether some actor gets messages only from outside of its circle: these may be late."""
        return bool(self._judged)

    def late_for(self, plan: InputPlan, time_ms: int, receiver: int = -1) -> frozenset[int]:
        """The operators for which a record of this time is late; ``receiver`` is the actor of a message."""
        if plan.is_inbox:
            late = receiver in self._judged and time_ms <= self.of_operator[receiver]
            return frozenset((receiver,)) if late else frozenset()
        if plan.repartitioned:
            return frozenset()
        of_operator, moved = self.of_operator, plan.moves
        return frozenset(one for one in plan.touches if time_ms <= of_operator[one] and one in moved)


def _judged(plan: Plan) -> Iterator[int]:
    """The actors that get messages only from outside of their circles."""
    writers = {one.name: one.writers for one in plan.published}
    for channel in plan.sources[len(plan.inputs) :]:
        actor = next(one for one in plan.actors if one.name == channel.partition(CHANNEL)[2])
        senders = tuple(one.index for one in plan.operators if actor.cls in one.sends)
        if senders == writers[channel]:
            yield actor.index


def published_by(plan: Plan, operators: Mapping[int, int | None]) -> dict[str, int | None]:
    """The watermarks that a task publishes for its topics and channels, given those of its operators.

    No event up to them will follow. None: the operator or topic holds no reader back.
    """
    found: dict[str, int | None] = {}
    for one in plan.published:
        holding = [mark for writer in one.writers if (mark := operators[writer]) is not None]
        mark = min(holding, default=None)
        found[one.name] = mark if mark is None or mark == NO_WATERMARK else mark - one.out_of_order_ms
    return found
