"""What an app with ``on_error="quarantine"`` has besides its declarations: an actor that keeps what waits, and its input.

The actor ``quarantine`` has the state of everything that waits. It is an ordinary actor as far as changelog, snapshots and
rebuilds are concerned. Its keys are the bytes of the keys that wait, so it is in their partitions. Its input is
``<app>.quarantine``, with what a person decides about a failure. The engine acts on a decision itself: see
``engine.quarantine``.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

import msgspec

from tailrace.core.declare.actor import Actor
from tailrace.core.declare.context import Context
from tailrace.core.declare.event_time import ARRIVAL_TIME
from tailrace.core.declare.handlers import process
from tailrace.core.declare.topic_declaration import declare_topic
from tailrace.core.errors import DefinitionError
from tailrace.core.handling.collections import MapState
from tailrace.core.names import quarantine_of
from tailrace.core.records import InputRecord

if TYPE_CHECKING:
    from tailrace.core.declare.declarations import Declarations
    from tailrace.core.declare.plan import Plan

_App = TypeVar("_App", bound="Declarations")
QUARANTINE: Final = "quarantine"
"""The policy, and the stable name of the actor."""


Action = Literal["release", "drop", "drop-all"]


class Decision(msgspec.Struct, frozen=True):
    """What to do about the failure with this number, the last one of a key of an actor."""

    key: bytes
    actor: str
    failure: int
    action: Action


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """A record that waits, and how it was judged when it came."""

    input: str
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    time_ms: int
    """Its event time."""
    watermark: int
    """The watermark of the actor."""
    is_late: bool

    @property
    def record(self) -> InputRecord:
        """The record as the log returned it."""
        return InputRecord(self.offset, self.timestamp_ms, self.key, self.value, self.headers)


class PendingTimer(NamedTuple):
    """A timer that has failed: time domain, name in bytes, and time."""

    domain: int
    name: bytes
    time_ms: int


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A key of an actor that waits. Its records have the places from ``start`` up to ``stop``."""

    failure: int
    """The number of its last failure."""
    start: int = 0
    stop: int = 0
    timer: PendingTimer | None = None
    """What has failed, if it was a timer; otherwise the first record."""
    releasing: bool = False


def with_quarantine(app: _App) -> _App:
    """The declarations of an app, with those of its quarantine. Raises DefinitionError: their names are taken."""
    name = quarantine_of(app.name)
    for known in (app.actors, app.functions):
        if QUARANTINE in known:
            raise DefinitionError(
                f'the app {app.name!r} has on_error="quarantine" and an actor or function {QUARANTINE!r}',
                hint="Give it another name=: the actor that keeps what waits has this one.",
            )
    commands = declare_topic(
        app.name,
        app.partitions,
        name,
        Decision,
        "key",
        None,
        {"event_time": ARRIVAL_TIME, "watermark": False},
    )

    class Quarantine(Actor):
        waiting: dict[str, Waiting] = {}  # the default of a field
        kept: MapState[tuple[str, int], Kept]

        @process(commands)
        def decided(self, decision: Decision, ctx: Context[bytes]) -> None:
            """Not called: the engine acts on a decision."""

    other = copy(app)
    other.topics = {**app.topics, name: commands}
    other.actors = {**app.actors, QUARANTINE: Quarantine}
    other.emits = {**app.emits, QUARANTINE: ()}
    return other


def check_quarantine(plan: Plan) -> None:
    """Refuse what cannot wait key by key. Raises DefinitionError."""
    ordered = [one.name for one in plan.operators if one.ordered]
    streamed = [route.target.name for to in plan.routes_of_stream for route in to if route.target is not None]
    for names, what, instead in (
        (ordered, "handles its events in the order of event time", 'Declare order="arrival"'),
        (streamed, "takes events of a stream", "Let it read a topic"),
    ):
        if names:
            raise DefinitionError(
                f'the app {plan.app!r} has on_error="quarantine", but {names[0]} {what}',
                hint=f"{instead}, or use another on_error: the events of one key could not wait for it alone.",
            )
