"""The warnings of a running worker. Each is logged once, and not repeated every second.

    emits behind the watermark    the first event of a handler to a topic, and again at ten times as many, over all partitions of the
                                  worker and all restarts of one
    late events that are dropped  the first one, and again at ten times as many, over all partitions of the worker
    a source that holds           once for each operator and source, when the operator's watermark has not moved for
                                  ``HELD_MS`` while the worker took records of the operator's other sources; and again only
                                  after it has moved. There is no warning for operators behind a held operator of the app

There is no warning while no other source of the operator is read: then no record waits.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.task import Task
from tailrace.core.errors import TailraceError
from tailrace.core.handling.promises import Behind
from tailrace.history.status.holding import Holding, IsOwned
from tailrace.log.interface import Log

_log = logging.getLogger("tailrace.worker")

HELD_MS = 60_000
"""An operator is held for this long before there is a warning."""
PAUSE_MS = 10_000
"""When records of the other sources come less often than this, the worker is not busy with them."""
_AGAIN = 10
"""A warning is repeated when its count has grown by this factor."""


class Alerts:
    """The warnings of one worker, for all of its partitions."""

    def __init__(self, plan: Plan, log: Log, is_owned: IsOwned) -> None:
        self.plan = plan
        self.log = log
        self.is_owned = is_owned
        self._behind: Counter[Behind] = Counter()
        self._told_behind: dict[Behind, int] = {}
        self._held: dict[tuple[int, int], set[int]] = {}
        """By operator and source: the partitions for which the warning was logged, or found while it was in force."""
        self._dropping = sorted({one.name for one in plan.inputs if one.late == "drop"})
        self._late = self._told_late = 0

    def of_partition(self, number: int, now_ms: int, late: int) -> PartitionAlerts:
        """Begin to watch a partition that was just started, with its number of late events so far."""
        return PartitionAlerts(self, number, now_ms, late)

    def late(self, partition: int, events: int) -> None:
        """More events were late."""
        self._late += events
        if not self._dropping or self._late < _AGAIN * self._told_late:
            return
        self._told_late = self._late
        _log.warning(
            '%s late so far; those of %s are dropped, as declared (late="drop")',
            counted(self._late, "event"),
            ", ".join(map(repr, self._dropping)),
            extra={"app": self.plan.app, "partition": partition, "events": self._late},
        )

    def emitted_behind(self, partition: int, what: Behind, events: int) -> None:
        """More events were emitted behind the watermark that was published for their topic."""
        self._behind[what] += events
        count = self._behind[what]
        if count < _AGAIN * self._told_behind.get(what, 0):
            return
        self._told_behind[what] = count
        _log.warning(
            "%s emits to %r behind the watermark published for it: readers find these events late",
            what.handler,
            what.topic,
            extra={
                "app": self.plan.app,
                "partition": partition,
                "topic": what.topic,
                "handler": what.handler,
                "events": count,
            },
        )

    def held(self, task: Task, operator: int, source: int) -> None:
        """An operator of a task has been held for long."""
        partitions = self._held.setdefault((operator, source), set())
        partitions.add(task.partition)
        if len(partitions) > 1 or self._follows_held(source):
            return
        name, place = self.plan.operators[operator].name, self.plan.sources[source]
        holding = Holding(self.plan, task.partition, self.log, self.is_owned)
        about: dict[str, object] = {"app": self.plan.app, "partition": task.partition}
        try:
            found = holding.why(source, task.watermarks, task.positions)
        except TailraceError as error:  # an outage of the log is reported elsewhere
            why = f"the reason is not known: {error}"
        else:
            why = found.text
            about |= {"reason": found.reason, "publisher": found.publisher}
        _log.warning(
            "%s is held back by %r while its other inputs are read, so its timers do not fire: %s",
            name,
            place,
            why,
            extra={**about, "actor": name, "source": place},
        )

    def _follows_held(self, source: int) -> bool:
        """Whether a source depends on an operator that is itself held: then the warning for that one is enough."""
        name = self.plan.sources[source]
        writers = {writer for one in self.plan.published if one.name == name for writer in one.writers}
        return any(partitions and one in writers for (one, _), partitions in self._held.items())

    def moved(self, partition: int, operator: int) -> None:
        """The watermark of an operator has moved: the next time that it is held is logged again."""
        for (one, _), partitions in self._held.items():
            if one == operator:
                partitions.discard(partition)


class PartitionAlerts:
    """The observations of one partition, from its start to its next start."""

    def __init__(self, alerts: Alerts, number: int, now_ms: int, late: int) -> None:
        plan = alerts.plan
        self._alerts = alerts
        self._number = number
        self._now_ms = now_ms
        self._elapsed_ms = 0
        self._late = late
        self._counted: dict[Behind, int] = {}
        self._positions: dict[str, int] = {}
        inbox = next((one.name for one in plan.inputs if one.is_inbox), "")
        inputs = [one.name for one in plan.inputs]
        self._input_of = [*inputs, *(inbox for _ in plan.sources[len(inputs) :])]
        """The input that the records of a source come by."""
        in_order = sorted(plan.operators, key=lambda one: one.level)
        self._watched = [_Watched(one.index, one.sources) for one in in_order if len(one.sources) > 1]
        self._holding = Holding(plan, number, alerts.log, alerts.is_owned)

    def behind(self, counts: Mapping[Behind, int]) -> None:
        """How many events of this task were emitted behind a watermark so far."""
        for what, count in counts.items():
            new = count - self._counted.get(what, 0)
            if new:
                self._counted[what] = count
                self._alerts.emitted_behind(self._number, what, new)

    def look(self, task: Task, now_ms: int) -> None:
        """After a slice in which records were taken."""
        self._elapsed_ms += max(0, now_ms - self._now_ms)
        self._now_ms = now_ms
        if (late := task.totals.late) > self._late:
            self._alerts.late(self._number, late - self._late)
            self._late = late
        moved = {name for name, at in task.positions.items() if at != self._positions.get(name, at)}
        self._positions |= task.positions
        marks = task.watermarks
        for one in self._watched:
            mark, source = marks.of_operator[one.operator], self._holding.lowest(marks, one.operator)
            if mark != one.mark:
                self._alerts.moved(self._number, one.operator)
            if mark != one.mark or source != one.source:
                one.mark, one.source = mark, source
                one.since_ms = one.busy_ms = self._elapsed_ms
                one.told = False
            if source is None or one.told:
                continue
            if not any(self._input_of[other] in moved for other in one.sources if other != source):
                continue
            if self._elapsed_ms - one.busy_ms > PAUSE_MS:
                one.since_ms = self._elapsed_ms
            one.busy_ms = self._elapsed_ms
            if self._elapsed_ms - one.since_ms >= HELD_MS:
                one.told = True
                self._alerts.held(task, one.operator, source)


class _Watched:
    """An operator, since when its watermark has stood still, and when a record of another of its sources was last taken."""

    __slots__ = ("busy_ms", "mark", "operator", "since_ms", "source", "sources", "told")

    def __init__(self, operator: int, sources: tuple[int, ...]) -> None:
        self.operator = operator
        self.sources = sources
        self.mark = NO_WATERMARK
        self.source: int | None = None
        self.since_ms = self.busy_ms = 0
        self.told = False
