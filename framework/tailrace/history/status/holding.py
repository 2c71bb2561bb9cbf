"""Finds the source that holds an operator back, and the reason for that source's watermark.

Theory. The watermark of an operator is the least of its sources', without those that are idle (see
``core.engine.watermarks``). So one source holds it back, the lowest that counts, or none if all are idle or its
input has ended. The reason for that source's watermark is found in the log, in this order:

    reason        the source                                        until
    -----------   -----------------------------------------------   ------------------------------------------------------
    unpublished   follows writers, and no writer has published      a writer publishes
    publisher     follows writers, and one of them holds it there   that writer advances, or is retired
    hidden        has records in or behind an open transaction      its producer ends it, or Kafka aborts it
    behind        has records that were not read yet                the task reads them
    unapplied     its writers' publications are not applied yet     the task reaches them
    empty         follows its events, and had none                  the first one arrives, or it is idle for its declared time
    read          follows its events, and all of them were read     more arrive, or it is idle for its declared time

The worker asks which source it is, and ``tailrace status`` asks why. No result of a task depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from tailrace.core.counting import counted
from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.durations import NO_WATERMARK, is_instant, spelled
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import OffsetGoneError
from tailrace.core.names import tape_of, transactional_id
from tailrace.history.reading.stretches import last
from tailrace.history.reading.upstream_watermarks import Published, tasks_beside
from tailrace.log.interface import Log, TopicPartition

Reason: TypeAlias = Literal["unpublished", "publisher", "hidden", "behind", "unapplied", "empty", "read"]
IsOwned: TypeAlias = Callable[[str], bool | None]
"""Whether a live process owns the task of a transactional id; None if this is unknown."""


class Held(msgspec.Struct, frozen=True):
    """The source that holds an operator back, and the reason."""

    source: str
    """The topic, or ``<inbox>#<actor>`` for the messages to an actor."""
    reason: Reason
    text: str
    """The reason in words, to follow the name of the source."""
    publisher: str | None = None
    """The transactional id of the writer with the lowest watermark."""


def lag_of(log: Log, place: TopicPartition, position: int) -> int:
    """The number of offsets to read after a position, without a gap right after it."""
    return _unread(log, place, position)[0]


def _unread(log: Log, place: TopicPartition, position: int) -> tuple[int, int | None]:
    """The same; and from which offset on an open transaction hides them, if it hides all."""
    start, end = log.start_offset(*place), log.end_offset(*place)
    if position >= end:
        return 0, None
    if position < start:
        return end - start, None
    reader = log.reader({place: position})
    try:
        found = reader.fetch(*place, 1)
    except OffsetGoneError:
        return end - position, None  # deleted since the check
    finally:
        reader.close()
    begins = found.records[0].offset if found.records else found.next_offset
    return end - begins, begins if begins < end and not found.records else None


