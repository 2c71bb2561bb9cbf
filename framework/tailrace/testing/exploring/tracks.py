"""Tracks: the history of every key of a run, call by call.

An entry of a track is a *step*: one call of a handler, or an expiry. Its ``id`` names its cause in a form
that is the same in every schedule: a record from outside by its offset, a record of the app itself by its
content, a timer by its name and time. Only committed steps count. Steps that a crash undid are handled again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine.observer import Call, Moment, Observer, Watch
from tailrace.core.engine.units import TIMER
from tailrace.core.records import RawOutput
from tailrace.core.unit_ids import ORIGIN_HEADER
from tailrace.testing.exploring.outcome import plain
from tailrace.testing.inputs import written_topics

Id: TypeAlias = tuple[Any, ...]

_LATENESS = ("is_late", "watermark")
LATENESS = (*_LATENESS, "count_late", "fired_to")
"""Attributes of the context that a handler reads if it treats late events in its own way."""


class TrackId(NamedTuple):
    """A key of an actor (its bytes) or of a stateless function (its ``repr``)."""

    operator: str
    key: bytes


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One call of a handler for a key, or an expiry."""

    place: TrackId
    partition: int
    id: Id
    cause: Id
    """The ``id`` without the handler: the record or timer that caused the step."""
    handler: str
    moment: Moment
    reads: frozenset[str] = frozenset()
    """Attributes of its context that the handler has read."""
    outputs: tuple[RawOutput, ...] = ()
    after: tuple[tuple[bytes, bytes], ...] | None = None
    """The rows of the key after the step. Only keys that are followed have them."""
    of_stream: bool = False
    """Whether the event came through a stream, from a handler that was called for the same cause."""

    @property
    def is_timer(self) -> bool:
        """Whether a timer or an expiry caused the step."""
        return self.moment.input == TIMER and not self.of_stream

    @property
    def effect(self) -> tuple[tuple[RawOutput, ...], object]:
        """The outputs, and the state after the step."""
        return self.outputs, self.after


Numbered: TypeAlias = list[tuple[Id, TraceStep]]
"""The steps of a track under ids that are unique in it."""


@dataclass(slots=True)
class Trace:
    """All tracks of a run."""

    tracks: dict[TrackId, list[TraceStep]] = field(default_factory=dict[TrackId, list[TraceStep]])
    passed: dict[Id, Moment] = field(default_factory=dict[Id, Moment])
    """Causes without a successful handler call, such as late events that were dropped."""

    def track(self, place: TrackId) -> list[TraceStep]:
        """The steps of a key, in order."""
        return self.tracks.get(place, [])


class Divergence(NamedTuple):
    """The first relevant difference of two tracks of a key.

    ``order``: ``side`` is the run (0 or 1) in which ``step`` came before ``other``. ``missing``: ``step``
    happened only in run ``side``; there is no other. ``result`` and ``time to live``: ``step`` is of run 0,
    ``other`` is the same step of run 1.
    """

    kind: Literal["result", "time to live", "missing", "order"]
    place: TrackId
    side: int
    step: TraceStep
    other: TraceStep | None


class Tracer:
    """Records the tracks of a run; after each step also the state of the ``followed`` keys of actors."""

    def __init__(self, plan: Plan, followed: Collection[TrackId]) -> None:
        self.trace = Trace()
        self.plan = plan
        self.followed = frozenset(followed)
        written = {*written_topics(plan), plan.inbox_topic}
        self.written = frozenset(one.name for one in plan.inputs if one.name in written)
        """The inputs that the app writes itself. Only their timestamps are compared in outputs."""
        self.keys_of: dict[str, Callable[[Any], bytes]] = {
            one.name: one.key_codec.encode for one in plan.actors
        }
        self._recorders: dict[int, _Recorder] = {}

    def watch(self, partition: int) -> Watch:
        """A watch that records the calls of a task that starts now."""
        recorder = self._recorders[partition] = _Recorder(self, partition)
        return Watch(recorder)

    def committed(self, partition: int) -> None:
        """Add the steps of a task since its last commit to the tracks."""
        recorder = self._recorders[partition]
        for step in recorder.steps:
            track = self.trace.tracks.setdefault(step.place, [])
            track.append(step)
        self.trace.passed |= recorder.passed
        recorder.steps.clear()
        recorder.passed.clear()

    def lost(self, partition: int) -> None:
        """Drop the steps of a task since its last commit."""
        self._recorders.pop(partition, None)


