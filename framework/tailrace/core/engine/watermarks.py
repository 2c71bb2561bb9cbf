"""Watermarks: how far event time has advanced, for each source and each operator.

Theory. A source's watermark means "all events up to this time have been read". It comes from one of:

    events        highest event time read - allowed disorder - 1 ms
    upstream      the watermark published by the writers of the topic or channel, once the reader reaches it
    none          reference data and feedback: no operator uses it

An operator's watermark is the lowest of its sources' watermarks (see ``declare.flow``), without idle sources.
If all sources are idle, or all input of the operator has ended, it is the highest of theirs. It never goes
back, whatever a source does: a source that wakes up behind it finds its records late. The inputs of other
operators do not affect it. Nothing here reads a clock; the driver reports that a source is idle.

An *ordered* operator handles its events in the order of their times, once its watermark has passed them. It has
two values: ``ready``, the watermark as above, and ``of_operator``, the time up to which it
has handled everything, which its handlers see, its timers go by and its readers follow. Between two steps they
are equal. If all its sources are idle or have ended, ``ready`` rises to the highest time of an event that waits, so
that none waits any longer. Operators that are connected by streams do all of this together: they have the same sources, they end when
all of them have, and then rise to the last event or timer of any of them. For any other operator there is only one value.

A record is late for an operator if its input is one of the operator's sources and its time is at or before
the operator's watermark. So one record may be late for one operator and not for another.

The source of a late record tells why it is late. At or before the source's own watermark, it is more out of
order than its input declares. Above it, it would be in time if the source had counted: the operator advanced
without it while it was idle. Such records are counted by source (``idleness``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import copy

from tailrace.core.declare.plan import InputPlan, Plan, Published
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.tape import Cut, Idleness
from tailrace.core.engine.timers import FOREVER
from tailrace.core.records import CHANNEL


class Watermarks:
    """The watermarks of a task: ``of_source`` and ``of_operator``, by their numbers in the plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sources = tuple(one.sources for one in plan.operators)
        self.together = tuple(one.together for one in plan.operators)
        self._concerned = tuple(tuple(sorted({*one.touches, *one.moves})) for one in plan.inputs)
        self._alike = tuple(not one.moves or set(one.touches) <= set(one.moves) for one in plan.inputs)
        self.of_source = [NO_WATERMARK] * len(plan.sources)
        self.idle = [False] * len(plan.sources)
        self.of_operator = [NO_WATERMARK] * len(plan.operators)
        tables = {operator for one in plan.inputs if one.broadcast for operator in one.touches}
        self._moving = [one.index for one in plan.operators if one.sources and one.index not in tables]
        """All operators but those of broadcast topics."""
        self._ordered = tuple(one.ordered for one in plan.operators)
        self.ready = [NO_WATERMARK] * len(plan.operators) if any(self._ordered) else self.of_operator
        """The same list as ``of_operator`` if no operator is ordered."""
        self.waiting_until: Callable[[int], int] = lambda _operator: NO_WATERMARK
        """The highest time of an event that waits in an ordered operator."""
        self._judged = frozenset(_judged(plan))
        self.ended_operators = [False] * len(plan.operators)
        """Operators that get no more input."""
        self.limits = [FOREVER] * len(plan.operators)
        """In a rebuild to a cut: by operator, the watermark beyond which its sources do not raise it."""
        self.idleness: dict[str, Idleness] = {}
        """By name of the source, if it has ever been idle."""

    def resume(self, cut: Cut) -> None:
        """Take the watermarks of a cut. A source that the cut does not have starts without any event; a new
        operator starts with its sources.
        """
        for number, name in enumerate(self._plan.sources):
            self.of_source[number] = cut.watermarks.get(name, NO_WATERMARK)
            self.idle[number] = name in cut.idle
        self.ended_operators = [one.name in cut.ended_operators for one in self._plan.operators]
        self.idleness = {name: copy(one) for name, one in cut.idleness.items()}
        known = cut.operators
        self.of_operator[:] = [known.get(one.name, NO_WATERMARK) for one in self._plan.operators]
        self.ready[:] = [
            cut.ordered[one.name].ready if one.name in cut.ordered else self.of_operator[one.index]
            for one in self._plan.operators
        ]
        self.advance([one.index for one in self._plan.operators if one.name not in known])

    def count_only(self, names: Collection[str]) -> None:
        """In a replay: no operator waits for a source that the first run did not have yet."""
        known = {number for number, name in enumerate(self._plan.sources) if name in names}
        self._sources = tuple(
            tuple(source for source in one.sources if source in known) for one in self._plan.operators
        )

    def noted(self) -> tuple[dict[str, int], list[str], int]:
        """For a cut, by name: watermarks of sources, idle sources, the lowest operator watermark."""
        names = self._plan.sources
        watermarks = dict(zip(names, self.of_source, strict=True))
        return watermarks, [name for name, idle in zip(names, self.idle, strict=True) if idle], self.lowest

    @property
    def lowest(self) -> int:
        """The lowest watermark of all operators that advance with the app's events."""
        return min((self.of_operator[one] for one in self._moving), default=NO_WATERMARK)

    @property
    def of_first_level(self) -> int:
        """The lowest watermark of the operators nearest to the sources; all other operators follow these."""
        first = [one for one in self._moving if not self._plan.operators[one].level]
        return min((self.of_operator[one] for one in first), default=NO_WATERMARK)

    def has_ended(self, operator: int) -> bool:
        """Whether an operator, and all that are together with it, get no more input."""
        ended = self.ended_operators
        return ended[operator] and all(ended[one] for one in self.together[operator])

    def holds_nobody_back(self, operator: int) -> bool:
        """Whether all sources of an operator are idle, so that its next watermark may take long."""
        sources = self._sources[operator]
        idle = bool(sources) and all(self.idle[source] for source in sources)
        is_within_drain = self.ready[operator] > self.of_operator[operator]
        return idle and not self.has_ended(operator) and not is_within_drain

    def fall_idle(self, source: int, since_ms: int) -> None:
        """Mark a source as idle, which has had nothing to read since ``since_ms``."""
        self.idle[source] = True
        name = self._plan.sources[source]
        known = self.idleness.setdefault(name, Idleness(since_ms))
        known.since_ms, known.woke_ms = since_ms, None

    def note_late(self, source: int, behind_ms: int, now_ms: int) -> None:
        """Count a late event above its source's own watermark, if the source has ever been idle."""
        known = self.idleness.get(self._plan.sources[source])
        if known is None:
            return  # the source is new: the operator is older
        known.late += 1
        if known.woke_ms is None:
            known.woke_ms, known.behind_ms = now_ms, behind_ms
            known.idle_ms = now_ms - known.since_ms

    def channel_of(self, actor: int) -> int:
        """The source of the messages to an actor that ``judges_messages``."""
        return next(one for one in self._sources[actor] if one >= len(self._plan.inputs))

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

        None if operators differ in either, if the input moves only some of them, or if it has nothing but redriven records.
        """
        if not self._alike[number] or not self._concerned[number]:
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
        return max((of_operator[one] for one in self._concerned[number]), default=NO_WATERMARK)

    def ceiling(self, operator: int, but: int) -> int:
        """The lowest watermark of an operator's counting sources except ``but``, which is its limit."""
        least = self.limits[operator]
        for source in () if self.has_ended(operator) else self._sources[operator]:
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
                [] if self.has_ended(operator) else [of_source[one] for one in sources if not idle[one]]
            )
            mark = min(counting) if counting else self._highest_read(operator)
            mark = min(mark, self.limits[operator])
            if mark > self.ready[operator]:
                self.rise(operator, mark)

    def rise(self, operator: int, to_ms: int) -> None:
        """Raise the watermark of an operator. An ordered one follows in its sweep."""
        self.ready[operator] = to_ms
        if not self._ordered[operator]:
            self.of_operator[operator] = to_ms

    def _highest_read(self, operator: int) -> int:
        """The watermark of an operator whose sources do not count."""
        mark = max((self.of_source[one] for one in self._sources[operator]), default=NO_WATERMARK)
        if not self._ordered[operator]:
            return mark
        return max(mark, *(self.waiting_until(one) for one in self.together[operator]))

    def reach(self, time_ms: int) -> None:
        """Let the ordered operators advance to a time, each as far as it is ready."""
        of_operator, ready = self.of_operator, self.ready
        for operator, ordered in enumerate(self._ordered):
            if ordered and of_operator[operator] < time_ms:
                to_ms = ready[operator] if ready[operator] < time_ms else time_ms  # noqa: FURB136  # faster
                if to_ms > of_operator[operator]:
                    of_operator[operator] = to_ms

    def waiting_for(self, plan: InputPlan) -> tuple[int, ...]:
        """The ordered operators in which the events of an input wait."""
        takers = {route.operator for route in plan.routes}
        able = self._judged if plan.is_inbox else takers.intersection(plan.moves)
        return tuple(one for one in able if self._ordered[one] and not plan.repartitioned)

    def judges_messages(self) -> bool:
        """Whether some actor gets messages only from outside of its circle: these may be late."""
        return bool(self._judged)

    def late_for(self, plan: InputPlan, time_ms: int, receiver: int = -1) -> frozenset[int]:
        """The operators for which a record of this time is late; ``receiver`` is the actor of a message."""
        if plan.is_inbox:
            late = receiver in self._judged and time_ms <= self.ready[receiver]
            return frozenset((receiver,)) if late else frozenset()
        if plan.repartitioned or plan.broadcast:
            return frozenset()
        ready, moved = self.ready, plan.moves
        return frozenset(one for one in plan.touches if time_ms <= ready[one] and one in moved)


def _judged(plan: Plan) -> Iterator[int]:
    """The actors that get messages only from outside of their circles."""
    writers = {one.name: one.writers for one in plan.published}
    for channel in plan.sources[len(plan.inputs) :]:
        actor = next(one for one in plan.actors if one.name == channel.partition(CHANNEL)[2])
        senders = tuple(one.index for one in plan.operators if actor.cls in one.sends)
        if senders == writers[channel]:
            yield actor.index


def published_by(
    published: Iterable[Published], operators: Mapping[int, int | None]
) -> dict[str, int | None]:
    """The watermarks that a task publishes for topics and channels, given those of their writers.

    No event up to them will follow. None: the operator or topic holds no reader back.
    """
    found: dict[str, int | None] = {}
    for one in published:
        holding = [mark for writer in one.writers if (mark := operators[writer]) is not None]
        mark = min(holding, default=None)
        found[one.name] = mark if mark is None or mark == NO_WATERMARK else mark - one.out_of_order_ms
    return found
