"""The state as of a time, from one run of the history of a task along its tape.

The state of an actor as of a time is the one right before its task handles the first event, timer or expiry of that
actor that is later. So it has nothing that is later, and all that had been handled until then: what the service knew.
An event that is not later, but came after that moment, is not in it.

A *taker* (``AllKeys``, ``Points``) is called before each of these, with its time: ``take``. It copies what it needs, says when it
has all, and receives the last state with ``end``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan, InputPlan, Plan
from tailrace.core.durations import is_instant
from tailrace.core.engine import tape
from tailrace.core.engine.describe_rows import instant as shown_instant
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.observer import Watch, stored_now
from tailrace.core.engine.task import Task
from tailrace.core.engine.value_rows import KeyRows
from tailrace.core.errors import KEPT_ELSEWHERE, UsageError
from tailrace.core.names import FORWARDED
from tailrace.core.storage import StateReader
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.beginnings import Beginning, taped_beginning
from tailrace.history.reading.driving import Step, TapeSink, drive_along_tape, equal_versions, replay_of
from tailrace.history.reading.replayable import check_kept
from tailrace.history.rebuilding.request import task_settings
from tailrace.history.replay.replaying import seldom_collected
from tailrace.state import MemoryStore

_ELSEWHERE = f"Read {KEPT_ELSEWHERE}."

_BY_REBUILD = (
    "If the log has the records since the beginning, make the state of that time from them (tailrace rebuild --order stages "
    "--as-of TIME), and export that snapshot."
)
_ON_OLD_LOG = "Use the log that has the history before it."


class _HasAllError(Exception):
    """Ends a pass."""


class _Pass(TapeSink):
    def __init__(self, taker: AllKeys | Points) -> None:
        super().__init__(MemoryStore())
        self.taker = taker

    def step_done(self, task: Task, step: Step, /) -> None:
        if self.taker.has_all():
            if not step.last:
                self.commit(task)  # so the store has the schemas
            raise _HasAllError


def take_along_tape(
    history: AppHistory, number: int, taker: AllKeys | Points, *, any_environment: bool = False
) -> tuple[bytes, list[str]]:
    """Drive a task along its tape. Returns the schemas of its actors, none if it has never committed; and notes.

    Raises:
        UsageError: What is asked for lies before the history of the task.
        OffsetGoneError, ReplayDivergedError, EnvironmentMismatchError: The history cannot be replayed.
    """
    cut = history.committed(number).cut
    if cut is None:
        taker.end(MemoryStore())
        return b"", []
    end = tape.decode_cut(cut)
    begun = taped_beginning(history, number, end)
    check_kept(history.log, number, begun.positions, end.positions, "history", _ELSEWHERE)
    check_after(history.plan, begun, taker.first_ms)
    sink = _Pass(taker)
    begun.load(sink.store)
    replay = replay_of(
        history.plan,
        number,
        sink.store,
        begun.cut,
        history.source(number),
        lineage=end.lineage,
        watch=Watch(on_time=taker.take),
        settings=task_settings(),
        any_environment=any_environment,
    )
    with seldom_collected():
        try:
            drive_along_tape(replay, history.tapes(number, end.tape), end.tape, sink)
        except _HasAllError:
            pass
    taker.end(sink.store)
    return sink.store.get(rows.SCHEMA_ROW) or b"", equal_versions(replay)


def check_after(plan: Plan, begun: Beginning, first_ms: int) -> None:
    """Refuse a time at which the snapshot that the history begins with may have events that are later.

    By how far the watermark of an input came, no event of it is later than that. Where a task has no such watermark (one that was edited:
    a reshaped task has the lowest of several; the inbox; a topic with ``repartition=True``), the clock of the service limits the times
    (``ahead_of_clock``). Nothing limits those of other inputs.
    """
    if begun.decoded is None:
        return
    reached = {name: at for name, at in begun.decoded.watermarks.items() if is_instant(at)}
    latest: list[float] = [first_ms]
    for one in plan.inputs:
        if begun.decoded.positions.get(one.name):
            is_known = one.watermark == "events" and _source(begun) != "edited"
            if not is_known:
                latest.append(_limit_ms(plan, begun, one))
            elif one.name in reached:
                latest.append(reached[one.name] + one.out_of_order_ms + 1)
    latest_ms = max(latest)
    if first_ms < latest_ms:
        never = latest_ms == math.inf
        until = "any time" if never else shown_instant(int(latest_ms))
        raise UsageError(
            f"the history of app {plan.app!r} partition {begun.partition} begins with a snapshot that may have events up to "
            f"{until}, and the state as of {shown_instant(first_ms)} is asked for",
            hint=("" if never else "Ask for a later time. ")
            + (_ON_OLD_LOG if _source(begun) == "edited" else _BY_REBUILD),
        )


def _source(begun: Beginning) -> str:
    return "" if begun.snapshot is None else begun.snapshot.manifest.source


def _limit_ms(plan: Plan, begun: Beginning, given: InputPlan) -> float:
    """The latest event time that an input can have had when the snapshot was made."""
    of_others = given.is_inbox or given.repartitioned or given.name.endswith(FORWARDED)
    sources = (
        [one for one in plan.inputs if not one.is_inbox and one.watermark != "upstream"]
        if of_others
        else [given]
    )
    if begun.snapshot is None or any(one.ahead_of_clock_ms is None for one in sources):
        return math.inf
    return begun.snapshot.manifest.created_ms + max(one.ahead_of_clock_ms or 0 for one in sources)


class AllKeys:
    """Takes the rows of actors as of one time."""

    def __init__(self, time_ms: int, actors: Sequence[ActorPlan]) -> None:
        self.first_ms = time_ms
        self._left = {one.name for one in actors}
        self.reached = False
        """Whether anything later has been handled."""
        self.rows: dict[bytes, bytes | None] = {}

    def take(self, cells: InstanceCache, actor: ActorPlan, time_ms: int, /) -> None:
        """An actor is about to handle something of this time."""
        if time_ms > self.first_ms and actor.name in self._left:
            self._left.remove(actor.name)
            self.reached = True
            self._add(cells.state, actor.name)
            prefix = rows.actor_prefix(actor.name)
            self.rows.update(one for one in cells.collect()[0].items() if one[0].startswith(prefix))

    def has_all(self) -> bool:
        """Whether the rest of the history does not matter."""
        return not self._left

    def end(self, state: StateReader, /) -> None:
        """The history has ended with this state, or the taker has all."""
        for name in self._left:
            self._add(state, name)

    def _add(self, state: StateReader, actor: str) -> None:
        prefix = rows.actor_prefix(actor)
        self.rows.update(state.scan(prefix, rows.prefix_end(prefix)))


class Point(NamedTuple):
    """A key at a time, by its number among all points."""

    time_ms: int
    number: int
    key: Any


class Points:
    """Takes the rows of some keys of an actor, each as of its own time. ``found``: by the number of the point."""

    def __init__(self, points: Sequence[Point], actor: ActorPlan) -> None:
        self._points = sorted(points, key=lambda one: one.time_ms)
        self._actor = actor
        self._next = 0
        self.first_ms = self._points[0].time_ms
        self._due_ms = self.first_ms
        self.found: list[tuple[int, KeyRows]] = []
        self.after = 0
        """Number of points after the last that the task has handled."""

    def take(self, cells: InstanceCache, actor: ActorPlan, time_ms: int, /) -> None:
        """See ``AllKeys.take``."""
        if time_ms > self._due_ms and actor is self._actor and not self.has_all():
            self._take(partial(stored_now, cells, actor), time_ms)

    def has_all(self) -> bool:
        """See ``AllKeys.has_all``."""
        return self._next == len(self._points)

    def end(self, state: StateReader, /) -> None:
        """See ``AllKeys.end``."""
        self.after = len(self._points) - self._next
        self._take(partial(_stored, state, self._actor), None)

    def _take(self, rows_of: Callable[[Any], KeyRows], before_ms: int | None) -> None:
        while not self.has_all():
            self._due_ms, number, key = self._points[self._next]
            if before_ms is not None and self._due_ms >= before_ms:
                return
            self.found.append((number, rows_of(key)))
            self._next += 1


def _stored(state: StateReader, actor: ActorPlan, key: Any) -> KeyRows:
    prefix = rows.actor_prefix(actor.name) + rows.escaped(actor.key_codec.encode(key))
    return {row[len(prefix) :]: value for row, value in state.scan(prefix, rows.prefix_end(prefix))}
