"""Three services in a chain, and two that come and go before the second one, for ``chain_processes``.

    readings      -> first  (4 tasks) --+
    old-readings  -> old    (2 tasks) --+-> middle -> second (3 tasks) -> minutes -> third (3 tasks) -> regions
    new-readings  -> new    (5 tasks) --+                              -> pauses

``first``, ``old`` and ``new`` give a reading another key. ``second`` sums up the minutes of a key, and finds its pauses. ``third``
keys the minutes again, through a topic of its own, and sums up ten minutes. What is late for a service goes to a topic.
METERS_SLOW_MS is for how long an event is worked on, so that a history is not read in a moment.
"""

from __future__ import annotations

import os
import time

import msgspec

import tailrace as tr

MINUTE_MS = 60_000
SPAN_MS = 10 * MINUTE_MS
PAUSE_MS = 90_000
DISORDER_MS = 30_000
IDLE_AFTER = "10s"
METERS = 24
REGIONS = 4
SLOW_S = float(os.environ.get("METERS_SLOW_MS", "0")) / 1_000


class Reading(msgspec.Struct, frozen=True):
    """What comes from outside. ``number`` is another for each."""

    key: str
    at: int
    number: int


class Minute(msgspec.Struct, frozen=True):
    """The readings of a key in a minute: how many, and the sum of their numbers."""

    key: str
    end: int
    count: int
    total: int


class Pause(msgspec.Struct, frozen=True):
    """No reading of a key in the time after this one."""

    key: str
    since: int


class Region(msgspec.Struct, frozen=True):
    """Ten minutes of some keys."""

    key: str
    end: int
    minutes: int
    count: int
    total: int


def other_key(key: str) -> str:
    """A key that is often in another partition."""
    return f"o{(int(key[1:]) * 5 + 3) % METERS}"


def region(key: str) -> str:
    """That of a meter."""
    return f"r{int(key[1:]) % REGIONS}"


def end_of(at: int, width_ms: int) -> int:
    """The last instant of the interval."""
    return at - at % width_ms + width_ms - 1


def _work() -> None:
    if SLOW_S:
        time.sleep(SLOW_S)


def _source(name: str, topic: str, partitions: int, idle_after: str) -> tr.App:
    app = tr.App(f"meters-{name}", partitions=partitions)
    late = app.topic(f"late-{topic}", Reading, key="key", event_time="at")
    readings = app.topic(
        topic, Reading, key="key", event_time="at", out_of_order=DISORDER_MS, idle_after=idle_after, late=late
    )
    middle = app.topic("middle", Reading, key="key", event_time="at")

    @app.process(readings)
    def other(event: Reading, ctx: tr.Context[str]) -> None:
        _work()
        ctx.emit(middle, Reading(other_key(event.key), event.at, event.number))

    return app


first = _source("first", "readings", 4, IDLE_AFTER)
old = _source("old", "old-readings", 2, "10h")
new = _source("new", "new-readings", 5, "10h")

second = tr.App("meters-second", partitions=3)
_late_middle = second.topic("late-middle", Reading, key="key", event_time="at")
_middle = second.topic("middle", Reading, key="key", event_time="at", watermark="upstream", late=_late_middle)
_minutes = second.topic("minutes", Minute, key="key", event_time="end")
_pauses = second.topic("pauses", Pause, key="key")


@second.actor
class Meter(tr.Actor):
    """Sums up minutes, and finds pauses. What it emits follows from the times alone, if it has all events up to each timer."""

    sums: dict[int, list[int]] = tr.field(default_factory=dict)
    times: list[int] = tr.field(default_factory=list)

    @tr.process(_middle)
    def read(self, event: Reading, ctx: tr.Context[str]) -> None:
        """Add it."""
        _work()
        end = end_of(event.at, MINUTE_MS)
        count, total = self.sums.get(end, (0, 0))
        self.sums[end] = [count + 1, total + event.number]
        self.times.append(event.at)
        ctx.set_timer(end, f"minute:{end}")
        ctx.set_timer(event.at + PAUSE_MS, f"pause:{event.at}")

    @tr.on_timer("minute")
    def minute(self, ctx: tr.Context[str]) -> None:
        """The minute is complete."""
        count, total = self.sums.pop(ctx.event_time)
        ctx.emit(_minutes, Minute(ctx.key, ctx.event_time, count, total))

    @tr.on_timer("pause")
    def pause(self, ctx: tr.Context[str]) -> None:
        """No reading may have come in between."""
        since = ctx.event_time - PAUSE_MS
        if not any(since < at <= ctx.event_time for at in self.times):
            ctx.emit(_pauses, Pause(ctx.key, since))
        self.times = [at for at in self.times if at > since]


third = tr.App("meters-third", partitions=3)
_late_minutes = third.topic("late-minutes", Minute, key="key", event_time="end")
_taken = third.topic("minutes", Minute, key="key", event_time="end", watermark="upstream", late=_late_minutes)
_late_by_region = third.topic("late-by-region", Minute, key="key", event_time="end")
_by_region = third.topic(
    "by-region", Minute, key=lambda one: region(one.key), key_type=str, event_time="end", late=_late_by_region
)
_regions = third.topic("regions", Region, key="key", event_time="end")


@third.process(_taken)
def group(event: Minute, ctx: tr.Context[str]) -> None:
    """Key it by its region."""
    ctx.emit(_by_region, event)


@third.actor
class Regions(tr.Actor):
    """Sums up ten minutes."""

    sums: dict[int, list[int]] = tr.field(default_factory=dict)

    @tr.process(_by_region)
    def read(self, event: Minute, ctx: tr.Context[str]) -> None:
        """Add, and emit at the end of the ten minutes."""
        end = end_of(event.end, SPAN_MS)
        minutes, count, total = self.sums.get(end, (0, 0, 0))
        self.sums[end] = [minutes + 1, count + event.count, total + event.total]
        ctx.set_timer(end, f"end:{end}")

    @tr.on_timer("end")
    def end(self, ctx: tr.Context[str]) -> None:
        """The ten minutes are complete."""
        ctx.emit(_regions, Region(ctx.key, ctx.event_time, *self.sums.pop(ctx.event_time)))
