"""A join that passes each pair on to a stream, at the time of the later of its two events, and its oracle."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec

import tailrace as tr
from tailrace.core.records import Output

WIDTH_MS = 1_000
DISORDER_MS = 300
END_MS = 1_000_000
KEYS = [f"k{n}" for n in range(6)]


class Half(msgspec.Struct, frozen=True):
    key: str
    pair: int
    at: int


class Window(msgspec.Struct, frozen=True):
    key: str
    start: int
    pairs: tuple[int, ...]
    late: int


app = tr.App("pairs", partitions=2)
lefts = app.topic("lefts", Half, key="key", event_time="at", out_of_order=DISORDER_MS)
rights = app.topic("rights", Half, key="key", event_time="at", out_of_order=DISORDER_MS)
windows = app.topic("windows", Window, key="key")
pairs = app.stream("pairs", Half)


@app.actor
class Join(tr.Actor, order="arrival"):
    waiting: dict[int, int] = tr.field(default_factory=dict)

    @tr.process(lefts, rights)
    def half(self, event: Half, ctx: tr.Context[str]) -> None:
        other = self.waiting.pop(event.pair, None)
        if other is None:
            self.waiting = dict(sorted([*self.waiting.items(), (event.pair, event.at)]))
        else:
            ctx.emit(pairs, event, at=max(event.at, other))


@app.actor
class Windows(tr.Actor):
    open: dict[int, list[int]] = tr.field(default_factory=dict)
    late: int = 0

    @tr.process(pairs)
    def pair(self, event: Half, ctx: tr.Context[str]) -> None:
        start = ctx.event_time - ctx.event_time % WIDTH_MS
        self.open = dict(
            sorted({**self.open, start: sorted([*self.open.get(start, []), event.pair])}.items())
        )
        self.late += ctx.is_late
        ctx.set_timer(start + WIDTH_MS - 1, f"end:{start}")

    @tr.on_timer("end")
    def end(self, ctx: tr.Context[str]) -> None:
        start = int(str(ctx.timer_name).partition(":")[2])
        ctx.emit(windows, Window(ctx.key, start, tuple(sorted(self.open.pop(start))), self.late))


def history(seed: int, count: int = 200) -> list[tuple[tr.Topic[Half, str], Half]]:
    """Halves in the disorder that their topics declare, then one of each key that closes all windows."""
    random = Random(seed)
    found: list[tuple[int, tr.Topic[Half, str], Half]] = []
    for number in range(count):
        key = random.choice(KEYS)
        for topic in (lefts, rights):
            if random.random() < 0.9:
                at = random.randrange(60_000)
                found.append((at + random.randrange(DISORDER_MS), topic, Half(key, number, at)))
    found.sort(key=lambda one: one[0])
    closing = [
        (topic, Half(key, unpaired, END_MS))
        for unpaired, topic in ((-1, lefts), (-2, rights))
        for key in KEYS
    ]
    return [*((topic, half) for _, topic, half in found), *closing]


def records(events: list[tuple[tr.Topic[Half, str], Half]]) -> list[Output]:
    return [
        Output(topic.name, half.key.encode(), msgspec.json.encode(half), half.at) for topic, half in events
    ]


def expected(events: list[tuple[tr.Topic[Half, str], Half]]) -> Counter[Window]:
    """The oracle: the pairs of each key, by the window of the later half."""
    times: dict[tuple[str, int], list[int]] = {}
    for _, half in events:
        times.setdefault((half.key, half.pair), []).append(half.at)
    found: dict[tuple[str, int], list[int]] = {}
    for (key, pair), at in times.items():
        if len(at) == 2:
            found.setdefault((key, max(at) // WIDTH_MS * WIDTH_MS), []).append(pair)
    return Counter(Window(key, start, tuple(sorted(some)), 0) for (key, start), some in found.items())
