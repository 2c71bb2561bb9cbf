"""What goes into a task and what comes out of it: records, heads and outputs.

``InputRecord`` is a record as the log gives it. A *head* is the same record decoded, with its event time and key worked
out; it is a plain tuple because one is made for every event::

    (offset, event_time_ms, key, event, record)

``event_time_ms`` is None where the record has none of its own: it takes the clock (arrival time), or it is not to be handled;
then ``event`` is a ``Refused`` that says why it cannot be, or ``FOR_OTHERS`` if it was redriven for another app.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, cast

from tailrace.core.errors import BadReason

CHANNEL: Final = "#"
"""Stands between a topic and a channel in it, which has a watermark of its own; no topic's name has it."""

Headers: TypeAlias = tuple[tuple[str, bytes], ...]
Head: TypeAlias = tuple[int, int | None, Any, Any, "InputRecord | None"]


class InputRecord(NamedTuple):
    """A record of one input partition; ``timestamp_ms`` is the log's timestamp for it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Output(NamedTuple):
    """A record that a task wants written. ``timestamp_ms`` is the event time of what caused it."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


RawOutput: TypeAlias = tuple[str, bytes | None, bytes | None, int, Headers]
"""An output that is not numbered yet: topic, key, value, timestamp_ms, headers."""

output_of: Callable[[RawOutput], Output] = partial(cast(Any, tuple).__new__, Output)
"""An ``Output`` of its fields, for who makes millions: half the cost of the constructor."""


class Refused(NamedTuple):
    """Why a record cannot be handed to a handler: a short ``reason`` code, ``detail`` and ``hint`` for a person."""

    reason: BadReason
    detail: str
    hint: str = ""


class ForOthers:
    """Stands for the event of a record that was redriven for another app."""

    __slots__ = ()


FOR_OTHERS: Final = ForOthers()


class Delivery(NamedTuple):
    """A message from the inbox, decoded: the route that takes it, and the message."""

    route: Any
    message: Any