@dataclass(frozen=True, slots=True)
class Holding:
    """Finds the sources that hold the operators of one task back. It only reads the log."""

    _plan: Plan
    _partition: int
    _log: Log
    _is_owned: IsOwned = lambda _publisher: None

    def lowest(self, marks: Watermarks, operator: int) -> int | None:
        """The source that holds an operator back; None if it has ended, or all of its sources are idle."""
        if marks.has_ended(operator):
            return None
        counting = [source for source in self._plan.operators[operator].sources if not marks.idle[source]]
        return min(counting, key=lambda source: marks.of_source[source], default=None)

    def why(self, source: int, marks: Watermarks, positions: Mapping[str, int]) -> Held:
        """The reason for a source's watermark, in a task with these positions in its inputs."""
        plan, mark = self._plan, marks.of_source[source]
        is_channel = source >= len(plan.inputs)
        one = next(each for each in plan.inputs if each.is_inbox) if is_channel else plan.inputs[source]
        name = plan.sources[source]
        place = TopicPartition(one.name, self._partition)
        position = positions.get(one.name, self._log.start_offset(*place))
        lag, hidden = _unread(self._log, place, position)
        if is_channel or one.watermark == "upstream":
            found = self._by_writers(name, mark, lag, own=is_channel or one.own)
            if found is not None:
                return found
        if hidden is not None:
            said = (
                f"a transaction that is open hides all from offset {hidden} of partition {self._partition} on"
            )
            return Held(
                name, "hidden", f"{said}; Kafka aborts it after the transaction.timeout.ms of its producer"
            )
        if lag:
            begun = position > self._log.start_offset(*place)
            are = f"{counted(lag, 'record')} {'is' if lag == 1 else 'are'}"
            return Held(
                name, "behind", f"{are} not yet read" if begun else f"{are} there, and nothing is read yet"
            )
        if is_channel or one.watermark == "upstream":
            return Held(name, "unapplied", "what its writers publish has not come to this task yet")
        return self._by_events(one, mark, is_empty=position <= self._log.start_offset(*place))

    def _by_events(self, one: InputPlan, mark: int, *, is_empty: bool) -> Held:
        idle = f"it counts as idle after {spelled(one.idle_after_ms)} without any"
        if is_empty:
            return Held(one.name, "empty", f"this partition has no records yet; {idle}")
        if not is_instant(mark):
            return Held(one.name, "empty", f"none of its records has brought a watermark; {idle}")
        return Held(one.name, "read", f"all records are read; {idle}")

    def _by_writers(self, name: str, mark: int, lag: int, *, own: bool) -> Held | None:
        """The writer that a source waits for; None if the task only has to read more."""
        published = self._publishers(name, own=own)
        if not published:
            return Held(
                name,
                "unpublished",
                'nobody has published a watermark for it. With watermark="upstream" it waits until an app '
                "that writes it "
                "does; leave that out, and it goes by its events",
            )
        holding = {publisher: at for publisher, at in published.items() if at is not None}
        if not holding:
            return None if lag else Held(name, "unapplied", "its writers hold nobody back any more")
        publisher = min(holding, key=lambda one: (holding[one], one))
        lowest = holding[publisher]
        if is_instant(lowest) and lowest > mark:
            return None
        return Held(name, "publisher", self._of_writer(publisher, lowest), publisher)

    def _publishers(self, name: str, *, own: bool) -> Mapping[str, Published]:
        """The last publication of each publisher of a source; NO_WATERMARK if there is none yet."""
        found: dict[str, Published] = {}
        if own:
            tasks = range(self._plan.partitions)
            found = {transactional_id(self._plan.app, number): NO_WATERMARK for number in tasks}
        for (topic, publisher), watermark_ms in self._log.publications().items():
            if topic == name:
                for task in tasks_beside(publisher, self._log):
                    found.setdefault(task, NO_WATERMARK)
                found[publisher] = watermark_ms
        return found

    def _of_writer(self, publisher: str, mark: int) -> str:
        app, _, number = publisher.rpartition("-")
        is_own = app == self._plan.app
        who = f"task {number} of this app" if is_own else f"task {number} of the app {app!r}"
        owned = self._is_owned(publisher)
        if owned is False:
            committed_ms = last_commit_ms(self._log, app, int(number)) if number.isdecimal() else None
            since = "" if committed_ms is None else f" since {instant(committed_ms)}"
            stood = f"; its last watermark is {instant(mark)}" if is_instant(mark) else ""
            again = "" if is_own else f" (if it will not come again: tailrace retire {app})"
            return f"{who} is down{since}{stood}{again}"
        if is_instant(mark):
            return f"{who} stands at {instant(mark)}"
        if not number.isdecimal() or last_commit_ms(self._log, app, int(number)) is None:
            return f"{who} has not committed yet"
        circle = "" if is_own else ". If it follows this app in turn, declare watermark=False in one of them"
        return f"{who} has not come to any event yet{circle}"


def last_commit_ms(log: Log, app: str, number: int) -> int | None:
    """The time of a task's last commit, by its own clock; None if the log does not have one."""
    place = TopicPartition(tape_of(app), number)
    if place.topic not in log.topics() or number >= log.partitions(place.topic):
        return None
    found = last(log, *place)
    return None if found is None else found.timestamp_ms
