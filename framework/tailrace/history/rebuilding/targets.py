"""Settles a rebuild: its order, where each task ends, and the check that the needed history is there.

A commit of the log is one step for all topics, so the last cuts below the ends of one commit are consistent
with one another: the messages that a task had sent by then are in the inboxes up to the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.describe_rows import instant
from tailrace.core.errors import OptionError
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.app_topics import topics_of
from tailrace.history.reading.beginnings import check_whole
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.reading.same_topics import check_history, note_of_topics, replaced_topics
from tailrace.history.rebuilding.canonical_targets import settle_canonical
from tailrace.history.rebuilding.failures import naming_canonical
from tailrace.history.rebuilding.job import Settled, SettledOrder, Target
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.request import Request
from tailrace.history.rebuilding.tape_targets import settle_along_tape
from tailrace.log.interface import Ends
from tailrace.state.snapshots import Snapshot, Snapshots


def settle(request: Request, past: HistorySource) -> Settled:
    """Find where history ends, and refuse requests that this history cannot fulfil.

    Raises:
        OptionError: A key, an offset or a time makes no sense for this app or this log.
        SnapshotMismatchError: The app has never committed, or the base cannot be continued from.
        OffsetGoneError: The log has deleted records that the rebuild needs.
        TopicReplacedError: An input or the tape was deleted and created again, and canonical order was not
        requested.
    """
    plan = past.plan
    _check_keys(request, plan)
    base = _base(request, past)
    if request.order != "canonical":
        check_history(plan.app, past.log, plan.inputs)
    order, notes = _order(request, past)
    settled = msgspec.structs.replace(_last_commits(past, order, request.source.ends), notes=notes)
    if base is not None:
        settled = msgspec.structs.replace(settled, base=base.manifest.id)
    if order == "canonical":
        return settle_canonical(request, past, base, settled)
    with naming_canonical():
        return settle_along_tape(request, past, base, settled)


def _last_commits(past: HistorySource, order: SettledOrder, given: Ends | None) -> Settled:
    """The last commits of all tasks as of one commit of the log, and the ends of all topics then."""
    plan = past.plan
    with past.compaction_paused():
        read = topics_of(plan, past.log)
        topics = note_of_topics(past.log, read)
        position, ends = past.ends(read) if given is None else given
        targets: list[Target] = []
        for number in range(plan.partitions):
            if plan.changelog_topic not in ends:
                targets.append(Target(number, None, None))
                continue
            found = past.committed(number, end=ends[plan.changelog_topic][number])
            targets.append(Target(number, found.cut, found.position))
    return Settled(order=order, targets=tuple(targets), ends=ends, position=position, topics=topics)


def _base(request: Request, past: HistorySource) -> Snapshot | None:
    """The snapshot that the rebuild is to continue from, if one was requested."""
    if request.source.base is None:
        return None
    base = Snapshots(request.source.base, past.plan.app).open(request.source.base_id)
    # In an app that sends to itself, the other keys are run as well.
    check_whole(base, past.plan, () if own_inputs(past.plan) else request.keys)
    return base


def _order(request: Request, past: HistorySource) -> tuple[SettledOrder, tuple[str, ...]]:
    """The order to use, and the notes about it."""
    plan, log = past.plan, past.log
    if request.as_of_ms is not None:
        _check_as_of(request)
        return "canonical", (
            f"as of {instant(request.as_of_ms)}: in canonical order, without events from after this time",
            *_replaced(past),
        )
    if request.order == "canonical":
        return "canonical", tuple(_replaced(past))
    if request.order == "tape":
        with naming_canonical():
            AppHistory(plan, log)
        return "tape", ()
    if plan.tape_topic not in log.topics():
        note = "the app has never run on this log: in canonical order, as there is no tape"
        return "canonical", (note, *_replaced(past))
    if request.source.base is None and any(
        log.start_offset(plan.tape_topic, n) for n in range(plan.partitions)
    ):
        note = "the beginning of the tape is deleted: in canonical order"
        return "canonical", (note, *_replaced(past))
    return "tape", ()


def _check_as_of(request: Request) -> None:
    """Refuse what does not go with a point in event time."""
    for given, option, why in (
        (request.order == "tape", "--order tape", "the tape goes by the order of arrival"),
        (request.until.any, "another limit", "it would end before the time"),
        (request.source.base is not None, "--from-snapshot", "its state may hold events from after the time"),
    ):
        if given:
            raise OptionError(f"--as-of does not go with {option}: {why}", hint=f"Leave {option} out.")


def _replaced(past: HistorySource) -> Iterator[str]:
    """Notes about topics of which the app has read another one of the same name."""
    plan = past.plan
    for topic in replaced_topics(plan.app, past.log, (one.name for one in plan.inputs)):
        yield (
            f"{topic} was deleted and created again since the service has read it: this is the state that "
            "follows from what the new one holds"
        )


def _check_keys(request: Request, plan: Plan) -> None:
    try:
        named_keys(plan, request.keys)
    except ValueError as error:
        raise OptionError(str(error), hint="Write it as it stands in the events.") from None
