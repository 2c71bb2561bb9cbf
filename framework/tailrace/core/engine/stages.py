"""Stages: how history is run again in event-time order, a part of the graph at a time.

Theory. A *node* is an operator with those that streams connect with it: they work in one step. A *stage* has the nodes whose
inputs are known once the stages before it are done: the first those that read from outside only. So what a stage reads is at rest
before it begins, and each partition of a stage is a unit of work of its own. What it sends goes to files, sorted by place (see
``engine.ordering``); the next stages read them merged.

    from outside   each partition in the order of its offsets, lateness judged as live (``stage_order``)
    sent before    in the order of places: event time, then sender's operator, partition and number
    handled        in an ordered operator by place, in any other as it is taken

So an ordered operator, and one that handles a single input from outside on arrival, are equal to live. Any other operator gets
*one* order, which depends on the records alone. What was sent behind the watermark of its sender is in time here (``Behind``).

A table that is broadcast is read by those that look it up, within their step. So it runs in each of their stages; its state is
kept in the first. An input that several stages read is counted in the first: there its records are refused, and its late ones routed.

A node that reads what it writes, itself or by way of others, is a *circle*. It has no stage, and the app is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from tailrace.core.declare.actor import declaration_of
from tailrace.core.declare.broadcast import SharedField
from tailrace.core.declare.plan import InputPlan, Plan, Published
from tailrace.core.engine import tape
from tailrace.core.errors import OptionError
from tailrace.core.handling.promises import Promises
from tailrace.core.records import CHANNEL


def own_inputs(plan: Plan) -> dict[str, InputPlan]:
    """The inputs that the app may write, by name: its inbox, if it sends messages, and targets of its operators or late events."""
    written = plan.written
    return {
        one.name: one for one in plan.inputs if (one.is_inbox and plan.has_messages) or one.name in written
    }


def has_circle(plan: Plan) -> bool:
    """Whether operators of a plan feed each other, so that it has no stages."""
    try:
        Stages(plan)
    except OptionError:
        return True
    return False


class Stages:
    """The stages of a plan. ``of``: by operator, the number of its stage. Raises OptionError: the plan has a circle."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._tables = _looked_up(plan)
        self.of = self._numbers()
        self.count = 1 + max(self.of.values(), default=0)

    def _numbers(self) -> dict[int, int]:
        plan = self.plan
        node = {one.index: {one.index} for one in plan.operators}
        for stream, routes in zip(plan.streams, plan.routes_of_stream, strict=True):
            joined = {one.index for one in plan.operators if stream in one.emits}
            joined |= {route.operator for route in routes}
            for group in [node[one] for one in joined]:
                joined |= group
            node |= dict.fromkeys(joined, joined)
        edges = [(writer, taker, 1) for writer, taker in _sent(plan)]
        edges += [(table, looker, 0) for looker, tables in self._tables.items() for table in tables]
        found = dict.fromkeys(node, 0)
        before = dict(found)
        for _ in range(len(node) + 1):
            before = dict(found)
            for writer, taker, more in edges:
                found[taker] = max(found[taker], found[writer] + more)
            for group in node.values():
                found |= dict.fromkeys(group, max(found[one] for one in group))
            if found == before:
                return found
        raise _circle(plan, [one for one in node if found[one] > before[one]])

    def here(self, number: int) -> frozenset[int]:
        """The operators that run in a stage: its own, and the tables that these look up."""
        own = {one for one, stage in self.of.items() if stage == number}
        return frozenset(own.union(*(self._tables.get(one, ()) for one in own)))

    def reads(self, name: str) -> list[int]:
        """The stages in which a source is read, ascending: an input, or the messages of a channel."""
        takers = set(_takers(self.plan, name))
        return [number for number in range(self.count) if not takers.isdisjoint(self.here(number))]

    def plan_of(self, number: int) -> Plan:
        """The plan in which only the operators of a stage get events, and what an earlier one routes is not routed again."""
        plan, operators = self.plan, self.here(number)

        def here(some: Sequence[int]) -> tuple[int, ...]:
            return tuple(one for one in some if one in operators)

        def of(one: InputPlan) -> InputPlan:
            routes = tuple(route for route in one.routes if route.operator in operators)
            again = bool(routes) and self.reads(one.name)[0] < number
            return replace(
                one,
                routes=routes,
                touches=here(one.touches),
                moves=here(one.moves),
                late_topic=None if again else one.late_topic,
            )

        return replace(
            plan,
            operators=tuple(
                one if one.index in operators else replace(one, sources=()) for one in plan.operators
            ),
            inputs=tuple(map(of, plan.inputs)),
        )

    def channels(self, number: int) -> list[str]:
        """The channels of the actors of a stage."""
        plan = self.plan
        return [
            name
            for name in plan.sources[len(plan.inputs) :]
            if any(self.of[one] == number for one in _takers(plan, name))
        ]

    def published_in(self, number: int) -> list[Published]:
        """The topics and channels that a stage writes, with its writers."""
        found = [
            replace(one, writers=tuple(writer for writer in one.writers if self.of[writer] == number))
            for one in self.plan.published
        ]
        return [one for one in found if one.writers]

    def actors(self, number: int) -> frozenset[str]:
        """The actors whose state a stage makes. Those that the plan does not have any more are in the first."""
        return frozenset(one.name for one in self.plan.actors if self.of[one.index] == number)

    # --- cuts

    def part_of(self, cut: tape.Cut, number: int) -> tape.Cut:
        """What a cut says about the operators of a stage."""
        names = {self.plan.operators[one].name for one in self.here(number)}
        known = {one.name for one in self.plan.operators}
        return msgspec.structs.replace(
            cut,
            operators={name: at for name, at in cut.operators.items() if name in names},
            ended_operators=[name for name in cut.ended_operators if name in names],
            ordered={
                name: one
                for name, one in cut.ordered.items()
                if name in names or (number == 0 and name not in known)
            },
            totals=msgspec.structs.replace(cut.totals) if number == 0 else tape.Totals(),
            idleness=cut.idleness if number == 0 else {},
        )

    def joined(self, cuts: Sequence[tape.Cut], positions: Mapping[str, int], twice: int) -> tape.Cut:
        """The cut of a task after all stages. ``positions``: those in the inputs that the app writes. ``twice``: how many records
        were counted in another stage, too.
        """
        found = cuts[-1]
        at = {name: self.reads(name) or [0] for name in self.plan.sources}
        found.positions = {
            one.name: positions[one.name]
            if one.name in positions
            else max(cut.positions[one.name] for cut in cuts)
            for one in self.plan.inputs
        }
        found.watermarks = {name: max(cuts[n].watermarks[name] for n in some) for name, some in at.items()}
        of_operator = {one.index: cuts[self.of[one.index]].operators[one.name] for one in self.plan.operators}
        for name in {*own_inputs(self.plan), *self.plan.sources[len(self.plan.inputs) :]}:
            # What is still to be sent there is behind nothing that its readers have reached.
            marks = [of_operator[one] for one in _takers(self.plan, name)]
            found.watermarks[name] = min(marks, default=found.watermarks[name])
        found.idle = [name for name, some in at.items() if any(name in cuts[n].idle for n in some)]
        found.idleness = {name: one for cut in cuts for name, one in cut.idleness.items()}
        found.refused = {name: some for cut in cuts for name, some in cut.refused.items()}
        cut_of = {one.name: cuts[self.of[one.index]] for one in self.plan.operators}
        found.operators = {name: cut.operators[name] for name, cut in cut_of.items()}
        found.ended_operators = [name for name, cut in cut_of.items() if name in cut.ended_operators]
        found.ordered = {name: cut.ordered[name] for name, cut in cut_of.items() if name in cut.ordered}
        found.watermark = min((found.operators[one] for one in self._moving()), default=found.watermark)
        found.now = max(cut.now for cut in cuts)
        found.sent, outputs = tape.highest([cut.sent for cut in cuts]), found.totals.outputs
        names = tape.Totals.__struct_fields__
        found.totals = tape.Totals(*(sum(getattr(cut.totals, name) for cut in cuts) for name in names))
        found.totals.outputs, found.totals.records = outputs, found.totals.records - twice
        return found

    def _moving(self) -> list[str]:
        tables = {operator for one in self.plan.inputs if one.broadcast for operator in one.touches}
        return [one.name for one in self.plan.operators if one.sources and one.index not in tables]


