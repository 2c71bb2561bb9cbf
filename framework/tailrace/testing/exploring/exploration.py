"""An exploration: the reference run, the runs of other schedules, and the causes of their differences.

Recording the calls of a run costs time, so most runs are only compared with the reference. If one differs, it
and the reference are run again, and every handler call is recorded. This works because a schedule can be
repeated. If the second run of a schedule differs from its first, the report says that instead: a handler then
depends on more than the schedule.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias, TypedDict, Unpack

from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Topic
from tailrace.core.engine.describe_rows import ABSENT, Change, describe_changes, shown_key
from tailrace.core.errors import UsageError
from tailrace.core.records import Output
from tailrace.history.comparing.differences import Difference
from tailrace.history.comparing.outputs import output_event
from tailrace.history.replay.replaying import seldom_collected
from tailrace.testing.exploring.divergences import Divergences
from tailrace.testing.exploring.driving import Ends, Run
from tailrace.testing.exploring.explaining import Explained, Explaining, late_events
from tailrace.testing.exploring.feed import Feed
from tailrace.testing.exploring.outcome import Item, Outcome, Where, differing, is_order_only
from tailrace.testing.exploring.report import SHOWN, Dependence, ExploreReport, ScheduleDependentError
from tailrace.testing.exploring.schedules import Schedule, drawn
from tailrace.testing.exploring.tracks import Divergence, Trace, Tracer, TrackId

_LOOKED_INTO = 12
"""The most schedules of each kind that are run again to find why they differ."""
_IN_VAIN = 4
"""After this many in a row without a new cause, no more schedules of the kind are run again."""
_TARGETS = 60
"""The most keys of one schedule whose cause is searched."""
_ROUNDS = 3
"""Maximum rounds of the search. Each also records the state of the keys that the last one led to."""

Group: TypeAlias = tuple[object, ...]
"""Identifies a kind of cause. Keys with the same kind of cause are reported together."""
OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with the number of schedules run so far, and the number of all."""


class RunOptions(TypedDict, total=False):
    """Options of ``explore`` for its runs and its comparison. All of them are optional."""

    schedules: int
    """Number of schedules, the reference included (default: 200)."""
    seed: int
    """Seed that the schedules are drawn from (default: 0). The same seed and number give the same schedule.
    """
    schedule: int | None
    """Run only this schedule and the reference, for example one from a report (default: None, run all)."""
    unordered: Iterable[Topic[Any, Any]]
    """Topics in which the order of outputs does not matter, not even under one key (default: none)."""
    idleness: bool
    """Let inputs be silent for longer than their ``idle_after`` in some schedules (default: True)."""


class ExploreOptions(RunOptions, total=False):
    """All options of ``explore``: those of ``RunOptions``, and which differences are an error."""

    strict: bool
    """Treat declared dependence on the order of arrival as an error, too (default: False)."""


def explore_feed(
    plan: Plan,
    feed: Feed,
    *,
    schedules: int = 200,
    seed: int = 0,
    schedule: int | None = None,
    unordered: Iterable[Topic[Any, Any]] = (),
    idleness: bool = True,
    now_ms: int = 0,
    on_progress: OnProgress | None = None,
) -> ExploreReport:
    """Run a feed under many schedules, or under one and the reference, and compare. See ``ExploreOptions``.

    ``now_ms`` is the first clock reading of each run.

    Raises:
        HandlerError, BadRecordError: A handler failed, and the app stops on failures; a note names the
        schedule.
        UsageError: The feed is empty, or there is no such schedule.
    """
    if schedules < 1 or (schedule is not None and schedule < 0):
        raise UsageError(
            "there is no such schedule", hint="Give 1 schedule or more; their numbers begin with 0."
        )
    if not feed.count:
        raise UsageError(
            f"there is no event for any input of the app {plan.app!r}",
            hint="Send events first, or give a history.",
        )
    begun_s = time.perf_counter()
    free = frozenset(one.name for one in unordered)
    exploration = _Exploration(plan, feed, seed, free, now_ms, idleness=idleness)
    numbers = range(1, schedules) if schedule is None else (schedule,)
    with seldom_collected():
        exploration.run(numbers, on_progress or _nobody)
    exploration.report.seconds = time.perf_counter() - begun_s
    return exploration.report


def explore_or_raise(
    plan: Plan, feed: Feed, now_ms: int, *, strict: bool = False, **options: Unpack[RunOptions]
) -> ExploreReport:
    """As ``explore_feed``, but raises if results depend on the schedule.

    A declared dependence is an error only with ``strict``.

    Raises:
        ScheduleDependentError: A result depends on the schedule.
    """
    report = explore_feed(plan, feed, now_ms=now_ms, **options)
    if report.errors or (strict and not report.equal):
        raise ScheduleDependentError(report)
    return report


