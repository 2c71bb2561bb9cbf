"""Redriven records: for which app a record was redriven.

Theory. A redriven record is a second copy of a record in its topic, appended because one app could not handle
the first. Any other app that reads the topic has read the original, at its own point in its own history. So a
task *skips* a record that was redriven for another app: no handler gets it, it moves neither a watermark nor
the clock, an idle input stays idle, and the order of the other records does not depend on it. The task counts
it (``Totals.for_others``).

    last header names            the record is
    this app                     handled, and never treated as late
    an app whose history this    the same, if the original is before the point where this app took over: it
    one continues                failed there and is not part of the state. Otherwise it is skipped: this app
                                 has read the original itself
    another app                  skipped
    nothing that is an id        an ordinary record

The header's value is ``<app>.dead-letters/<letter>@<partition>-<offset>``. The part after the @ is the place
of the original; it is missing if the dead letter does not have it. A record that was redriven several times
has one header for each time, and the last one counts.

A record may be handled by several units: one for each ordered operator, and one for all others. The dead letter of
such a unit names its operators, and so does the redriven record (``OPERATORS_HEADER``): the others have handled
the original. Without the header of a redrive, a record is for all operators.

In event-time order, a rebuild handles the original in its place, so it skips a redriven record whose original it reads
(``Addressees.originals``).

In topics that only the app itself reads (its inbox, and its topics for repartitioning), every redriven record
is for this app.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.names import dead_letters_of
from tailrace.core.records import Headers

REDRIVEN_HEADER: Final = "tailrace-redriven"
"""Header of a redriven record: the topic and id of its dead letter, and the place of the original."""

OPERATORS_HEADER: Final = "tailrace-operators"
"""Header of a redriven record, and of its dead letter: the operators that handle it, if not all that take it."""

_VALUE = re.compile(
    rb"(?P<topic>.+\.dead-letters)/(?P<id>\d{1,18}-\d{1,18})(?:@(?P<partition>\d{1,18})-(?P<offset>\d{1,18}))?"
)


class Redriven(NamedTuple):
    """The content of one header. ``origin``: the original's partition and offset, None if not known."""

    topic: str
    """The dead-letter topic."""
    id: str
    origin: tuple[int, int] | None


def redriven_header(topic: str, id: str, origin: tuple[int, int] | None) -> tuple[str, bytes]:
    """The header of a record that is redriven for a dead letter."""
    place = "" if origin is None else "@{}-{}".format(*origin)
    return REDRIVEN_HEADER, f"{topic}/{id}{place}".encode()


def redrives_in(headers: Headers) -> list[Redriven]:
    """The contents of all such headers of a record, in the order of the failures."""
    found: list[Redriven] = []
    for name, value in headers:
        if name == REDRIVEN_HEADER and (match := _VALUE.fullmatch(value)) is not None:
            origin = None if match["offset"] is None else (int(match["partition"]), int(match["offset"]))
            found.append(Redriven(match["topic"].decode(errors="replace"), match["id"].decode(), origin))
    return found


def addressed(plan: Plan, headers: Headers) -> frozenset[int] | None:
    """The numbers of the operators that a record was redriven for; None for all that take it."""
    named = dict(headers).get(OPERATORS_HEADER)
    if named is None or not redrives_in(headers):
        return None
    names = named.decode(errors="replace").split(",")
    return frozenset(one.index for one in plan.operators if one.name in names)


class Addressees:
    """Decides which redriven records a task handles, by input."""

    def __init__(self, plan: Plan, predecessors: Mapping[str, tape.Predecessor]) -> None:
        self._topic = plan.dead_letters_topic
        self._predecessors = {dead_letters_of(app): one for app, one in predecessors.items()}
        hidden = {route.name for one in plan.inputs if one.repartitioned for route in one.routes}
        self._private = [one.is_inbox or one.name in hidden for one in plan.inputs]
        self._own = [one.name for one in plan.inputs]
        self.originals: tuple[int, Mapping[str, int]] | None = None
        """In event-time order: the task's partition, and by input the offset from which it handles the originals."""

    def is_ours(self, number: int, headers: Headers) -> bool:
        """Whether a record of an input was redriven for this app. Then it is never treated as late."""
        redrives = redrives_in(headers)
        return bool(redrives) and self._is_ours(number, redrives[-1])

    def passes_over(self, number: int, headers: Headers) -> bool:
        """Whether a record of an input was redriven for another app."""
        redrives = redrives_in(headers)
        if not redrives:
            return False
        last = redrives[-1]
        if self.originals is not None and last.origin is not None:
            partition, starts = self.originals
            if last.origin[0] == partition and last.origin[1] >= starts[self._own[number]]:
                return True
        return not self._is_ours(number, last)

    def _is_ours(self, number: int, last: Redriven) -> bool:
        if last.topic == self._topic or self._private[number]:
            return True
        before = self._predecessors.get(last.topic)
        return before is not None and before.is_before(self._own[number], last.origin)
