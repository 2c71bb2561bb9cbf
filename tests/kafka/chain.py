"""Three apps in a chain: readings get another key, are counted by minutes, and the minutes are summed up by ten minutes."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec

import tailrace as tr
from tailrace.core.records import Output

MINUTE_MS = 60_000
SPAN_MS = 10 * MINUTE_MS
DISORDER_MS = 30_000
KEYS = 12


class Reading(msgspec.Struct, frozen=True):
    """What comes from outside."""

    key: str
    at: int


class Minute(msgspec.Struct, frozen=True):
    """The readings of a key in a minute."""

    key: str
    end: int
    count: int


class Span(msgspec.Struct, frozen=True):
    """Ten minutes of a key."""

    key: str
    end: int
    minutes: int
    count: int


first = tr.App("chain-first", partitions=3)
_inputs = [
    first.topic(
        name, Reading, key="key", event_time="at", out_of_order=DISORDER_MS, idle_after="20s", late="drop"
    )
    for name in ("left", "right")
]
_middle = first.topic("middle", Reading, key="key", event_time="at", out_of_order=DISORDER_MS)


@first.process(*_inputs, order="arrival")
def other(event: Reading, ctx: tr.Context[str]) -> None:
    """Give it another key."""
    ctx.emit(_middle, Reading(other_key(event.key), event.at))


second = tr.App("chain-second", partitions=3)
_followed = second.topic("middle", Reading, key="key", event_time="at", watermark="upstream", late="drop")
_minutes = second.topic("minutes", Minute, key="key", event_time="end")


@second.actor
class Minutes(tr.Actor):
    """Counts by minutes."""

    counts: dict[int, int] = tr.field(default_factory=dict)

    @tr.process(_followed)
    def read(self, event: Reading, ctx: tr.Context[str]) -> None:
        """Count, and emit at the end of the minute."""
        end = _end(event.at, MINUTE_MS)
        self.counts[end] = self.counts.get(end, 0) + 1
        ctx.set_timer(end, f"end:{end}")

    @tr.on_timer("end")
    def end(self, ctx: tr.Context[str]) -> None:
        """The minute is complete."""
        ctx.emit(_minutes, Minute(ctx.key, ctx.event_time, self.counts.pop(ctx.event_time)))


third = tr.App("chain-third", partitions=3)
_taken = third.topic("minutes", Minute, key="key", event_time="end", watermark="upstream", late="drop")
_spans = third.topic("spans", Span, key="key")


@third.actor
class Spans(tr.Actor):
    """Sums up by ten minutes."""

    sums: dict[int, list[int]] = tr.field(default_factory=dict)

    @tr.process(_taken)
    def read(self, event: Minute, ctx: tr.Context[str]) -> None:
        """Add, and emit at the end of the ten minutes."""
        end = _end(event.end, SPAN_MS)
        minutes, count = self.sums.get(end, (0, 0))
        self.sums[end] = [minutes + 1, count + event.count]
        ctx.set_timer(end, f"end:{end}")

    @tr.on_timer("end")
    def end(self, ctx: tr.Context[str]) -> None:
        """The ten minutes are complete."""
        minutes, count = self.sums.pop(ctx.event_time)
        ctx.emit(_spans, Span(ctx.key, ctx.event_time, minutes, count))


def other_key(key: str) -> str:
    """A key that is often in another partition."""
    return f"o{(int(key[1:]) * 5 + 3) % KEYS}"


def _end(at: int, width_ms: int) -> int:
    return at - at % width_ms + width_ms - 1


def readings(seed: int, begin_ms: int, count: int) -> list[tuple[str, Reading]]:
    """Readings of 25 minutes, with their topics: most are of few keys, and in disorder. Few are of the right topic, in the first
    minutes only, and none of some of its partitions.
    """
    random = Random(f"{seed} {begin_ms}")
    found: list[tuple[int, str, Reading]] = []
    for number in range(count):
        at = begin_ms + number * 25 * MINUTE_MS // count
        key = f"k{min(random.randrange(KEYS), random.randrange(KEYS))}"
        is_right = key == "k1" and number < count // 5
        arrives = at + random.randrange(DISORDER_MS)
        found.append((arrives, "right" if is_right else "left", Reading(key, at)))
    return [(topic, one) for _, topic, one in sorted(found, key=lambda item: item[:2])]


def records(found: list[tuple[str, Reading]]) -> list[Output]:
    """As they are written."""
    return [Output(topic, one.key.encode(), msgspec.json.encode(one), one.at) for topic, one in found]


def expected(found: list[tuple[str, Reading]]) -> tuple[Counter[Minute], Counter[Span]]:
    """The oracle: by the times alone."""
    minutes = Counter((other_key(one.key), _end(one.at, MINUTE_MS)) for _, one in found)
    spans: dict[tuple[str, int], list[int]] = {}
    for (key, end), count in minutes.items():
        sums = spans.setdefault((key, _end(end, SPAN_MS)), [0, 0])
        sums[0] += 1
        sums[1] += count
    return (
        Counter(Minute(key, end, count) for (key, end), count in minutes.items()),
        Counter(Span(key, end, *sums) for (key, end), sums in spans.items()),
    )
