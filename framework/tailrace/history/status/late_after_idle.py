"""Puts into words that events were late because their input had been idle (see ``core.engine.watermarks``)."""

from __future__ import annotations

from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.durations import spelled

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
