"""Rounds along the graph: canonical order for an app that sends to itself, one partition and one round at a time.

Theory. What an ordered operator does is a function of the *set* of its events (see ``ordering``): it handles them by
event time, then by input, then by sender, and its timers lie between them. So its senders need not run beside it. A
*round* has the operators whose events are known once the rounds before are done: the first one those that read from
outside only, and operators that streams connect are in one round. What a round sends goes to files. The next one reads
them in the order of (event time, sending round, sending partition, number): that is the order of their offsets. Those of equal times
are handled in the order of their senders and running numbers, which the rounds count as one run does.

    watermark    of what is sent: up to the last event that was read, and at the end what the senders publish
    idle         an input is idle from its end on if, by the timestamp of its last record, it has ended its
                 ``idle_after`` before the last of all; or if it is empty. As of a time, and at the end of input, no
                 input is: then a sender holds its readers back until its timers have fired
    clock        a unit has one of its own. ``ctx.now`` depends on the schedule in a service, too
    numbers      outputs of a partition are numbered round by round

All that differs from one run over all partitions is these numbers. Where anything else could
differ, the app is not run in rounds: ``whole_because`` and ``Behind``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tailrace.core import rows
from tailrace.core.declare.plan import InputPlan, OperatorPlan, Plan, Published
from tailrace.core.engine import tape
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.handling.promises import Promises
from tailrace.core.records import CHANNEL


class NotInRoundsError(Exception):
    """An app cannot be run in rounds, for the reason that this says: run all its partitions as one."""


Round = dict[int, int]
"""By operator, the number of its round."""


def rounds_of(plan: Plan) -> Round:
    """The rounds of a plan without circles."""
    found = {one.index: 0 for one in plan.operators}
    together = [
        {one.index for one in plan.operators if stream in one.emits} | {route.operator for route in routes}
        for stream, routes in zip(plan.streams, plan.routes_of_stream, strict=True)
    ]
    for _ in plan.operators:
        for one in plan.published:
            after = 1 + max(found[writer] for writer in one.writers)
            found |= {taker: max(after, found[taker]) for taker in takers_of(plan, one.name)}
        for _ in together:
            for group in together:
                found |= dict.fromkeys(group, max(found[one] for one in group))
    return found


def takers_of(plan: Plan, name: str) -> Iterator[int]:
    """The operators that handle a topic, or the messages of a channel."""
    _, is_channel, actor = name.partition(CHANNEL)
    if is_channel:
        yield from (one.index for one in plan.operators if one.actor is not None and one.name == actor)
    yield from {route.operator for one in plan.inputs if one.name == name for route in one.routes}


def whole_because(plan: Plan) -> str:
    """Why an app that sends to itself cannot be run in rounds, as text. Empty if it can be."""
    own = own_inputs(plan)
    if plan.partitions == 1:
        return "it has one partition"
    if plan.circles:
        return f"{' and '.join(plan.circles[0])} send to each other in a circle"
    if plan.tracing:
        return "it has traces"
    for actor in plan.actors:
        lists = [one.ttl_domain for one in (*actor.maps, *actor.lists)]
        if actor.processing_timers or rows.PROCESSING_TIME in [*lists, *(one.domain for one in actor.ttls)]:
            return f"{actor.name} has timers of processing time"
    for one in plan.inputs:
        if not one.is_inbox and (
            one.broadcast or one.watermark != ("upstream" if one.name in own else "events")
        ):
            return f"the watermark of {one.name} does not follow its {'writers' if one.name in own else 'events'}"
        if one.late_topic is not None and one.late_topic.name in own:
            return f"it reads its late events from {one.late_topic.name}"
    for operator in plan.operators:
        if not operator.ordered and not _reads_one(plan, operator, own):
            return f'{operator.name} handles events on arrival (order="arrival")'
    return ""


def _reads_one(plan: Plan, operator: OperatorPlan, own: Mapping[str, InputPlan]) -> bool:
    """Whether an operator gets the events of one input from outside, in the order of their offsets, and nothing else."""
    read = {one.index for one in plan.inputs if operator.index in one.touches} | {*operator.sources}
    return len(read) == 1 and all(one < len(plan.inputs) and plan.inputs[one].name not in own for one in read)


def plan_of_round(plan: Plan, rounds: Round, number: int) -> Plan:
    """The plan in which only the operators of a round get events."""

    def here(operators: Sequence[int]) -> tuple[int, ...]:
        return tuple(one for one in operators if rounds[one] == number)

    return replace(
        plan,
        operators=tuple(
            one if rounds[one.index] == number else replace(one, sources=()) for one in plan.operators
        ),
        inputs=tuple(
            replace(
                one,
                routes=tuple(route for route in one.routes if rounds[route.operator] == number),
                touches=here(one.touches),
                moves=here(one.moves),
            )
            for one in plan.inputs
        ),
    )


def published_in(plan: Plan, rounds: Round, number: int) -> list[Published]:
    """The topics and channels that a round writes, with its writers."""
    found = [
        replace(one, writers=tuple(w for w in one.writers if rounds[w] == number)) for one in plan.published
    ]
    return [one for one in found if one.writers]


class Behind(Promises):
    """Counts what handlers emit at or before the time that they have reached: whether it is late depends on the others."""

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


def joined(
    plan: Plan, rounds: Round, cuts: Sequence[tape.Cut], ends: Mapping[str, int], now_ms: int, twice: int
) -> bytes:
    """The cut of a task after all rounds. ``twice``: how many records another round has counted, too."""
    found, own = cuts[-1], own_inputs(plan)
    at = {
        name: {rounds[one.index] for one in plan.operators if number in one.sources} or {0}
        for number, name in enumerate(plan.sources)
    }
    found.positions = {
        one.name: ends.get(one.name, 0) if one.name in own else max(cut.positions[one.name] for cut in cuts)
        for one in plan.inputs
    }
    found.watermarks = {name: max(cuts[n].watermarks[name] for n in some) for name, some in at.items()}
    found.idle = [name for name, some in at.items() if any(name in cuts[n].idle for n in some)]
    found.idleness = {name: one for cut in cuts for name, one in cut.idleness.items()}
    found.refused = {name: some for cut in cuts for name, some in cut.refused.items()}
    cut_of = {one.name: cuts[rounds[one.index]] for one in plan.operators}
    found.operators = {name: cut.operators[name] for name, cut in cut_of.items()}
    found.ended_operators = [name for name, cut in cut_of.items() if name in cut.ended_operators]
    found.ordered = {name: cut.ordered[name] for name, cut in cut_of.items() if name in cut.ordered}
    found.watermark, found.now = min(found.operators.values()), now_ms
    found.sent, outputs = tape.highest([cut.sent for cut in cuts]), found.totals.outputs
    names = tape.Totals.__struct_fields__
    found.totals = tape.Totals(*(sum(getattr(cut.totals, name) for cut in cuts) for name in names))
    found.totals.outputs, found.totals.records = outputs, found.totals.records - twice
    return tape.encode(found)