class _Exploration:
    def __init__(
        self, plan: Plan, feed: Feed, seed: int, unordered: frozenset[str], now_ms: int, *, idleness: bool
    ) -> None:
        self.report = ExploreReport(plan.app, seed, records=feed.count)
        self._plan = plan
        self._feed = feed
        self._seed = seed
        self._unordered = unordered
        self._now_ms = now_ms
        self._idleness = idleness
        self._ends = Ends.of(plan, feed)
        self._reference = self._run(0)
        self._found: dict[Group, tuple[Dependence, set[Where]]] = {}
        self._blamed: set[Where] = set()
        """Keys with an undeclared dependence: no further cause is searched."""
        self._variants: set[tuple[Where, tuple[Item, ...]]] = set()
        """Results whose cause was searched."""
        self._keys = set(self._reference)

    def run(self, numbers: Collection[int], on_progress: OnProgress) -> None:
        """Run the schedules of these numbers, and compare each with the reference."""
        self.report.schedules = 1
        looked_into, in_vain = Counter[str](), Counter[str]()
        for done, number in enumerate(numbers, 1):
            on_progress(done, len(numbers))
            outcome = self._run(number)
            self.report.schedules += 1
            self._keys |= outcome.keys()
            wheres = differing(self._plan, self._reference, outcome, self._unordered)
            if not wheres:
                continue
            self.report.differing[number] = len(wheres)
            new = [where for where in wheres if self._is_new(where, outcome)]
            if not new:
                continue
            kind = self._schedule(number).kind
            if looked_into[kind] == _LOOKED_INTO or in_vain[kind] == _IN_VAIN:
                self.report.unexplained += 1
                continue
            looked_into[kind] += 1
            known = len(self._found)
            if not self._look_into(number, outcome, _some(new)):
                break
            in_vain[kind] = 0 if len(self._found) > known else in_vain[kind] + 1
        self.report.keys = len(self._keys)

    def _is_new(self, where: Where, outcome: Outcome) -> bool:
        """Whether this result of a key may have a cause that is not known yet."""
        return where not in self._blamed and _variant(where, outcome) not in self._variants

    def _run(self, number: int, tracer: Tracer | None = None) -> Outcome:
        schedule = self._schedule(number)
        try:
            return Run(self._plan, self._feed, schedule, self._ends, self._now_ms, tracer).run()
        except Exception as error:
            error.add_note(f"in schedule {number} of seed {self._seed}: {schedule}")
            raise

    def _schedule(self, number: int) -> Schedule:
        return drawn(self._plan, self._feed, self._seed, number, idleness=self._idleness)

    def _traced(self, number: int, followed: Collection[TrackId]) -> tuple[Outcome, Trace]:
        tracer = Tracer(self._plan, followed)
        return self._run(number, tracer), tracer.trace

    # --- why two runs differ

    def _look_into(self, number: int, outcome: Outcome, targets: list[Where]) -> bool:
        """Find why a schedule differs. Returns False if it cannot: a repeated run gave other results."""
        self._variants |= {_variant(where, outcome) for where in targets}
        followed = {TrackId(one.name, one.key or b"") for one in targets if one.kind == "state"}
        actors = {one.name for one in self._plan.actors}
        rounds = 0
        while True:
            runs = [self._traced(one, followed) for one in (0, number)]
            for one, expected, (again, _) in zip((0, number), (self._reference, outcome), runs, strict=True):
                if differing(self._plan, expected, again, ()):
                    self._not_repeatable(one, expected, again)
                    return False
            divergences = Divergences((runs[0][1], runs[1][1]))
            found = [(where, self._divergence(where, outcome, divergences)) for where in targets]
            visited = {place for place in divergences.visited if place.operator in actors}
            rounds += 1
            if visited <= followed or rounds == _ROUNDS:
                break
            followed |= visited
        schedules = (self._schedule(0), self._schedule(number))
        explaining = Explaining(
            self._plan, self._feed, divergences.traces, schedules, (_named(0), _named(number))
        )
        groups: dict[Group, list[tuple[Where, Explained]]] = {}
        for where, divergence in found:
            explained = explaining.explain(divergence) if isinstance(divergence, Divergence) else divergence
            groups.setdefault(_group(where, divergence, explained), []).append((where, explained))
        for group, members in groups.items():
            self._note(number, group, sorted(members, key=lambda member: member[1].time_ms), outcome)
        return True

    def _divergence(self, where: Where, outcome: Outcome, divergences: Divergences) -> Divergence | Explained:
        """Where the runs part so that this key differs; in words if the tracks do not show it."""
        if where.kind == "state":
            found = divergences.of(TrackId(where.name, where.key or b""))
            return found or _unknown(
                f"the state of {self._name(where)} differs, and no handler call tells why"
            )
        if where.kind == "output":
            for side, value in _that_differ(self._reference.get(where, ()), outcome.get(where, ())):
                for place in divergences.writers(side, where.name, where.key, value):
                    if (found := divergences.of(place)) is not None:
                        return found
            for one in self._plan.inputs:
                if one.late_topic is not None and one.late_topic.name == where.name:
                    return _unknown(f"{self._name(where)}: other events were late", late_events(one))
            return _unknown(
                f"{self._name(where)}: several handlers or keys emit to one key, in another order; add the "
                "topic to unordered if no reader minds"
            )
        for trace in divergences.traces:
            for place in trace.tracks:
                if place.key == where.key and (found := divergences.of(place)) is not None:
                    return found
        return _unknown(f"{self._name(where)} differ, and no handler call tells why")

    def _not_repeatable(self, number: int, expected: Outcome, again: Outcome) -> None:
        """Report a schedule that gave two results in two runs."""
        wheres, names = differing(self._plan, expected, again, ()), ("one run", "another")
        self.report.errors = [
            Dependence(
                f"{_named(number)} does not even repeat itself: a handler uses more than its event, its state "
                "and its context (a global, a clock, an object that it keeps)",
                number,
                str(self._schedule(number)),
                differences=[self._difference(where, names, expected, again) for where in wheres[:SHOWN]],
                keys=len(wheres),
            )
        ]

    # --- the report

    def _note(
        self, number: int, group: Group, members: list[tuple[Where, Explained]], outcome: Outcome
    ) -> None:
        """Add differing keys to their cause. They are ordered by event time; the first one is described."""
        wheres = {where for where, _ in members}
        first = members[0][1]
        if group not in self._found:
            names = _named(0), _named(number)
            one = Dependence(
                first.sentence,
                number,
                str(self._schedule(number)),
                first.declared,
                first.time_ms,
                first.timer,
                first.handlers,
                [self._difference(where, names, self._reference, outcome) for where, _ in members[:SHOWN]],
            )
            self._found[group] = one, set()
            (self.report.declared if first.declared else self.report.errors).append(one)
        one, known = self._found[group]
        known |= wheres
        one.keys = len(known)
        if not first.declared:
            self._blamed |= wheres

    def _difference(self, where: Where, names: tuple[str, str], one: Outcome, other: Outcome) -> Difference:
        was, now = one.get(where, ()), other.get(where, ())
        if where.kind == "state":
            actor = next((each for each in self._plan.actors if each.name == where.name), None)
            rows = [dict(side) for side in (was, now)]
            changes = describe_changes(actor, rows[0], rows[1])
        else:
            changes = tuple(
                Change(f"number {at + 1}", self._output(where, left), self._output(where, right))
                for at, (left, right) in enumerate(zip_longest(was, now))
                if left != right
            )
        return Difference(
            kind=where.kind,
            where=self._name(where),
            names=names,
            key_bytes=where.key,
            changes=changes,
            only_order=is_order_only(one, other, where),
        )

    def _output(self, where: Where, item: Item | None) -> str:
        if item is None:
            return ABSENT
        if where.kind != "output":
            return repr(item[0])
        return repr(output_event(self._plan, Output(where.name, where.key, item[0], 0)))

    def _name(self, where: Where) -> str:
        """The decoded key with its actor or topic, as text."""
        if where.kind == "state":
            actor = next((one for one in self._plan.actors if one.name == where.name), None)
            return f"{where.name} {shown_key(actor, where.key or b'')}"
        topic = self._plan.topics.get(where.name)
        key = where.key
        if topic is not None and topic.key_of is not None and key is not None:
            key = topic.key_codec.decode(key)
        what = "outputs to" if where.kind == "output" else "dead letters of"
        return f"{what} {where.name!r}" + ("" if key is None else f", key {key!r}")


