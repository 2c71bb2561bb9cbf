"""Where an event's time comes from, and the watermarks that a service works out itself."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import msgspec


class TimeSource(Enum):
    """A time that is not in the event."""

    RECORD = "record"
    ARRIVAL = "arrival"

    def __repr__(self) -> str:
        return f"tailrace.{self.name}_TIME"


RECORD_TIME: Final = TimeSource.RECORD
"""The event time is the timestamp that the log keeps with the record. The default."""

ARRIVAL_TIME: Final = TimeSource.ARRIVAL
"""The event time is the clock reading under which the task took the record. It is on the tape, so a rebuild has it."""


class WatermarkGenerator(msgspec.Struct):
    """Works out an input's watermark from its events. Subclass it; its fields are durable.

    Each task gets its own copy of the instance given to the topic. It must be a pure function of its fields and
    of the events, in their order: no clock, no randomness.
    """

    def on_event(self, event: Any, event_time_ms: int, /) -> int | None:
        """The new watermark, in milliseconds since the epoch, or None to leave it where it is.

        "All up to here has been seen": an event at or before it is late. A value below the current one is ignored.
        """
        raise NotImplementedError
