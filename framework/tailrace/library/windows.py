"""Which windows there are: the spans of event time, or the numbers of events, over which ``app.window`` aggregates.

Windows are half-open, ``[start, end)``, in milliseconds since 1970; times before 1970 are as good as others.

==============================  ======================================================================================
``tumbling("1h")``              one after another, aligned to 1970-01-01T00:00Z plus ``offset``
``daily``, ``weekly``,          days, weeks (from Monday) and months of a time zone: 23 or 25 hours where the clocks
``monthly``                     change
``sliding("1h", every="15m")``  windows of an hour that begin every 15 minutes
``sessions("30m")``             events that are at most 30 minutes apart; from the first event to the last
``count(3)``                    every three events, as they arrive; from the earliest event to the latest
``global_()``                   all events of a key; it never ends, so it has early results only
==============================  ======================================================================================
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import gcd
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

import msgspec

from tailrace.core.durations import declared_duration, spelled, to_datetime
from tailrace.core.errors import DefinitionError

MOST_SLICES: Final = 2_000
"""Slices of a sliding window: each result merges as many accumulators."""

Duration = str | int | timedelta


class Tumbling(msgspec.Struct, frozen=True):
    """Windows of one size, one after another."""

    size_ms: int
    offset_ms: int = 0

    def at(self, time_ms: int) -> tuple[int, int]:
        """Start and end of the window that holds an instant."""
        start_ms = time_ms - (time_ms - self.offset_ms) % self.size_ms
        return start_ms, start_ms + self.size_ms

    @property
    def spec(self) -> str:
        """What the windows are, in a few words."""
        return f"tumbling {spelled(self.size_ms)}" + (
            f" +{spelled(self.offset_ms)}" if self.offset_ms else ""
        )


class Calendar(msgspec.Struct, frozen=True):
    """Days, weeks or months of a time zone."""

    unit: Literal["daily", "weekly", "monthly"]
    zone: str

    def at(self, time_ms: int) -> tuple[int, int]:
        """Start and end of the window that holds an instant."""
        day = to_datetime(time_ms).astimezone(ZoneInfo(self.zone)).date()
        while True:
            if self.unit == "daily":
                first, after = day, day + timedelta(days=1)
            elif self.unit == "weekly":
                first = day - timedelta(days=day.weekday())
                after = first + timedelta(days=7)
            else:
                first = day.replace(day=1)
                after = (first + timedelta(days=32)).replace(day=1)
            end_ms = _midnight_ms(self.zone, after.toordinal())
            if time_ms < end_ms:
                return _midnight_ms(self.zone, first.toordinal()), end_ms
            day = after  # the clocks went back over midnight: the local date is one that has ended

    @property
    def spec(self) -> str:
        """What the windows are, in a few words."""
        return f"{self.unit} {self.zone}"


@lru_cache(4096)
def _midnight_ms(zone: str, ordinal: int) -> int:
    """The first instant of a day. Where midnight is skipped, the day begins when the clocks have changed."""
    local = datetime.fromordinal(ordinal).replace(tzinfo=ZoneInfo(zone))
    # A local time that is skipped (fold=0) is read with the offset of before the change: in UTC, the very instant of it.
    return round((local.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))


class Sliding(msgspec.Struct, frozen=True):
    """Windows of one size that begin at regular intervals. Each is made of slices, which windows share."""

    size_ms: int
    every_ms: int
    slice_ms: int
    """The length of a slice: each window consists of whole ones."""
    offset_ms: int = 0

    def at(self, time_ms: int) -> tuple[int, int]:
        """Start and end of the slice that holds an instant."""
        start_ms = time_ms - (time_ms - self.offset_ms) % self.slice_ms
        return start_ms, start_ms + self.slice_ms

    def first(self, slice_end_ms: int) -> int:
        """The start of the first window that holds the slice with this end."""
        return slice_end_ms - self.size_ms + (self.offset_ms - slice_end_ms + self.size_ms) % self.every_ms

    def last(self, slice_end_ms: int) -> int:
        """The start of the last window that holds the slice with this end."""
        return (start_ms := slice_end_ms - self.slice_ms) - (start_ms - self.offset_ms) % self.every_ms

    @property
    def spec(self) -> str:
        """What the windows are, in a few words."""
        offset = f" +{spelled(self.offset_ms)}" if self.offset_ms else ""
        return f"sliding {spelled(self.size_ms)} every {spelled(self.every_ms)}{offset}"


class Sessions(msgspec.Struct, frozen=True):
    """Events with at most a gap between them."""

    gap_ms: int
    at_most_ms: int | None = None

    @property
    def spec(self) -> str:
        """What the windows are, in a few words."""
        at_most = "" if self.at_most_ms is None else f" at most {spelled(self.at_most_ms)}"
        return f"sessions {spelled(self.gap_ms)}{at_most}"


class Count(msgspec.Struct, frozen=True):
    """Every so many events; None: all of them."""

    events: int | None

    @property
    def spec(self) -> str:
        """What the windows are, in a few words."""
        return "global" if self.events is None else f"count {self.events}"


AnyWindows = Tumbling | Calendar | Sliding | Sessions | Count


def tumbling(size: Duration, *, offset: Duration = 0) -> Tumbling:
    """Windows of one size, one after another: ``windows.tumbling("1h")``, ``windows.tumbling("1d", offset="6h")``.

    They are aligned to 1970-01-01T00:00Z plus ``offset``, which is less than ``size``. For days of a time zone take ``daily``.

    Raises:
        DefinitionError: The size is not a duration above zero, or the offset not one below the size.
    """
    size_ms = _positive("tumbling", "size", size)
    return Tumbling(size_ms, _offset("tumbling", offset, size_ms, "size"))


def daily(*, zone: str) -> Calendar:
    """Days of a time zone, from midnight to midnight: ``windows.daily(zone="Europe/Berlin")``.

    A day on which the clocks change has 23 or 25 hours. Where midnight does not exist on a day, the day begins with its first
    instant. Where the clocks go back over midnight, it ends at the first
    one. The rules come from the system's time zone data, or from the package ``tzdata``: give all processes the same.

    Raises:
        DefinitionError: There is no such time zone.
    """
    return _calendar("daily", zone)


def weekly(*, zone: str) -> Calendar:
    """Weeks of a time zone, from Monday to Monday. Otherwise as ``daily``."""
    return _calendar("weekly", zone)


def monthly(*, zone: str) -> Calendar:
    """Calendar months of a time zone. Otherwise as ``daily``."""
    return _calendar("monthly", zone)


def sliding(size: Duration, *, every: Duration, offset: Duration = 0) -> Sliding:
    """Windows of one size that begin every so often: ``windows.sliding("1h", every="15m")``.

    There is one accumulator for each slice (the greatest length of which size and interval are multiples), not one for each
    window, so the aggregate must have ``merge``. Windows without events give no result.

    Raises:
        DefinitionError: Size or interval is not a duration above zero, the interval is longer than the size, the offset is not
            below the interval, or a window would have more than 2000 slices.
    """
    size_ms, every_ms = _positive("sliding", "size", size), _positive("sliding", "every", every)
    if every_ms > size_ms:
        raise DefinitionError(
            f"windows.sliding has every={every!r}, which is longer than its size: events between windows would be in none",
            hint="Give a shorter interval, or a function before the window that leaves events out.",
        )
    slice_ms = gcd(size_ms, every_ms)
    slices = size_ms // slice_ms
    if slices > MOST_SLICES:
        raise DefinitionError(
            f"windows.sliding({size!r}, every={every!r}) would merge {slices:,} accumulators for each result",
            hint=f"Give an interval for which there are at most {MOST_SLICES:,}: size divided by the greatest common divisor.",
        )
    return Sliding(size_ms, every_ms, slice_ms, _offset("sliding", offset, every_ms, "interval"))


def sessions(gap: Duration, *, at_most: Duration | None = None) -> Sessions:
    """Groups of events of a key that are at most ``gap`` apart: ``windows.sessions("30m")``.

    Two events at exactly the gap belong together. ``start`` is the time of the first event and ``end`` that of the last, so a
    session of one event has ``start == end``. It ends when the watermark reaches its last event plus the gap, which is the
    event time of the result.

    ``at_most`` cuts in the order of event time: an event that is more than this after the start of a session begins another.

    Raises:
        DefinitionError: The gap is not a duration above zero, or ``at_most`` not one of at least the gap.
    """
    gap_ms = _positive("sessions", "gap", gap)
    at_most_ms = None if at_most is None else _positive("sessions", "at_most", at_most)
    if at_most_ms is not None and at_most_ms < gap_ms:
        raise DefinitionError(
            f"windows.sessions has at_most={at_most!r}, which is shorter than the gap {gap!r}",
            hint="Give at least the gap, or take windows.tumbling.",
        )
    return Sessions(gap_ms, at_most_ms)


def count(events: int) -> Count:
    """Every so many events of a key: ``windows.count(3)``. No time is involved.

    Events count in the order in which they are handled, which is the order of the topic's partition. A result has the event
    time of the event that completes it. A window that is not complete stays open.

    Raises:
        DefinitionError: It is not a whole number of 1 or more.
    """
    if type(events) is not int or events < 1:
        raise DefinitionError(
            f"windows.count has {events!r} events", hint="Give a whole number of 1 or more."
        )
    return Count(events)


def global_() -> Count:
    """All events of a key in one window, which never ends: ``early=`` says when there are results."""
    return Count(None)


def at_least_one(where: str, option: str, number: Any) -> None:
    """Raise DefinitionError for a number of events, names or entries that is none."""
    if type(number) is not int or number < 1:
        raise DefinitionError(f"{where} has {option}={number!r}", hint="Give a whole number of 1 or more.")


def _calendar(unit: Literal["daily", "weekly", "monthly"], zone: str) -> Calendar:
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise DefinitionError(
            f"windows.{unit} has zone={zone!r}: {error}",
            hint='Give the name of a time zone, such as "Europe/Berlin" or "UTC", and install the package tzdata where the '
            "system has no time zone data.",
        ) from None
    return Calendar(unit, zone)


def _positive(windows: str, name: str, value: Any) -> int:
    return declared_duration(f"windows.{windows}", name, value, "Give a longer one.")


def _offset(windows: str, offset: Any, below_ms: int, what: str) -> int:
    if offset == 0:
        return 0
    offset_ms = _positive(windows, "offset", offset)
    if offset_ms >= below_ms:
        raise DefinitionError(
            f"windows.{windows} has offset={offset!r}, which is not below its {what}",
            hint=f"Windows repeat: an offset of {spelled(offset_ms % below_ms)} is the same.",
        )
    return offset_ms
