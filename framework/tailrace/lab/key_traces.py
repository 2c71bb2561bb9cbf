"""Traces of the keys that differ most, in one version, around the first event from which the versions part.

A paragraph of a trace is what one record or timer does to a key (see ``history.replay.trace``). Kept are some before the
first event and some from it on; of a timer that only the other version sets, they are chosen by its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.observer import Moment, Watch
from tailrace.core.engine.units import TIMER
from tailrace.core.values.partitioner import partition_of
from tailrace.history.rebuilding.request import Execution, Request
from tailrace.history.rebuilding.trial import trial
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.history.replay.trace import Part, Trace
from tailrace.lab.trail import First, Item, watched_keys

_BEFORE, _FROM = 2, 4
"""Number of paragraphs that are kept."""


class Paragraph(msgspec.Struct):
    """What a record or a timer does to a key. ``is_first``: the versions part here."""

    time_ms: int
    is_first: bool
    lines: list[str]


class _AllFound(BaseException):
    """Ends a run: nothing is left to write."""


class _Pages:
    """The paragraphs of some keys, each around its first event."""

    def __init__(self, plan: Plan, firsts: Mapping[Any, First]) -> None:
        self._plan, self._firsts = plan, firsts
        self.found: dict[Item, list[Paragraph]] = {item: [] for item, _ in firsts.values()}
        self._at: list[Paragraph] = []
        self._left = {item: _FROM for item, _ in firsts.values()}

    def write(self, *parts: Part, begins: Moment | None = None) -> None:
        """See ``history.replay.trace.Write``."""
        if begins is not None:
            self._begin(begins)
        for one in self._at:
            one.lines.append("".join(part if isinstance(part, str) else part[0] for part in parts).rstrip())

    def _begin(self, moment: Moment) -> None:
        if not self._left:
            raise _AllFound
        self._at = []
        if (first := self._firsts.get(moment.key)) is None or first[0] not in self._left:
            return
        item, cause = first
        paragraphs, is_timer = self.found[item], moment.input == TIMER
        time_ms = moment.at if is_timer else moment.event_time
        same = (
            (moment.timer or "", time_ms) == (cause.timer, cause.time_ms)
            if is_timer
            else (self._plan.inputs[moment.input].name, time_ms) == (cause.topic, cause.time_ms)
            and cause.offset in (None, moment.at)
        )
        has_parted = same or (cause.offset is None and time_ms > cause.time_ms)
        if self._left[item] == _FROM and not has_parted:
            del paragraphs[: max(0, len(paragraphs) + 1 - _BEFORE)]
        else:
            self._left[item] -= 1
        if not self._left[item]:
            del self._left[item]
        paragraphs.append(Paragraph(time_ms, same, []))
        self._at = [paragraphs[-1]]


def key_traces(plan: Plan, request: Request, firsts: list[First]) -> list[list[Paragraph]]:
    """Run the keys of these first events once more, and trace them: their paragraphs, in the order of ``firsts``."""
    found: dict[Item, list[Paragraph]] = {}
    by_key: dict[Any, First] = {}
    for item, cause in sorted(firsts, key=lambda one: one[1].time_ms, reverse=True):
        by_key.update(dict.fromkeys(watched_keys(plan, [item]), (item, cause)))
    to, execution = replace(request.to, outputs="none"), Execution(store="memory")
    with trial(replace(request, to=to, execution=execution), WorkFolder) as (job, _, run):
        whole, count = job.delivers_sends, plan.partitions
        for number in (0,) if whole else range(count):
            here = {
                key: one for key, one in by_key.items() if whole or partition_of(one[0].key, count) == number
            }
            pages = _Pages(plan, here)
            try:
                if here:
                    run(number, Watch(Trace(plan, here, pages.write), frozenset(here)))
            except _AllFound:
                pass
            found |= pages.found
    return [found.get(item, []) for item, _ in firsts]
