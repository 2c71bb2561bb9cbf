"""Where an app first began to read each input partition, so that nothing is deleted unread without a word.

Theory. A task that has committed has its positions in the cut; what retention deletes behind these is missed loudly. A task that has
not committed yet has none. So before an app runs for the first time, and when its topics are created for it, the oldest
offset of each input partition is *noted*: as offsets of a consumer group of its own, ``<app>#begun``. A task without a commit begins
there. If the log has deleted records from there on, they were deleted unread, and the task does not start (``restore``).

An app that ran before there were such notes may have begun anywhere: for a topic of which it has committed other partitions,
0 is noted, as whatever is deleted of the others may be missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import FencedError
from tailrace.core.records import CHANNEL
from tailrace.log.interface import Log, TopicPartition

_log = logging.getLogger("tailrace.service")


def note_first_positions(plan: Plan, log: Log, *, told: bool = True) -> None:
    """Note where the app begins in the inputs that it has never read.

    ``told``: it says what the log has deleted of these; not of an app that begins with a snapshot.
    """
    inputs = [one.name for one in plan.inputs if one.name in log.topics()]
    places = [TopicPartition(name, number) for name in inputs for number in range(log.partitions(name))]
    read = log.committed_offsets(plan.app, places)
    known = read.keys() | first_positions(plan.app, log, places).keys()
    topics_read = {place.topic for place in read}
    new = {
        place: 0 if place.topic in topics_read else log.start_offset(*place)
        for place in places
        if place not in known
    }
    if new:
        writer = log.writer(f"{plan.app}{_GROUP}")
        try:
            writer.commit(new, f"{plan.app}{_GROUP}")
        except FencedError:
            return  # another process of the app is starting, and notes the same
        finally:
            writer.close()
        if told:
            _tell(plan, new)


def first_positions(app: str, log: Log, places: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
    """What was noted, by input partition."""
    return log.committed_offsets(f"{app}{_GROUP}", places)


_GROUP = f"{CHANNEL}begun"


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
