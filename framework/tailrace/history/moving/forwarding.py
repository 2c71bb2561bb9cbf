"""Producers need not stop while an app is reshaped: what they write to the old log meanwhile is forwarded to the new one.

Theory. Before anything is copied, the ends of the old inputs are noted on the target, in the topic ``<app>.forwarded``. The copy ends
there. Once the new tasks have begun, a forwarder appends what is behind, as any producer would: each record goes to the partition of its
key. Where it has come to is noted in the same commit::

    the forwarder is killed        its last commit is whole, or it is not there: nothing is lost or doubled
    a second one is started        it fences the first, by the transactional id of the topic
    a producer goes to the new     its records there may come before those of its that are still forwarded. For the order of its
    log                            keys, start it there when the forwarder has nothing left
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import OptionError
from tailrace.core.names import forwarded_of
from tailrace.core.records import Output
from tailrace.history.moving.spreading import Routing
from tailrace.history.reading.stretches import last
from tailrace.log.interface import StoredLog, TopicSettings, Writer

_AT_ONCE = 5_000
"""Records of one partition in a commit."""
Ends = Mapping[str, Sequence[int]]
"""By input, the offset in each partition of the old log up to which the new one has its records."""


def noted_ends(target: StoredLog, app: str) -> Ends | None:
    """How far the new log has the inputs of an app; None if nothing was noted."""
    topic = forwarded_of(app)
    found = last(target, topic, 0) if topic in target.topics() else None
    return None if found is None else msgspec.json.decode(found.value or b"", type=dict[str, list[int]])


def note_ends(target: StoredLog, app: str, ends: Ends) -> None:
    """Note where the copy ends."""
    target.create_topic(forwarded_of(app), TopicSettings(1, compacted=True))
    with closing(target.writer(forwarded_of(app))) as writer:
        _note(writer, app, ends)


def _note(writer: Writer, app: str, ends: Ends) -> None:
    now_ms = time.time_ns() // 1_000_000
    writer.append([Output(forwarded_of(app), b"ends", msgspec.json.encode(ends), now_ms)], 0)
    writer.commit()


class Forwarder:
    """Forwards the inputs of an app that was reshaped. ``plan``: as it was on the old log. Raises OptionError: nothing was noted."""

    def __init__(self, plan: Plan, source: StoredLog, target: StoredLog, *, rekeyed: bool) -> None:
        found = noted_ends(target, plan.app)
        if found is None:
            raise OptionError(
                f"the app {plan.app!r} was reshaped without --follow, so it is not known where the copies of its inputs end",
                hint="Leave --follow out.",
            )
        self._app, self._source, self._ends = plan.app, source, {name: [*at] for name, at in found.items()}
        self._routes = {name: Routing(plan, source, target, name, rekeyed=rekeyed) for name in self._ends}
        self._writer = target.writer(forwarded_of(plan.app))

    def step(self) -> int:
        """Forward what is there, up to some thousand records. Returns how many. Raises FencedError: another forwarder has begun."""
        now, count = self._source.ends(self._ends).offsets, 0
        for name, starts in self._ends.items():
            stops = [min(end, start + _AT_ONCE) for start, end in zip(starts, now[name], strict=True)]
            for number, one in self._routes[name].routed(starts, stops):
                self._writer.append([Output(name, one.key, one.value, one.timestamp_ms, one.headers)], number)
                count += 1
            self._ends[name] = stops
        if count:
            _note(self._writer, self._app, self._ends)
        return count

    def close(self) -> None:
        """Give the transactional id back."""
        self._writer.close()
