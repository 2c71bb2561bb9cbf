"""Traces: the trace of a record (header ``traceparent`` of W3C Trace Context) continues in what its handlers emit and send.

A span must have an id, and outputs must be equal live, in a replay and in a rebuild. So the id is no random number: it is a hash of the app
and the place of the record. What a timer emits belongs to no trace. Apps without ``tracing=True`` pass nothing on, and pay nothing.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple

from tailrace.core.records import Headers

TRACE_HEADER: Final = "traceparent"
TRACE: Final = "trace"
"""The kind of a measurement: its name is a ``Traced``, its value the clock reading in ms when the record was handled."""
_VALID: Final = re.compile(rb"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


class Traced(NamedTuple):
    """A record with a trace."""

    place: str
    """App, topic, partition and offset."""
    trace: str
    parent: str
    span: str
    flags: str
    """These and the ids are in hex."""

    @property
    def header(self) -> tuple[str, bytes]:
        """The header of what follows from the record."""
        return TRACE_HEADER, f"00-{self.trace}-{self.span}-{self.flags}".encode()

    @property
    def is_sampled(self) -> bool:
        """Whether its spans are recorded."""
        return bool(int(self.flags, 16) & 1)


def traced(place: str, headers: Headers) -> Traced | None:
    """The trace of a record; None if it has none that is valid."""
    for name, value in headers:
        if name == TRACE_HEADER and (found := _VALID.fullmatch(value)) is not None:
            trace, parent, flags = (one.decode() for one in found.groups())
            return Traced(place, trace, parent, blake2b(place.encode(), digest_size=8).hexdigest(), flags)
    return None