def _sent(plan: Plan) -> Iterator[tuple[int, int]]:
    """Pairs of operators of which the first may write what the second takes from a topic or its inbox."""
    for taker in plan.operators:
        for one in plan.inputs:
            if one.topic is None or all(route.operator != taker.index for route in one.routes):
                continue
            for writer in plan.operators:
                if any(edge.name == one.name and not edge.is_stream for edge in writer.emits):
                    yield writer.index, taker.index
            for late in plan.inputs:  # its late events come from the stage in which it is read
                if late.late_topic is not None and late.late_topic.name == one.name:
                    yield from ((route.operator, taker.index) for route in late.routes)
    for actor in plan.actors:
        yield from ((one.index, actor.index) for one in plan.operators if actor.cls in one.sends)


def _takers(plan: Plan, name: str) -> Iterator[int]:
    """The operators that handle a topic, or the messages of a channel."""
    _, is_channel, actor = name.partition(CHANNEL)
    if is_channel:
        yield from (one.index for one in plan.operators if one.actor is not None and one.name == actor)
    for one in plan.inputs:
        if one.name == name and one.is_inbox:
            yield from (actor.index for actor in plan.actors if actor.messages)
        elif one.name == name:
            yield from {route.operator for route in one.routes}


def _looked_up(plan: Plan) -> dict[int, list[int]]:
    """By operator, the tables of broadcast topics that it looks up."""
    numbers = {one.name: one.index for one in plan.actors}
    found: dict[int, list[int]] = {}
    for actor in plan.actors:
        for one in declaration_of(actor.cls).components.values():
            if isinstance(one, SharedField):
                found.setdefault(actor.index, []).append(numbers[one.topic.name])
    return found


def _circle(plan: Plan, rising: Collection[int]) -> OptionError:
    """The error for operators that feed each other. ``rising``: those of a circle, and those behind it."""
    names = next((names for names in plan.circles), tuple(plan.operators[one].name for one in rising))
    return OptionError(
        f"{' and '.join(names)} {'read what they write themselves' if len(names) > 1 else 'reads what it writes itself'}: in "
        "event-time order none of them can be run before the others",
        hint="Rebuild it along the tape (tailrace rebuild --order tape, for an earlier state with --until TIME), with code whose "
        "results are those that are recorded.",
    )


class Behind(Promises):
    """Counts what handlers emit at or before the time that they have reached: whether it is late live depends on the others."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.marks = _Marks(self, {one.name: one.out_of_order_ms for one in plan.published})


class _Marks(dict[str, int]):
    def __init__(self, of: Promises, disorder_ms: dict[str, int]) -> None:
        super().__init__(disorder_ms)
        self._of = of

    def get(self, name: str, default: Any = None) -> Any:
        """The time up to which the handler that runs has nothing more to emit to a topic."""
        disorder_ms = super().get(name)
        return default if disorder_ms is None else self._of.context.fired_to - disorder_ms
