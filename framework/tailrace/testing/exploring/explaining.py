"""Puts a divergence into words, and finds whether the app declares that it depends on the order of arrival.

The code of an app declares a dependence in these ways:

    late events          the input has late="drop" or late=topic, or the handler reads ctx.is_late or
                         ctx.watermark
    processing time      a processing-time timer, a time to live by processing time, or the handler reads
                         ctx.now
    arrival              the input has event_time=ARRIVAL_TIME: its order of arrival is its order of events
    idleness             an input was silent for longer than its idle_after in one of the schedules, its next
                         events were late, and it says with late= what happens to them
    randomness           the handler draws from ctx.random or ctx.uuid(): that of a timer draws by the event that has set it
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from tailrace.core import rows
from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.engine.describe_rows import entry_name, instant
from tailrace.core.engine.units import TIMER
from tailrace.core.records import Output
from tailrace.history.comparing.outputs import output_event
from tailrace.log.interface import TopicPartition
from tailrace.testing.exploring.feed import Feed
from tailrace.testing.exploring.schedules import Schedule
from tailrace.testing.exploring.tracks import LATENESS, Divergence, Trace, TraceStep, TrackId, varying
from tailrace.testing.inputs import written_topics

_WIDTH = 120
_IDLE = (
    "; inputs were silent for longer than their idle_after in that schedule: declare with late= what happens to the events "
    "that come after that"
)
_KINDS = {
    "ctx.now": "processing time",
    "ctx.is_late": "late events",
    "ctx.watermark": "late events",
    "ctx.fired_to": "late events",
    "ctx.count_late": "late events",
    "ctx.random": "randomness",
    "ctx.uuid": "randomness",
}


class Explained(NamedTuple):
    """A divergence in words. ``declared``: the app's declaration that it depends on; empty if none."""

    sentence: str
    declared: str
    time_ms: int
    """The event time of the step; of two steps, the lower one."""
    handlers: tuple[str, ...]
    timer: str | None
    """Name of the timer if one of the steps is a timer; "" for an unnamed one."""


