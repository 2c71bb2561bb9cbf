"""The hand-over of a stopped Faust app: where it has read its inputs up to, the app begins.

Theory. A Faust app commits the offsets up to which its tables hold what it has read. The imported tables stand for all before these,
so the app must begin exactly there, and must handle the rows of the tables before the events that follow. The first is noted in
the log (``history.reading.handed_over``). The second is a matter of event time:

- All rows have one event time, so none is late, whatever disorder is declared.
- It is that of the last record that Faust has read, less the declared disorder, less 2 s. No event that follows is older, and an input takes
  the head with the lowest event time. A record that is more disordered than declared may be handled before the row of its key.
- Inputs with arrival time are refused: they are taken at once, whatever else is there.

Faust also reads topics that it writes itself: a stream that is grouped by another key goes through a topic of its own, and so does
what ``cast`` sends to an agent. What is there and not read when Faust stops is refused, unless the app reads it, or the caller leaves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from tailrace.core.counting import counted
from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.engine.merge import TOLERANCE_MS
from tailrace.core.errors import OtherHistoryError, TailraceError, TaskOwnedError, UsageError
from tailrace.core.records import InputRecord
from tailrace.faust.changelog import CHANGELOG
from tailrace.history.reading.generations import located
from tailrace.history.reading.stretches import first, last
from tailrace.log.interface import Log, StoredLog, TopicPartition

_REPARTITION: Final = "-repartition"


class HandOver(NamedTuple):
    """Where an app begins in the inputs of a Faust app, and the event time of the rows of its tables in ms."""

    positions: dict[TopicPartition, int]
    before_ms: int | None
    """None: Faust has read no record that is still there."""
    left: Mapping[str, int]
    """By topic, the number of offsets with records that neither Faust has read nor the app reads."""


def check_stopped(log: StoredLog, faust_app: str) -> None:
    """Raise TaskOwnedError if workers of a Faust app run: its group has members."""
    try:
        with log.reserve(faust_app, ()):
            return
    except TaskOwnedError as error:
        raise TaskOwnedError(
            f"the Faust app {faust_app!r} runs: {error.what}", hint="Stop all of its workers first."
        ) from error


def check_not_begun(log: StoredLog, plan: Plan, faust_app: str) -> None:
    """Check that an app has neither run nor is running, and has a group of its own.
    Raises UsageError: the app has the id of the Faust app, or has committed; TaskOwnedError: it runs.
    """
    if plan.app == faust_app:
        raise UsageError(
            f"the app has the name of the Faust app, {faust_app!r}, so both would have one consumer group",
            hint="Give it another name.",
        )
    topic = located(plan, log).changelog_topic
    if topic in log.topics() and any(log.end_offset(topic, one) for one in range(log.partitions(topic))):
        raise UsageError(
            f"the app {plan.app!r} has run already: rows that are imported now would come after the events that it has handled",
            hint="Import before the first run; or run under another name (package.module:app@name).",
        )
    with log.reserve(plan.app, ()):
        pass


def plan_hand_over(
    log: Log,
    plan: Plan,
    faust_app: str,
    new_inputs: Collection[str],
    imported: Collection[str],
    leave: Collection[str] = (),
) -> HandOver:
    """Find where Faust has read the inputs of an app up to. Inputs without records, and those ``imported``, are left out.

    ``new_inputs`` are those that Faust has never read: the app begins with their oldest records. Unread records of the topics
    ``leave`` are handled by nobody.

    Raises:
        UsageError: ``new_inputs`` names no input, or one that Faust has read; or an input has arrival time; or Faust has not read
            all of another topic, or of those in ``leave`` there is none.
        OtherHistoryError: Faust has committed no offset of a partition that has records.
    """
    inputs = {one.name: one for one in plan.inputs if one.topic is not None and one.name not in imported}
    if unknown := sorted(set(new_inputs) - inputs.keys()):
        raise UsageError(f"the app {plan.app!r} has no input {unknown[0]!r} besides imported tables")
    positions: dict[TopicPartition, int] = {}
    times: list[int] = []
    for name in sorted(inputs.keys() & log.topics()):
        one = inputs[name]
        places = [TopicPartition(name, number) for number in range(log.partitions(name))]
        found = log.offsets_before_open_transactions(faust_app, places)
        if found and name in new_inputs:
            raise UsageError(f"Faust has read {name!r}, so it is no new input", hint="Leave --new-input out.")
        if found and one.time_kind == "arrival":
            raise UsageError(
                f"the events of {name!r} have their time of arrival as event time, so they could be handled before the rows",
                hint="Declare an event time for it, in a field or in the record's timestamp.",
            )
        for place in () if name in new_inputs else places:
            oldest = first(log, *place, start=found.get(place))
            if place in found:
                record = last(log, *place, stop=found[place]) or oldest
                times += [] if record is None else [_time_of(one, place, record) - one.out_of_order_ms]
            elif oldest is not None:
                left = log.end_offset(*place) - log.start_offset(*place)
                raise OtherHistoryError(
                    f"the group {faust_app!r} has no committed offset of {name!r} partition {place.partition}, which has "
                    f"{counted(left, 'record')}: it has never read it, or the offset has expired",
                    why="offsets",
                    hint=f"If Faust has never read it, name it: --new-input {name}. Otherwise start Faust once until it has committed.",
                )
        positions.update(found)
    unread = _unread(log, faust_app, log.topics() - inputs.keys() - {*imported})
    for name in sorted(unread.keys() ^ {*leave}):
        if name in leave:
            raise UsageError(
                f"there is no topic {name!r} with records that Faust has left and the app does not read"
            )
        raise UsageError(
            f"the Faust app {faust_app!r} reads {name!r}, has not read {counted(unread[name], 'record')} there, and the app {plan.app!r} "
            "does not read it: nobody would handle them",
            hint="Declare the topic as a further input of the app (docs/faust.md, 'What Faust has sent to itself'); or, if these records "
            f"may be lost: --leave {name}.",
        )
    return HandOver(positions, min(times) - 2 * TOLERANCE_MS if times else None, unread)


def _unread(log: Log, faust_app: str, topics: Collection[str]) -> Mapping[str, int]:
    """By topic, the number of offsets that Faust has not read. It reads topics of which it has committed an offset, and those that it has
    made to group by a key.
    """
    places = [
        TopicPartition(name, number)
        for name in topics
        if not name.endswith(CHANGELOG)
        for number in range(log.partitions(name))
    ]
    read_to = log.offsets_before_open_transactions(faust_app, places)
    its_own = {one.topic for one in read_to}
    its_own |= {name for name in topics if name.startswith(f"{faust_app}-") and name.endswith(_REPARTITION)}
    found = Counter[str]()
    for place in places:
        if place.topic in its_own:
            begin = max(read_to.get(place, 0), log.start_offset(*place))
            if first(log, *place, start=begin) is not None:
                found[place.topic] += log.end_offset(*place) - begin
    return found


def _time_of(one: InputPlan, place: TopicPartition, record: InputRecord) -> int:
    try:
        time_ms = None if one.time_of is None else one.time_of(one.decode(record.value or b""))
    except TailraceError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise UsageError(
            f"the event time of {place} offset {record.offset} cannot be read: {error}"
        ) from error
    return record.timestamp_ms if time_ms is None else time_ms
