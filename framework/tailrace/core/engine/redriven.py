"""Redriven records: which app one is for.

Theory. A redriven record is a second copy of a record in its topic, appended because one app could not handle the first. Any other
app that reads the topic has had the original, at its own point of its own history. So a task *passes over* a redriven record of
another app: no handler gets it, it moves neither a watermark nor the clock, an idle input stays idle, and the order of the
other records is what it would be without it. It is counted (``Totals.for_others``).

    the last header names        the record
    this app                     is handled, and never taken for late
    an app whose history this    the same, if the original lies before the point where the histories part: it failed there, and
    one goes on from             nothing of it is in the state. Else it is passed over: this app has read the original itself
    another app                  is passed over
    nothing that is an id        is an ordinary record

The header's value is ``<app>.dead-letters/<letter>@<partition>-<offset>``; behind the @ is the place of the original, which
earlier versions left out. A record that was redriven more than once has one header for each time, and the last one counts.

Topics that nobody but the app reads (its inbox, and what it repartitions through) hold what was redriven for itself only.
Up to format 2 of the tape a redriven record went to every app; a replay of such a tape does the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.records import Headers

REDRIVEN_HEADER: Final = "tailrace-redriven"
"""On a record that was redriven: the topic and id of its dead letter, and the place of the original."""

_VALUE = re.compile(rb"(?P<topic>.+\.dead-letters)/(?P<id>\d+-\d+)(?:@(?P<partition>\d+)-(?P<offset>\d+))?")


class Redriven(NamedTuple):
    """What one header says. ``origin`` is the partition and offset of the original, None if that is not known."""

    topic: str
    """The dead-letter topic."""
    id: str
    origin: tuple[int, int] | None


def redriven_header(topic: str, id: str, origin: tuple[int, int] | None) -> tuple[str, bytes]:
    """The header of a record that is redriven for a dead letter."""
    place = "" if origin is None else "@{}-{}".format(*origin)
    return REDRIVEN_HEADER, f"{topic}/{id}{place}".encode()


def redriven_of(headers: Headers) -> list[Redriven]:
    """What all such headers of a record say, the first failure first."""
    found: list[Redriven] = []
    for name, value in headers:
        if name == REDRIVEN_HEADER and (said := _VALUE.fullmatch(value)) is not None:
            origin = None if said["offset"] is None else (int(said["partition"]), int(said["offset"]))
            found.append(Redriven(said["topic"].decode(errors="replace"), said["id"].decode(), origin))
    return found


def redriven_ids(headers: Headers, topic: str) -> list[str]:
    """The ids of the dead letters in ``topic`` that a record was redriven for, that of the first failure first.

    There are none if it was not redriven, or for another app: then the app of ``topic`` has had the original.
    """
    said = redriven_of(headers)
    if not said or said[-1].topic != topic:
        return []
    return [one.id for one in said if one.topic == topic]


class Addressees:
    """Which redriven records a task takes, by its inputs."""

    __slots__ = ("_own", "_predecessors", "_private", "_topic", "format", "sorted_out")

    def __init__(self, plan: Plan, predecessors: Mapping[str, tape.Predecessor]) -> None:
        self._topic = plan.dead_letters_topic
        self._predecessors = {f"{app}.dead-letters": one for app, one in predecessors.items()}
        hidden = {route.name for one in plan.inputs if one.repartitioned for route in one.routes}
        self._private = [one.is_inbox or one.name in hidden for one in plan.inputs]
        self._own = [one.name for one in plan.inputs]
        self.format = tape.FORMAT
        """Of the tape that is replayed: rules have changed with it."""
        self.sorted_out = False
        """Records of other apps are not among those that come here: whatever comes is taken."""

    def is_ours(self, number: int, headers: Headers) -> bool:
        """Whether a record of an input was redriven for this app: then it is never taken for late."""
        said = redriven_of(headers)
        return bool(said) and self.format >= 2 and self._is_ours(number, said[-1])

    def passes_over(self, number: int, headers: Headers) -> bool:
        """Whether a record of an input was redriven for another app."""
        if self.format < 3 or self.sorted_out:
            return False
        said = redriven_of(headers)
        return bool(said) and not self._is_ours(number, said[-1])

    def _is_ours(self, number: int, said: Redriven) -> bool:
        if said.topic == self._topic:
            return True
        if self.format < 3:
            return False
        if self._private[number]:
            return True
        before = self._predecessors.get(said.topic)
        return before is not None and before.is_before(self._own[number], said.origin)
