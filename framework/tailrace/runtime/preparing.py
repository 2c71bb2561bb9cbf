"""What is checked and noticed before the tasks of a service run, once for all of its processes.

It names other apps that have published watermarks for a topic which this app also writes, and do not run: readers of the topic
wait for them until they run again, or are retired. And it names topics that keep records for too short a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

from tailrace.core.declare.event_codec import EventCodec
from tailrace.core.declare.plan import Plan
from tailrace.core.durations import is_instant, spelled
from tailrace.core.engine.describe_rows import instant
from tailrace.core.errors import OptionError, UnknownTopicError, UsageError
from tailrace.core.names import tape_of, transactional_id
from tailrace.core.suggestions import did_you_mean
from tailrace.history.provenance.moves import check_lives_here
from tailrace.history.reading.app_topics import internal_topics, prepare_topics
from tailrace.history.retirement import publishers_of
from tailrace.history.status.holding import IsOwned
from tailrace.history.status.inspection import kept_too_short
from tailrace.history.topics.topic_plan import check_topics
from tailrace.log.interface import Log, StoredLog
from tailrace.log.tasks import is_owned
from tailrace.processes.app_loading import find_app
from tailrace.runtime.first_positions import note_first_positions
from tailrace.runtime.options import ServiceOptions

_log = logging.getLogger("tailrace.service")


def prepare(log: StoredLog, options: ServiceOptions, plan: Plan) -> None:
    """Check the options, and that the topics fit the app. Log the notices.

    Raises:
        UnknownTopicError, TopicMismatchError: A declared topic is not there, or a topic has other partitions.
        OtherHistoryError: The app lives on another log.
        RegistryError: A schema registry does not answer, or refuses the schema of a topic that the app writes.
    """
    check_topics(plan, log, options.app)
    original = find_app(options.app.partition("@")[0]).name if "@" in options.app else ""
    if original:
        check_copy(plan, log, original)
    prepare_log(log, plan, create_declared=options.create_topics, begins_with_log=not options.from_snapshot)
    for name in plan.written & plan.topics.keys():
        if isinstance(codec := plan.topics[name].codec, EventCodec):
            codec.prepare()
    # Asked at the start only: see ``TaskLog.owner``.
    announce(plan, log, partial(is_owned, log))


def check_options(log: StoredLog, options: ServiceOptions) -> None:
    """Refuse options that a log cannot honour, with an ``OptionError``."""
    if not log.moves_tasks and (options.standbys or options.downgrade):
        raise OptionError("--standbys and --downgrade are for a log on Kafka")
    if log.moves_tasks and options.workers > 1:
        raise OptionError(
            "--workers is not for Kafka",
            hint="Start the service several times: the processes share the tasks.",
        )
    if log.moves_tasks and options.from_snapshot and not options.from_snapshot.partition("#")[2]:
        raise OptionError(
            "on Kafka --from-snapshot needs the name or id of a snapshot: processes that start at different times would find different "
            "ones to be the latest",
            hint=f"Name it: {options.from_snapshot}#SNAPSHOT. `tailrace snapshot list` shows what is there.",
        )
    # Brokers abort a transaction that is open for too long, so nothing would ever be committed.
    if options.commit_interval_ms > log.transaction_timeout_ms // 2 > 0:
        raise OptionError(
            f"--commit-interval is {spelled(options.commit_interval_ms)}, and Kafka aborts a transaction that is open for "
            f"{spelled(log.transaction_timeout_ms)}",
            hint="Commit at least twice in that time; or set TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS to twice the interval or more, "
            "within the brokers' transaction.max.timeout.ms (15 minutes by default).",
        )


def check_copy(plan: Plan, log: Log, original: str) -> None:
    """Refuse another name of an app that reads what it writes itself: each of the two would handle the other's events.
    Raises UsageError: the original has a history on this log, and there is such a topic.
    """
    own = f"{plan.app}."
    shared = [one.name for one in plan.inputs if one.own and not one.name.startswith(own)]
    if shared and plan.app != original and tape_of(original) in log.topics():
        raise UsageError(
            f"{plan.app!r} is another name of {original!r}, and both would read what the other writes to "
            f"{' and '.join(map(repr, shared))}: each event would count twice in both",
            hint="Compare them on logs of their own, or with 'tailrace rebuild'; or have the code name such topics after the app.",
        )


def prepare_log(log: Log, plan: Plan, *, create_declared: bool, begins_with_log: bool = True) -> None:
    """Check the topics that are there, create those that are missing, and note where the app begins. Raises what ``prepare`` raises."""
    check_lives_here(log, plan.app)
    known = log.topics()
    declared, internal = {*(one.name for one in plan.inputs), *plan.outputs}, internal_topics(plan).keys()
    missing = sorted(declared - internal - known.keys())
    for name in missing:
        with suppress(UnknownTopicError):
            log.partitions(name)  # one that exists may be hidden from this user
    if missing and not create_declared:
        others = known.keys() - declared - internal
        meant = [did_you_mean(name, others) for name in missing]
        raise UnknownTopicError(
            f"the log has no topic {' and no '.join(map(repr, missing))}, which the app {plan.app!r} declares",
            hint=" ".join(
                [
                    *filter(None, meant),
                    "Correct the names, start their writer first, or create them with --create-topics.",
                ]
            ),
        )
    prepare_topics(log, plan, create_declared=create_declared)
    note_first_positions(plan, log, told=begins_with_log)


def announce(plan: Plan, log: Log, is_owned: IsOwned) -> None:
    """Log the notices for an app that starts. ``is_owned`` takes the transactional id of a task."""
    for problem in kept_too_short(plan, log, time.time_ns() // 1_000_000):
        _log.warning("%s", problem, extra={"app": plan.app})
    for app, tasks in publishers_of(log).items():
        if app == plan.app or any(is_owned(transactional_id(app, number)) for number in tasks):
            continue
        for topic, mark in _held(plan, tasks.values()).items():
            _log.warning(
                "%r is also written by the app %r, which is not running: readers that follow the topic wait for it %s. "
                "If it will not run again, retire it: tailrace retire %s",
                topic,
                app,
                f"at {instant(mark)}" if is_instant(mark) else "before its first event",
                app,
                extra={"app": plan.app, "topic": topic, "other_app": app},
            )


def _held(plan: Plan, tasks: Iterable[Mapping[str, int | None]]) -> dict[str, int]:
    """The topics that an app writes and tasks of another app hold back, with the lowest watermark of those tasks."""
    written = {one.name for one in plan.published}
    held: dict[str, int] = {}
    for said in tasks:
        for topic, mark in said.items():
            if topic in written and mark is not None:
                held[topic] = min(mark, held.get(topic, mark))
    return dict(sorted(held.items()))
