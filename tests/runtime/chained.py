"""Two apps in a chain: the first keys readings again, the second counts what it gets by windows and goes by its writers."""

from __future__ import annotations

from collections import Counter

import msgspec

import tailrace as tr
from tailrace.core.records import Output

WIDTH_MS = 60_000
NIGHT_MS = 86_400_000
KEYS = 8


class Reading(msgspec.Struct, frozen=True):
    key: str
    at: int


class Window(msgspec.Struct, frozen=True):
    key: str
    start: int
    count: int


first = tr.App("first", partitions=3)
_inputs = [
    first.topic(name, Reading, key="key", event_time="at", idle_after="1h") for name in ("left", "right")
]
_middle = first.topic("middle", Reading, key="key", event_time="at")


@first.process(*_inputs, order="arrival")
def again(event: Reading, ctx: tr.Context[str]) -> None:
    ctx.emit(_middle, Reading(other(event.key), event.at))


def make_second() -> tr.App:
    """The second app."""
    app = tr.App("second", partitions=3)
    followed = app.topic("middle", Reading, key="key", event_time="at", watermark="upstream", late="drop")
    windows = app.topic("windows", Window, key="key")

    @app.actor
    class Windows(tr.Actor):
        counts: dict[int, int] = tr.field(default_factory=dict)

        @tr.process(followed)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            start = event.at - event.at % WIDTH_MS
            self.counts[start] = self.counts.get(start, 0) + 1
            ctx.set_timer(start + WIDTH_MS - 1, f"end:{start}")

        @tr.on_timer("end")
        def end(self, ctx: tr.Context[str]) -> None:
            start = int(str(ctx.timer_name).partition(":")[2])
            ctx.emit(windows, Window(ctx.key, start, self.counts.pop(start)))

    return app


second = make_second()


def other(key: str) -> str:
    return f"o{(int(key[1:]) * 5 + 3) % KEYS}"


def night(number: int, count: int = 300) -> list[tuple[str, Reading]]:
    """The readings of half of an hour, with their topics: after the first minutes the right one has no more of them."""
    begin = number * NIGHT_MS
    return [
        (
            ("left", "right")[n % 2 if n < count // 5 else 0],
            Reading(f"k{n * 7 // 2 % KEYS}", begin + n * 1_800_000 // count),
        )
        for n in range(count)
    ]


def records(readings: list[tuple[str, Reading]]) -> list[Output]:
    return [Output(topic, one.key.encode(), msgspec.json.encode(one), one.at) for topic, one in readings]


def expected(readings: list[tuple[str, Reading]], before_ms: int = 1 << 60) -> Counter[Window]:
    """The oracle: the windows that end before an instant."""
    counts = Counter((other(one.key), one.at - one.at % WIDTH_MS) for _, one in readings)
    return Counter(
        Window(key, start, count) for (key, start), count in counts.items() if start + WIDTH_MS <= before_ms
    )
