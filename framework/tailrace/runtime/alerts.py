"""What a worker logs of its partitions. Nothing is repeated every second.

    emits behind the watermark    the first event of a handler to a topic, and again at ten times as many, over all partitions of the
                                  worker and all restarts of one
    late events that are dropped  the first one, and again at ten times as many, over all partitions of the worker
    late after idleness           the first event of an input that was late because the input had been idle, and again at ten times
                                  as many; and their number when the worker leaves
    a source that holds           when an operator's watermark has not moved for ``HELD_MS`` while the worker took records of the
                                  operator's other sources; and again only after it has moved. There is none for operators behind a
                                  held operator of the app. ``tailrace status`` says why
    stored state                  what is kept, converted or cannot be dropped: once, as it is the same for every task
    a partition that waits        the reason, once a minute
    what stays pending            timers, and events that wait: once, when a run has read all records and ends no input

There is no warning of a source that holds while no other source of the operator is read: then no record waits.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.durations import NO_WATERMARK, spelled
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.tape import Idleness
from tailrace.core.engine.task import Task
from tailrace.core.errors import TailraceError
from tailrace.core.handling.promises import Behind, Cause, Instance, Promises
from tailrace.core.suggestions import did_you_mean
from tailrace.history.status.holding import Holding
from tailrace.history.status.inspection import cause_of, shown
from tailrace.log.interface import Log

_log = logging.getLogger("tailrace.worker")

HELD_MS = 60_000
"""An operator is held for this long before there is a warning."""
PAUSE_MS = 10_000
"""When records of the other sources come less often than this, the worker is not busy with them."""
_AGAIN = 10
"""A warning is repeated when its count has grown by this factor."""
_WAITS_AGAIN_S = 60.0
_WHY: dict[Cause, str] = {
    "event": "The handler sets this time in the event. Emit with a later time, such as the end of a window, or declare an "
    "out_of_order for the topic that covers the difference.",
    "at": "The handler gives this time with at=. Give a time after ctx.watermark, or declare an out_of_order for the topic that "
    "covers the difference.",
    "timer": "The handler is that of a timer that was set for a time before the watermark. Set the timer later, or emit with at=.",
    "late": 'The handler handled a late event of {input}. Declare a larger out_of_order or idle_after for {input}, or late="drop".',
    "record": "The handler handled an event of {input}, for which event time does not wait: it is read with watermark=False, comes from "
    "the actor's own circle, or came while the other writers of the topic were ahead. Emit with at= a time after ctx.watermark.",
}
"""By the cause of an event that was emitted behind: what to do."""


class Alerts:
    """The alerts of one worker, for all of its partitions. ``dropped``: actors and collections whose state is to be deleted."""

    def __init__(self, plan: Plan, log: Log, dropped: Collection[str]) -> None:
        self.plan = plan
        self.log = log
        self._dropped = dropped
        self._noticed: set[str] = set()
        self._waits_told_s: dict[tuple[int, str], float] = {}
        """By partition and reason: when it was last logged."""
        self._behind: Counter[Behind] = Counter()
        self._told: dict[Behind | str, int] = {}
        """The counts that were logged last."""
        self._held: set[tuple[int, int]] = set()
        """Operator and source of what is held in a partition, and was logged."""
        self._dropping = sorted({one.name for one in plan.inputs if one.late == "drop"})
        self._late = self._left_out = 0
        self._after_idle: dict[tuple[str, int], tuple[int, int]] = {}
        """By source and partition: events late after idleness since the start of the partition here, and how long that was."""

    def restored(self, task: Task) -> None:
        """A task was restored: log what is to be known of its stored state."""
        about: dict[str, object] = {"app": self.plan.app, "partition": task.partition}
        stored, dropped = task.stored, self._dropped
        if kept := [name for name in stored.orphans if name not in dropped]:
            declared = {one.name for one in self.plan.actors}
            gone = next((one for name in kept if (one := name.partition(".")[0]) not in declared), None)
            if gone is None:
                _log.info("state that is no longer declared is kept", extra={**about, "kept": kept})
            else:
                _log.warning(
                    "the state of an actor that is no longer declared is kept: its timers do not fire, its windows have no results. "
                    "If its class was renamed, declare it with @app.actor(name=%r)",
                    gone,
                    extra={**about, "kept": kept},
                )
        for notice in stored.notices:
            if notice not in self._noticed:
                self._noticed.add(notice)
                _log.warning("%s", notice, extra=about)
        if unknown := sorted(set(dropped).difference(stored.orphans)):
            # No error: it has been dropped where this is a restart.
            meant = " ".join(filter(None, (did_you_mean(name, stored.orphans) for name in unknown)))
            _log.warning(
                "the state to drop does not exist, or was dropped before%s",
                f". {meant}" if meant else "",
                extra={**about, "drop": unknown, "undeclared": list(stored.orphans)},
            )

    def waits(self, partition: int, error: TailraceError, retry_ms: int) -> None:
        """A partition has to wait, because of this error."""
        key, now_s = (partition, str(error)), time.monotonic()
        if now_s >= self._waits_told_s.get(key, -_WAITS_AGAIN_S) + _WAITS_AGAIN_S:
            self._waits_told_s[key] = now_s
            extra = {"app": self.plan.app, "partition": partition, "retry_ms": retry_ms}
            _log.warning("a partition waits: %s", error, extra=extra)

    def left_pending(self, tasks: Collection[Task]) -> None:
        """A run is over, and its inputs are not: name the actors whose event-time timers, or events, wait for later events."""
        actors = sorted({name for task in tasks for name in task.actors_with_timers})
        if actors:
            _log.info(
                "all is read; timers of %s stay pending, and fire when later events come (or with --end-of-input)",
                ", ".join(actors),
                extra={"app": self.plan.app, "actors": actors},
            )
        waiting = sum((Counter(task.waiting) for task in tasks), Counter[str]())
        if waiting:
            _log.info(
                "all is read; %s for their turn in %s until later events come in all inputs (or --end-of-input)",
                f"{counted(waiting.total(), 'event')} wait",
                ", ".join(sorted(waiting)),
                extra={"app": self.plan.app, "waiting": dict(waiting)},
            )

    def late(self, partition: int, events: int) -> None:
        """More events were late."""
        self._late += events
        if not self._dropping or not self._has_grown("late", self._late):
            return
        _log.warning(
            '%s late so far; those of %s are dropped, as declared (late="drop")',
            counted(self._late, "event"),
            ", ".join(map(repr, self._dropping)),
            extra={"app": self.plan.app, "partition": partition, "events": self._late},
        )

    def dropped(self, partition: int, events: int) -> None:
        """More events were late, and were left out by their handlers."""
        self._left_out += events
        if self._has_grown("dropped", self._left_out):
            extra = {"app": self.plan.app, "partition": partition, "events": self._left_out}
            _log.warning(
                "%s dropped so far, because they came late", counted(self._left_out, "event"), extra=extra
            )

    def late_after_idle(self, partition: int, source: str, late: int, known: Idleness) -> None:
        """Events of a source were late because it had been idle: ``late`` of them since the partition started here."""
        self._after_idle[source, partition] = late, known.idle_ms
        count, idle_ms = self._sums()[source]
        if not self._has_grown(f"idle {source}", count):
            return
        extra = {"app": self.plan.app, "partition": partition, "source": source, "events": count}
        _log.warning(
            "%s. It was idle since %s, and came back %s behind the watermark of its actors",
            cause_of(self.plan, source, count, idle_ms),
            instant(known.since_ms),
            shown(known.behind_ms),
            extra={**extra, "idle_ms": known.idle_ms, "behind_ms": known.behind_ms},
        )

    def _sums(self) -> dict[str, tuple[int, int]]:
        """By source: events late after idleness in all partitions, and the longest time that it was idle."""
        found: dict[str, tuple[int, int]] = {}
        for (source, _), (late, idle_ms) in self._after_idle.items():
            count, longest_ms = found.get(source, (0, 0))
            found[source] = count + late, max(longest_ms, idle_ms)
        return found

    def finish(self) -> None:
        """The worker leaves: log how many events were late because their input had been idle."""
        for source, (late, idle_ms) in sorted(self._sums().items()):
            extra = {"app": self.plan.app, "source": source, "events": late, "idle_ms": idle_ms}
            _log.warning("%s", cause_of(self.plan, source, late, idle_ms), extra=extra)

    def emitted_behind(self, partition: int, what: Behind, events: int, furthest: Instance) -> None:
        """More events were emitted behind the watermark that was published for their topic."""
        self._behind[what] += events
        count = self._behind[what]
        if not self._has_grown(what, count):
            return
        behind_ms = furthest.mark_ms - furthest.time_ms
        extra = {"app": self.plan.app, "partition": partition, **what._asdict(), "events": count}
        _log.warning(
            "%s emits to %r behind the watermark published for it: readers find these events late. "
            "An event of %s is %s behind %s. %s",
            what.handler,
            what.topic,
            instant(furthest.time_ms),
            spelled(behind_ms),
            instant(furthest.mark_ms),
            _WHY[furthest.cause].format(input=repr(furthest.input)),
            extra={**extra, "behind_ms": behind_ms, "cause": furthest.cause, "input": furthest.input or None},
        )

    def _has_grown(self, what: Behind | str, count: int) -> bool:
        if count < _AGAIN * self._told.get(what, 0):
            return False
        self._told[what] = count
        return True

    def held(self, partition: int, operator: int, source: int) -> None:
        """An operator has been held for long in a partition."""
        is_known = (operator, source) in self._held or self._follows_held(source)
        self._held.add((operator, source))
        if is_known:
            return
        app, name, place = self.plan.app, self.plan.operators[operator].name, self.plan.sources[source]
        _log.warning(
            "%s is held back by %r while its other inputs are read, so its timers do not fire. See why: tailrace status %s",
            name,
            place,
            app,
            extra={"app": app, "partition": partition, "actor": name, "source": place},
        )

    def _follows_held(self, source: int) -> bool:
        """Whether a source depends on an operator that is itself held: then the warning for that one is enough."""
        name = self.plan.sources[source]
        writers = {writer for one in self.plan.published if one.name == name for writer in one.writers}
        return any(operator in writers for operator, _ in self._held)

    def moved(self, operator: int) -> None:
        """The watermark of an operator has moved: the next time that it is held is logged again."""
        self._held = {one for one in self._held if one[0] != operator}


class PartitionAlerts:
    """The observations of one partition, from its start to its next start."""

    def __init__(self, alerts: Alerts, number: int, task: Task) -> None:
        plan = alerts.plan
        self._alerts = alerts
        self._number = number
        totals = task.totals
        self._late, self._left_out = totals.late, totals.dropped
        idleness = task.watermarks.idleness
        self._after_idle = {name: one.late for name, one in idleness.items()}
        """By source: events late after idleness that were counted before."""
        self._told_idle = dict(self._after_idle)
        self._counted: dict[Behind, int] = {}
        self._positions: dict[str, int] = {}
        inbox = next((one.name for one in plan.inputs if one.is_inbox), "")
        inputs = [one.name for one in plan.inputs]
        self._input_of = [*inputs, *(inbox for _ in plan.sources[len(inputs) :])]
        """The input that the records of a source come by."""
        in_order = sorted(plan.operators, key=lambda one: one.level)
        self._watched = [_Watched(one.index, one.sources) for one in in_order if len(one.sources) > 1]
        self._holding = Holding(plan, number, alerts.log)

    def behind(self, promises: Promises) -> None:
        """What this task has emitted behind a watermark so far."""
        for what, count in promises.behind.items():
            new = count - self._counted.get(what, 0)
            if new:
                self._counted[what] = count
                self._alerts.emitted_behind(self._number, what, new, promises.furthest[what])

    def look(self, task: Task, elapsed_ms: int) -> None:
        """After a slice in which records were taken. ``elapsed_ms`` is monotonic time."""
        if (late := task.totals.late) > self._late:
            self._alerts.late(self._number, late - self._late)
            self._late = late
            self._look_at_idleness(task)
        if (dropped := task.totals.dropped) > self._left_out:
            self._alerts.dropped(self._number, dropped - self._left_out)
            self._left_out = dropped
        moved = {name for name, at in task.positions.items() if at != self._positions.get(name, at)}
        self._positions |= task.positions
        for one in self._watched:
            mark = task.watermarks.of_operator[one.operator]
            source = self._holding.lowest(task.watermarks, one.operator)
            if mark != one.mark:
                self._alerts.moved(one.operator)
            if (mark, source) != (one.mark, one.source):
                one.mark, one.source = mark, source
                one.since_ms = one.busy_ms = elapsed_ms
                one.told = False
            if (
                one.told
                or source is None
                or not any(self._input_of[other] in moved for other in one.sources if other != source)
            ):
                continue
            if elapsed_ms - one.busy_ms > PAUSE_MS:
                one.since_ms = elapsed_ms
            one.busy_ms = elapsed_ms
            if elapsed_ms - one.since_ms >= HELD_MS:
                one.told = True
                self._alerts.held(self._number, one.operator, source)

    def _look_at_idleness(self, task: Task) -> None:
        for source, known in task.watermarks.idleness.items():
            before = self._after_idle.get(source, 0)
            if known.late > max(before, self._told_idle.get(source, 0)):
                self._told_idle[source] = known.late
                self._alerts.late_after_idle(self._number, source, known.late - before, known)


@dataclass(slots=True)
class _Watched:
    """An operator, since when its watermark has stood still, and when a record of another of its sources was last taken."""

    operator: int
    sources: tuple[int, ...]
    mark: int = NO_WATERMARK
    source: int | None = None
    since_ms: int = 0
    busy_ms: int = 0
    told: bool = False