class Explaining:
    """Puts divergences of two runs into words."""

    def __init__(
        self,
        plan: Plan,
        feed: Feed,
        traces: tuple[Trace, Trace],
        schedules: tuple[Schedule, Schedule],
        names: tuple[str, str],
    ) -> None:
        self._plan = plan
        self._feed = feed
        self._traces = traces
        self._schedules = schedules
        self._names = names
        self._actors = {one.name: one for one in plan.actors}
        self._written = written_topics(plan)

    def explain(self, divergence: Divergence) -> Explained:
        """Describe what happened, and find whether it is declared."""
        steps = [one for one in (divergence.step, divergence.other) if one is not None]
        timers = [one for one in steps if one.is_timer]
        describe = {
            "result": self._result,
            "time to live": self._time_to_live,
            "missing": self._missing,
            "order": self._order,
        }
        sentence, declared = describe[divergence.kind](divergence), self._declared(divergence, steps)
        if not declared and any(map(self._after_silence, steps)):
            sentence += _IDLE
        return Explained(
            f"{self.name(divergence.place)} (partition {divergence.step.partition}): {sentence}",
            declared,
            min(one.moment.event_time for one in steps),
            tuple(dict.fromkeys(one.handler for one in steps if one.handler)),
            next((one.moment.timer or "" for one in timers), None),
        )

    def name(self, place: TrackId) -> str:
        """The actor (or function) and key of a place, as text."""
        actor = self._actors.get(place.operator)
        key = place.key.decode() if actor is None else repr(actor.key_codec.decode(place.key))
        return f"{place.operator} {key}"

    def _order(self, divergence: Divergence) -> str:
        first, second, side = divergence.step, divergence.other, divergence.side
        assert second is not None
        if second.is_timer and not first.is_timer:
            first, second, side = second, first, 1 - side
        here, there = self._names[side], self._names[1 - side]
        was_late = self._version(side, second)
        late = ""
        if was_late is not None and was_late.moment.is_late:
            late = f" (late there: the watermark was {instant(was_late.moment.watermark)})"
        takes = "was handled" if not first.is_timer else "fired" if first.handler else "took effect"
        handled = " was handled" if first.is_timer and not second.is_timer else ""
        came_first = f"{self._short(second)} came first"
        return (
            f"in {here} {self._event(first)} {takes} before {self._event(second)}{handled}{late}; "
            f"in {there} {came_first if second.cause[0] == 'record' else 'it was the other way round'}"
        )

    def _missing(self, divergence: Divergence) -> str:
        step, side = divergence.step, divergence.side
        here, there = self._names[side], self._names[1 - side]
        if step.is_timer:
            return f"{self._event(step)} fired in {here} only"
        passed = self._traces[1 - side].passed.get(step.cause)
        late = self._is_kept_from_handlers(step)
        if passed is not None and not (late and passed.is_late):
            why = "where it failed"
        elif late:
            mark = "" if passed is None else f" at or before the watermark {instant(passed.watermark)} and"
            why = f"where it was{mark} late"
        else:
            why = "where it was not emitted" if step.cause[0] == "written" else "where it was not handled"
        return f"{self._event(step)} was handled in {here}, but not in {there}, {why}"

    def _result(self, divergence: Divergence) -> str:
        one, other = divergence.step, divergence.other
        assert other is not None
        what = "fired" if one.is_timer else "was handled"
        if reads := sorted(varying(one, other)):
            why = f"with another result: its handler asks {' and '.join(reads)}, which was not the same"
        else:
            why = (
                "on the same state with another result: its handler uses more than its event, its state and "
                "its context (a global, a clock, an object that it keeps)"
            )
        sentence = f"{self._event(one)} {what} {why}"
        if one.outputs != other.outputs:
            emits = [self._emits(step) for step in (one, other)]
            sentence += f"; it emits {emits[0]} in {self._names[0]}, {emits[1]} in {self._names[1]}"
        return sentence

    def _time_to_live(self, divergence: Divergence) -> str:
        one, other = divergence.step, divergence.other
        assert other is not None
        marks = [instant(step.moment.watermark) for step in (one, other)]
        return (
            f"what {self._event(one)} left has another time to live, which counts from the watermark where "
            f"that is later: {marks[0]} in {self._names[0]}, {marks[1]} in {self._names[1]}"
        )

    def _emits(self, step: TraceStep) -> str:
        events = [self.output(topic, value) for topic, _, value, _, _ in step.outputs]
        return ", ".join(events) or "nothing"

    def output(self, topic: str, value: bytes | None) -> str:
        """The event of an output, as text."""
        return _cut(repr(output_event(self._plan, Output(topic, None, value, 0))))

    def _event(self, step: TraceStep) -> str:
        moment = step.moment
        if step.is_timer:
            if not step.handler:
                actor = self._actors[step.place.operator]
                return f"the expiry of {entry_name(actor, step.cause[2])} at {instant(moment.at)}"
            kind = "processing timer" if moment.domain == rows.PROCESSING_TIME else "timer"
            if moment.timer is None:
                return f"the unnamed {kind} of {instant(moment.at)}"
            return f"the {kind} {moment.timer!r} of {instant(moment.at)}"
        return f"{self._short(step)} {_cut(repr(moment.event))}"

    def _short(self, step: TraceStep) -> str:
        """The topic and offset of a record; a description if it has none that all schedules share."""
        moment = step.moment
        if step.is_timer:
            return self._event(step)
        if moment.input == TIMER:
            return f"what the timer {moment.timer!r} emitted"
        one = self._plan.inputs[moment.input]
        if one.is_inbox:
            return "the message"
        if one.name in self._written:
            return f"the event of {one.name!r}"
        fed = self._feed.places[TopicPartition(one.name, step.partition)]
        return f"{one.name} @{fed[moment.at].record.offset}"

    def _declared(self, divergence: Divergence, steps: list[TraceStep]) -> str:
        if any(one.is_timer and one.moment.domain == rows.PROCESSING_TIME for one in steps):
            return "processing time: a processing-time timer or time to live"
        for one in steps:
            read = self._input(one)
            if read is not None and read.time_kind == "arrival":
                return f"arrival: {read.name!r} has event_time=ARRIVAL_TIME"
        if divergence.kind == "result":
            assert divergence.other is not None
            reads = varying(divergence.step, divergence.other)
            return _asked(divergence.step, reads) if reads else ""
        read = self._input(divergence.step)
        if divergence.kind == "missing" and read is not None and read.late != "handle":
            return late_events(read)
        if divergence.kind == "missing" and (asked_by := self._left_out(divergence)):
            return asked_by
        for one in steps:
            versions = [found for side in (0, 1) if (found := self._version(side, one)) is not None]
            if not any(found.moment.is_late for found in versions):
                continue
            asked = {f"ctx.{name}" for name in LATENESS for found in versions if name in found.reads}
            if asked:
                return _asked(one, asked)
            if (read := self._input(one)) is not None and self._after_silence(one) and _says_late(read):
                return f"idleness: {read.name!r} became idle, and has late={read.late!r} for the events after that"
        return ""

    def _left_out(self, divergence: Divergence) -> str:
        """What an operator before this one asked, where the same event was late and went no further."""
        tracks = self._traces[1 - divergence.side].tracks.values()
        late = (one for track in tracks for one in track if one.moment.is_late)
        for one in late:
            asked = {f"ctx.{name}" for name in LATENESS if name in one.reads}
            if asked and one.cause == divergence.step.cause:
                return _asked(one, asked)
        return ""

    def _after_silence(self, step: TraceStep) -> bool:
        """Whether an event was late in a schedule in which inputs were silent for longer than their idle_after."""
        return any(
            schedule.silences and (found := self._version(side, step)) is not None and found.moment.is_late
            for side, schedule in enumerate(self._schedules)
        )

    def _is_kept_from_handlers(self, step: TraceStep) -> bool:
        read = self._input(step)
        return read is not None and read.late != "handle"

    def _input(self, step: TraceStep) -> InputPlan | None:
        return None if step.moment.input == TIMER else self._plan.inputs[step.moment.input]

    def _version(self, side: int, step: TraceStep) -> TraceStep | None:
        """The same step in one of the runs; None if it did not happen there."""
        found: Any = (one for one in self._traces[side].track(step.place) if one.id == step.id)
        return next(found, None)


def _says_late(read: InputPlan) -> bool:
    return read.topic is not None and read.topic.settings.late_is_declared


def late_events(read: InputPlan) -> str:
    """The declaration of an input that does not give its late events to its handlers."""
    option = '"drop"' if read.late_topic is None else repr(read.late_topic.name)
    return f"late events: {read.name!r} has late={option}"


def _asked(step: TraceStep, reads: Collection[str]) -> str:
    kind = next(kind for read, kind in _KINDS.items() if read in reads)
    return f"{kind}: {step.handler} asks {' and '.join(sorted(reads))}"


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
