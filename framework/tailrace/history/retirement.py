"""Retiring an app: its tasks publish that they no longer hold readers back, because they will not run again.

Theory. The watermark of a topic is the least of its publishers' (see ``upstream_watermarks``). Readers wait for a
publisher that is down, since it may resume. One that was replaced by another app, or given up, would hold them back
without a limit. To retire it means to publish None in its place, through its own transactional id: readers then use
the other publishers, or, if there are none, the last watermark.

    a task that has published     publishes None for each of its topics
    a task that never has         the same, for the topics of the others: readers wait for it once they have published
    a channel of messages         is left unchanged: only tasks of the same app follow it

An app that is started again resumes at its last commit, and publishes its watermarks again.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

from tailrace.core.durations import NO_WATERMARK, is_instant
from tailrace.core.errors import TaskOwnedError, UnknownAppError
from tailrace.core.names import tape_of, task_of, transactional_id
from tailrace.core.records import CHANNEL
from tailrace.core.suggestions import did_you_mean
from tailrace.log.interface import Log, ServiceLog


class RetiredTopic(NamedTuple):
    """What the tasks of a retired app had published for one topic."""

    topic: str
    publishers: int
    """Number of publishers that were retired, without those that held no reader back before."""
    lowest_ms: int | None
    """The least of their last watermarks; None if none of them has published a watermark."""
    highest_ms: int | None


class Retirement(NamedTuple):
    """The result of retiring an app. ``publishers``: the transactional ids of the retired tasks."""

    app: str
    publishers: list[str]
    topics: list[RetiredTopic]


def publishers_of(log: Log) -> dict[str, dict[int, dict[str, int | None]]]:
    """By app and task, the last publication for each topic, without the channels of messages."""
    found: dict[str, dict[int, dict[str, int | None]]] = {}
    for (topic, publisher), watermark_ms in log.publications().items():
        task = task_of(publisher)
        if task is not None and CHANNEL not in topic:
            found.setdefault(task[0], {}).setdefault(task[1], {})[topic] = watermark_ms
    return found


@contextmanager
def reserved(
    log: ServiceLog, app: str, numbers: Collection[int], but: str, hint: str = "Stop it first."
) -> Generator[None]:
    """Check that no process runs the app. Where tasks do not move, none can begin to run these in the block.

    Raises TaskOwnedError: one runs it, ``but`` (what is not done).
    """
    with ExitStack() as held:
        try:
            held.enter_context(log.reserve(app, numbers))
        except TaskOwnedError as error:
            raise TaskOwnedError(f"the app {app!r} runs{but}: {error.what}", hint=hint) from None
        yield


def retire(log: ServiceLog, app: str) -> Retirement:
    """Publish for all tasks of an app that they hold no reader back. It is safe to call this again.
    Raises UnknownAppError or TaskOwnedError.
    """
    known = publishers_of(log)
    if app not in known:
        raise _unknown(app, known)
    said = known[app]
    topics = sorted({topic for some in said.values() for topic in some})
    tape = log.topics().get(tape_of(app))
    numbers = sorted({*said, *range(tape.partitions if tape else 0)})
    retired: dict[int, list[str]] = {}
    but = ", and an app that runs is not retired"
    hint = (
        "Stop it first. If it is meant to run, it needs no retiring: it holds its readers back only as far as "
        "its own inputs hold it."
    )
    # Where tasks move, a process of the app may start meanwhile, and publishes again.
    with reserved(log, app, numbers, but, hint):
        for number in numbers:
            last = said.get(number, {})
            holding = [topic for topic in topics if last.get(topic, NO_WATERMARK) is not None]
            if holding:
                with closing(log.writer(transactional_id(app, number))) as writer:
                    # A reader needs the last watermark before None, and a new writer may not know it.
                    writer.commit(None, "", {topic: last[topic] for topic in holding if topic in last})
                    writer.commit(None, "", dict.fromkeys(holding))
                retired[number] = holding
    found = [_topic(one, [number for number in retired if one in retired[number]], said) for one in topics]
    return Retirement(
        app, [transactional_id(app, number) for number in retired], [one for one in found if one.publishers]
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
