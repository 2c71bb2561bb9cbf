"""Two problems of event time in words.

A topic keeps records for a shorter time than events wait in ordered actors: a start reads what waits again. Events were late
because their input had been idle (see ``core.engine.watermarks``).
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.durations import spelled
from tailrace.core.engine import tape
from tailrace.core.engine.describe_rows import instant
from tailrace.history.reading.changelog import last_cut
from tailrace.history.reading.stretches import first
from tailrace.log.interface import Log, TopicPartition


def kept_too_short(plan: Plan, log: Log, now_ms: int) -> Iterator[str]:
    """A sentence or two for each such topic, by what is declared and by what waits in the tasks of the app."""
    ordered, known = {one.index for one in plan.operators if one.ordered}, log.topics()
    for one in plan.inputs:
        waits = ordered.intersection(one.moves, (route.operator for route in one.routes))
        kept_ms = known[one.name].retention_ms if waits and one.name in known else None
        if kept_ms is None:
            continue
        longest_ms = max(each.out_of_order_ms for each in plan.inputs if waits.intersection(each.moves))
        oldest_ms = min(_waiting(plan, log, one.name), default=now_ms)
        if longest_ms > kept_ms:
            why = f"for up to the out_of_order of {spelled(longest_ms)}"
        elif now_ms - oldest_ms > kept_ms:
            why = f"the oldest one is of {instant(oldest_ms)}"
        else:
            continue
        yield (
            f"{one.name!r} keeps records for {spelled(kept_ms)}, and events wait in it for longer, to be handled in event-time "
            f"order: {why}. If one is deleted before it is handled, the app does not start any more. Keep the topic for longer"
        )


def _waiting(plan: Plan, log: Log, topic: str) -> Iterator[int]:
    """In each task, the timestamp of the first record of a topic that waits."""
    for number in range(plan.partitions):
        found = last_cut(log, TopicPartition(plan.changelog_topic, number))
        cut = None if found is None or found.value is None else tape.decode_cut(found.value)
        lows = (
            [] if cut is None else [one.lows[topic][0] for one in cut.ordered.values() if topic in one.lows]
        )
        record = first(log, topic, number, min(lows)) if lows else None
        if record is not None:
            yield record.timestamp_ms


_SECOND_MS = 1_000


def cause_of(plan: Plan, source: str, late: int, idle_ms: int) -> str:
    """The number of late events, the source that had been idle, for how long, and what helps."""
    one = next((each for each in plan.inputs if each.name == source), None)
    what = f"{counted(late, 'event')} late because {source!r} had been idle for {shown(idle_ms)}"
    if one is None or one.watermark == "upstream":
        return f"{what}, as its writers were: raise the idle_after of their inputs"
    return f"{what}: raise its idle_after ({spelled(one.idle_after_ms)})"


def shown(duration_ms: int) -> str:
    """A duration in seconds, or larger units; a short one in milliseconds."""
    return spelled(duration_ms if duration_ms < _SECOND_MS else duration_ms // _SECOND_MS * _SECOND_MS)
