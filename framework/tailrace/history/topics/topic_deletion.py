"""Deletes what an app has on a log: its internal topics, and the offsets of its groups.

Theory. What an app declares is never deleted: others read it, or have written it. In this order, an interruption
leaves nothing that would be taken for a whole history, and the command can be run again:

1. the app must have no live member;
2. it is retired: readers of its outputs would wait for a writer that will never come again;
3. the offsets of its groups are deleted: a new app of its name must not begin in the middle of an input;
4. the topics are deleted, the tape last: it shows that the app has run here.

State folders of its processes stay where they are. A new app of the same name finds that they are of another
history, and leaves them aside.
"""

from __future__ import annotations

import msgspec

from tailrace.core.errors import UnknownAppError
from tailrace.core.names import apps_in, begun_group, tape_of, transactional_id
from tailrace.core.suggestions import did_you_mean
from tailrace.history.reading.app_topics import topics_left_by
from tailrace.history.retirement import publishers_of, reserved, retire
from tailrace.log.interface import StoredLog

_REFUSED = ", and its topics are not deleted"


class Deletion(msgspec.Struct):
    """What is deleted of an app."""

    app: str
    topics: list[str]
    records: dict[str, int]
    """By topic, the number of offsets in it."""
    groups: list[str]
    publishers: list[str]
    """The transactional ids that are retired: readers of the app's outputs wait for them now."""


def plan_deletion(log: StoredLog, app: str) -> Deletion:
    """What would be deleted of an app. Asks only. Raises UnknownAppError or TaskOwnedError."""
    known = log.admin.names()
    topics = topics_left_by(app, known, log.admin.watermark_topics)
    if not topics:
        raise UnknownAppError(
            f"the app {app!r} has no topics on this log",
            hint=did_you_mean(app, apps_in(known), "Look at --log."),
        )
    with reserved(log, app, (), _REFUSED):
        pass
    topics.sort(key=lambda name: name == tape_of(app))
    records = {one: _count_offsets(log, one) for one in topics}
    said = publishers_of(log).get(app, {})
    publishers = [
        transactional_id(app, number)
        for number, some in sorted(said.items())
        if any(mark is not None for mark in some.values())
    ]
    return Deletion(app, topics, records, [app, begun_group(app)], publishers)


def delete_topics(log: StoredLog, planned: Deletion) -> None:
    """Delete it, and set ``groups`` to those that existed. Raises TaskOwnedError."""
    with reserved(log, planned.app, (), _REFUSED):
        pass
    if planned.publishers:
        retire(log, planned.app)
    planned.groups = log.admin.delete_groups(planned.groups)
    log.admin.delete_topics(planned.topics)


def _count_offsets(log: StoredLog, topic: str) -> int:
    numbers = range(log.partitions(topic))
    return sum(log.end_offset(topic, one) - log.start_offset(topic, one) for one in numbers)
