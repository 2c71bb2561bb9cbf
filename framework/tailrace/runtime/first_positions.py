"""Where an app first began to read each input partition, so that nothing is deleted unread without a word.

Theory. A task that has committed has its positions in the cut; what retention deletes behind these is missed loudly. A task that has
not committed yet has none. So before an app runs for the first time, and when its topics are created for it, the oldest
offset of each input partition is *noted*: as offsets of a consumer group of its own, ``<app>#begun``. A task without a commit begins
there. If the log has deleted records from there on, they were deleted unread, and the task does not start (``restore``).

If the rows of another topic stand for the past of an input, the app begins behind that (``history.reading.handed_over``).

On Kafka such notes expire after a week (``offsets.retention.minutes``). Then 0 is taken for an input of which other tasks have
committed positions, as whatever is deleted may be missing. The cuts of all tasks say which inputs these are.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import closing

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.errors import FencedError
from tailrace.core.names import begun_group
from tailrace.history.reading.changelog import last_cut
from tailrace.history.reading.handed_over import handed_over
from tailrace.log.interface import Log, TopicPartition

_log = logging.getLogger("tailrace.service")


def note_first_positions(plan: Plan, log: Log, *, told: bool = True) -> None:
    """Note where the app begins in the inputs that it has never read. ``told``: log what was deleted of these before."""
    inputs = [one.name for one in plan.inputs if one.name in log.topics()]
    places = [TopicPartition(name, number) for name in inputs for number in range(log.partitions(name))]
    # A transaction that a dead process has left open is ended by a process that has joined the group, which this one has not yet.
    offsets = log.offsets_before_open_transactions
    read = offsets(plan.app, places)
    known = read.keys() | offsets(begun_group(plan.app), places).keys()
    unknown = [place for place in places if place not in known]
    topics_read = {place.topic for place in read}
    if unknown:
        topics_read |= inputs_read(plan, log)
    new = {place: 0 if place.topic in topics_read else log.start_offset(*place) for place in unknown}
    if new:
        group = begun_group(plan.app)
        try:
            with closing(log.writer(group)) as writer:
                writer.commit(new, group)
        except FencedError:
            return  # another process of the app is starting, and notes the same
        if told:
            _tell(plan, new)


def first_positions(plan: Plan, log: Log, places: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Where the app begins, by input partition, as far as it was noted."""
    if not places:
        return {}
    inputs = {one.name for one in plan.inputs}
    begun = handed_over(log, inputs, {one.topic for one in places})
    found = dict(log.committed_offsets(begun_group(plan.app), places))
    return found | {
        place: max(offset, found.get(place, 0)) for place, offset in begun.items() if place in places
    }


def inputs_read(plan: Plan, log: Log) -> set[str]:
    """The inputs in which tasks of the app have positions, by their last commits."""
    found: set[str] = set()
    for number in range(plan.partitions):
        place = TopicPartition(plan.changelog_topic, number)
        last = last_cut(log, place) if log.end_offset(*place) else None
        if last is not None:
            found |= tape.decode_cut(last.value or b"").positions.keys()
    return found


def _tell(plan: Plan, new: Mapping[TopicPartition, int]) -> None:
    for topic in dict.fromkeys(place.topic for place in new):
        starts = {place.partition: at for place, at in new.items() if place.topic == topic and at}
        if starts:
            said = ", ".join(f"{at} of partition {number}" for number, at in starts.items())
            _log.warning(
                "the log has deleted the beginning of %r. %r reads it for the first time and begins at offset %s",
                topic,
                plan.app,
                said,
                extra={"app": plan.app, "topic": topic, "offsets": {str(n): at for n, at in starts.items()}},
            )