class _Noticing:
    """A proxy for a context that records which attributes are read."""

    __slots__ = ("_context", "_reads")

    def __init__(self, context: Any, reads: set[str]) -> None:
        self._context = context
        self._reads = reads

    def __getattr__(self, name: str) -> Any:
        self._reads.add(name)
        return getattr(self._context, name)


class _Recorder(Observer):
    """Observes one task, from its start to its end."""

    def __init__(self, tracer: Tracer, partition: int) -> None:
        self.steps: list[TraceStep] = []
        self.passed: dict[Id, Moment] = {}
        self._tracer = tracer
        self._partition = partition
        self._reads: set[str] = set()
        self._unit: tuple[int, int] | None = None
        self._first: object = None
        """The first event of the current unit. Another event in the same unit came through a stream."""

    def begins(self, call: Call) -> None:
        self._reads = set()
        moment = call.moment
        if moment.event is None or self._unit != (moment.input, moment.at):
            self._unit, self._first = (moment.input, moment.at), moment.event

    def call(self, _call: Call, handler: Callable[..., None], *arguments: Any) -> None:
        handler(*arguments[:-1], _Noticing(arguments[-1], self._reads))

    def returned(self, call: Call, outputs: Sequence[RawOutput]) -> None:
        moment, actor = call.moment, call.actor
        place = self._place(call)
        cause = self._cause(moment)
        of_stream = moment.event is not self._first
        after = None
        if actor is not None and place in self._tracer.followed:
            found = call.rows()
            after = tuple(sorted((rest, plain(rest, value)) for rest, value in found.items()))
        self.steps.append(
            TraceStep(
                place,
                self._partition,
                (*cause, call.handler, repr(moment.event) if of_stream else ""),
                cause,
                call.handler,
                moment,
                frozenset(self._reads),
                tuple(self._compared(output) for output in outputs),
                after,
                of_stream,
            )
        )

    def _compared(self, output: RawOutput) -> RawOutput:
        topic, key, value, time_ms, headers = output
        headers = tuple(one for one in headers if one[0] != ORIGIN_HEADER)  # which call has sent it
        return topic, key, value, time_ms if topic in self._tracer.written else 0, headers

    def passed_over(self, moment: Moment, _why: str) -> None:
        """See ``Observer.passed_over``. Removes the steps of a failed unit."""
        cause = self._cause(moment)
        self.passed[cause] = moment
        while self.steps and self.steps[-1].cause == cause and self.steps[-1].moment.at == moment.at:
            self.steps.pop()

    def expired(self, moment: Moment, actor: ActorPlan, what: bytes) -> None:
        place = TrackId(actor.name, actor.key_codec.encode(moment.key))
        cause = ("expiry", moment.domain, what, moment.at)
        self.steps.append(TraceStep(place, self._partition, cause, cause, "", moment))

    def _place(self, call: Call) -> TrackId:
        key = call.moment.key
        if call.actor is None:
            return TrackId(call.handler, repr(key).encode())
        return TrackId(call.actor.name, self._tracer.keys_of[call.actor.name](key))

    def _cause(self, moment: Moment) -> Id:
        if moment.input == TIMER:
            return ("timer", moment.domain, moment.timer, moment.at)
        name = self._tracer.plan.inputs[moment.input].name
        if name in self._tracer.written and moment.record is not None:
            return ("written", name, moment.record.key, moment.record.value, moment.record.timestamp_ms)
        return ("record", name, self._partition, moment.at)


def numbered(steps: Sequence[TraceStep]) -> Numbered:
    """The steps of a track under ids that are unique in it."""
    seen: Counter[Id] = Counter()
    found: Numbered = []
    for step in steps:
        found.append(((*step.id, seen[step.id]), step))
        seen[step.id] += 1
    return found


def varying(one: TraceStep, other: TraceStep) -> frozenset[str]:
    """Values that a step read from its context, that depend on the schedule and differ between two runs."""
    reads = one.reads | other.reads
    found = {
        f"ctx.{name}"
        for name in ("now", *_LATENESS)
        if name in reads and getattr(one.moment, name) != getattr(other.moment, name)
    }
    if one.is_timer or one.cause[0] == "written":
        # A timer draws by the event that has set it, and what it sends carries that on.
        found |= {f"ctx.{name}" for name in ("random", "uuid") if name in reads}
    return frozenset(found)
