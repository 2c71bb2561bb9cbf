"""Retiring an app: its tasks publish that they hold nobody back, because they will not come again.

Theory. The watermark of a topic is the least of what its publishers have said last (see ``upstream_watermarks``). A publisher that is
down is waited for, since it may go on where it was. One that was replaced by another app, or given up, would hold its readers
for ever. To retire it is to publish None in its place, through its own transactional id: readers then go by the others,
or, if there are none, by the last watermark.

    a task that has published     publishes None for each of its topics
    a task that never has         the same, for the topics of the other tasks: readers wait for it from the moment on at which
                                  one of these has published
    a channel of messages         is left alone: only tasks of the same app follow it, and these need it if they come again

A rebuild that has written topics is an app of this kind, ``rebuild-<snapshot>``. It notes for each of its topics that all is
published, and the first service that begins to live on one retires it then. Another rebuild finds the topics as they were.

Nothing else of the app is touched, so one that is started again goes on where it was: its tasks find that what they have
published last is not what they stand at, and publish again with their first commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tailrace.core.declare.plan import Plan
from tailrace.core.durations import NO_WATERMARK, is_instant
from tailrace.core.errors import TaskOwnedError, UnknownAppError
from tailrace.core.records import CHANNEL
from tailrace.core.suggestions import did_you_mean
from tailrace.history.upstream_watermarks import transactional_id
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import Log, TopicPartition
from tailrace.processes.task_ownership import TaskOwnership

_log = logging.getLogger("tailrace.service")

REBUILD = "rebuild-"
"""The publishers of a rebuild begin with this; the id of its snapshot follows."""


class RetiredTopic(NamedTuple):
    """What the tasks of a retired app had published for one topic."""

    topic: str
    publishers: int
    """How many were retired. Those that held nobody back before are not counted."""
    lowest_ms: int | None
    """The least of their last watermarks; None if none of them has published one."""
    highest_ms: int | None


class Retirement(NamedTuple):
    """What came of retiring an app. ``publishers`` are the transactional ids of the tasks that were retired."""

    app: str
    publishers: list[str]
    topics: list[RetiredTopic]


def publishers_of(log: Log) -> dict[str, dict[int, dict[str, int | None]]]:
    """By app and task, what was last published for each topic. Channels of messages are left out."""
    found: dict[str, dict[int, dict[str, int | None]]] = {}
    for (topic, publisher), watermark_ms in log.publications().items():
        app, _, number = publisher.rpartition("-")
        if app and number.isdecimal() and CHANNEL not in topic:
            found.setdefault(app, {}).setdefault(int(number), {})[topic] = watermark_ms
    return found


def retire(log: EmbeddedLog, app: str) -> Retirement:
    """Have all tasks of an app publish that they hold nobody back. May be called again.

    Raises:
        UnknownAppError: It has never published anything in this log.
        TaskOwnedError: It runs.
    """
    known = publishers_of(log)
    if app not in known:
        raise _unknown(app, known)
    said = known[app]
    topics = sorted({topic for some in said.values() for topic in some})
    tape = log.topics().get(f"{app}.tape")
    numbers = sorted({*said, *range(tape.partitions if tape else 0)})
    try:
        ownership = TaskOwnership(log.path, app, numbers, from_stopped=False)
    except TaskOwnedError as error:
        raise TaskOwnedError(
            f"the app {app!r} runs, and an app that runs is not retired: {error.what}",
            hint="Stop it first. If it is meant to run, it needs no retiring: it holds its readers back only as far as "
            "its own inputs hold it.",
        ) from None
    check_owned, log.check_owned = log.check_owned, ownership.check
    retired: dict[int, list[str]] = {}
    try:
        for number in numbers:
            holding = [topic for topic in topics if said.get(number, {}).get(topic, NO_WATERMARK) is not None]
            if holding:
                writer = log.writer(transactional_id(app, number))
                writer.commit(None, "", dict.fromkeys(holding))
                writer.close()
                retired[number] = holding
    finally:
        log.check_owned = check_owned
        ownership.release()
    found = [_topic(one, [number for number in retired if one in retired[number]], said) for one in topics]
    return Retirement(
        app, [transactional_id(app, number) for number in retired], [one for one in found if one.publishers]
    )


# --- rebuilds


def finished_notes(topics: Iterable[str], number: int) -> dict[TopicPartition, int]:
    """The offsets that a task of a rebuild commits when it has published all that it has of some topics."""
    return {TopicPartition(topic, number): 1 for topic in topics}


def retire_rebuilds(plan: Plan, log: EmbeddedLog) -> None:
    """Retire the rebuilds that have written topics which an app reads or writes, as far as they are finished."""
    topics = {*(one.name for one in plan.inputs), *(one.name for one in plan.published)}
    for app, tasks in publishers_of(log).items():
        held = {
            TopicPartition(topic, number)
            for number, said in tasks.items()
            for topic, mark in said.items()
            if topic in topics and mark is not None
        }
        if not app.startswith(REBUILD) or not held or held - log.committed_offsets(app, held).keys():
            continue
        try:
            retire(log, app)
        except TaskOwnedError:
            continue  # another service does, now
        _log.info(
            "%s has written %s and will not come again: it was retired",
            app,
            " and ".join(sorted({one.topic for one in held})),
            extra={"app": plan.app, "rebuild": app},
        )


def _topic(topic: str, numbers: list[int], said: Mapping[int, Mapping[str, int | None]]) -> RetiredTopic:
    last = [said.get(number, {}).get(topic) for number in numbers]
    marks = [mark for mark in last if mark is not None and is_instant(mark)]
    return RetiredTopic(topic, len(numbers), min(marks, default=None), max(marks, default=None))


def _unknown(app: str, known: Mapping[str, object]) -> UnknownAppError:
    others = ", ".join(map(repr, sorted(known)))
    return UnknownAppError(
        f"no app {app!r} has published a watermark in this log",
        hint=did_you_mean(app, known, f"Watermarks were published by {others}.")
        if known
        else "Nobody has: look at the path of the log.",
    )