def _variant(where: Where, outcome: Outcome) -> tuple[Where, tuple[Item, ...]]:
    """A result of a key without the order of its outputs."""
    return where, tuple(sorted(outcome.get(where, ())))


def _that_differ(one: Sequence[Item], other: Sequence[Item]) -> Iterator[tuple[int, bytes]]:
    """Yield (run, value): outputs that only one of two runs has, then the first pair in another order."""
    more = Counter(one)
    more.subtract(other)
    for side, (items, sign) in enumerate(((one, 1), (other, -1))):
        yield from ((side, item[0]) for item in items if more[item] * sign > 0)
    for was, now in zip(one, other, strict=False):
        if was != now:
            yield from ((0, was[0]), (1, now[0]))
            return


def _unknown(sentence: str, declared: str = "") -> Explained:
    """An explanation of a difference whose first step is not known."""
    return Explained(sentence, declared, 0, (), None)


def _named(number: int) -> str:
    return f"schedule {number}"


def _group(where: Where, divergence: Divergence | Explained, explained: Explained) -> Group:
    if explained.declared:
        return (explained.declared,)
    if isinstance(divergence, Explained):
        return where.kind, where.name
    family = None if explained.timer is None else explained.timer.partition(":")[0]
    handlers = tuple(sorted(explained.handlers))
    return divergence.kind, divergence.place.operator, handlers, family


def _some(wheres: list[Where]) -> list[Where]:
    """At most ``_TARGETS`` of the keys, taken from each actor and topic in turn."""
    groups: dict[tuple[str, str], list[Where]] = {}
    for where in wheres:
        groups.setdefault((where.kind, where.name), []).append(where)
    return list(_in_turn(list(groups.values())))[:_TARGETS]


def _in_turn(groups: list[list[Where]]) -> Iterator[Where]:
    for row in zip_longest(*groups):
        yield from (where for where in row if where is not None)


def _nobody(_done: int, _total: int) -> None:
    """The default for ``on_progress``: does nothing."""
