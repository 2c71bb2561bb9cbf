"""Windows: the types of results follow from topic, windows and aggregate."""

import msgspec

import tailrace as tr
from tailrace import agg, windows


class Reading(msgspec.Struct, tr.Keyed[str], frozen=True):
    room: tr.Key[str]
    at: tr.EventTime[int]
    celsius: float
    people: int


class Average(msgspec.Struct, frozen=True):
    room: tr.Key[str]
    start: int
    value: float


app = tr.App("rooms")
readings = app.topic("readings", Reading)
averages = app.topic("averages", Average)

means = app.window("means", readings, windows.tumbling("1h"), agg.mean(lambda r: r.celsius))
people = app.window("people", readings, windows.sliding("1h", every="15m"), agg.total(lambda r: r.people))
warmest = app.window("warmest", readings, windows.sessions("1h"), agg.max_by(lambda r: r.celsius))
all_ = app.window("all", readings, windows.daily(zone="UTC"), agg.collect(Reading))
best = app.window("best", people, windows.weekly(zone="UTC"), agg.max(lambda w: w.value))
topmost = app.window(
    "top", readings, windows.count(9), agg.top(3, by=lambda r: r.room, of=lambda r: r.celsius)
)
into: tr.Topic[Average, str] = app.window(
    "into", readings, windows.tumbling(5), agg.mean(lambda r: r.celsius), into=averages
)

app.window("no-field", readings, windows.tumbling("1h"), agg.mean(lambda r: r.kelvin))  # error
app.window("text", readings, windows.tumbling("1h"), agg.mean(lambda r: r.room))  # error
app.window("no-windows", readings, "1h", agg.count())  # error
app.window("no-option", readings, windows.tumbling("1h"), agg.count(), erly=3)  # error


@app.process(means)
def mean(one: tr.Windowed[str, float], ctx: tr.Context[str]) -> None: ...


@app.process(people)
def total(one: tr.Windowed[str, int], ctx: tr.Context[str]) -> None: ...


@app.process(warmest)
def warm(one: tr.Windowed[str, Reading], ctx: tr.Context[str]) -> None: ...


@app.process(all_)
def every(one: tr.Windowed[str, tuple[Reading, ...]], ctx: tr.Context[str]) -> None: ...


@app.process(best)
def most(one: tr.Windowed[str, int], ctx: tr.Context[str]) -> None: ...


@app.process(topmost)
def top(one: tr.Windowed[str, list[tuple[str, float]]], ctx: tr.Context[str]) -> None: ...


@app.process(warmest)  # error
def wrong_value(one: tr.Windowed[str, float], ctx: tr.Context[str]) -> None: ...


@app.process(means)  # error
def wrong_key(one: tr.Windowed[int, float], ctx: tr.Context[int]) -> None: ...


@app.actor
class Room(tr.Actor):
    hours: tr.Windows[Reading, float] = tr.windowed(windows.tumbling("1h"), agg.mean(lambda r: r.celsius))
    warmest: tr.Windows[Reading, Reading] = tr.windowed(
        windows.tumbling("1h"), agg.max_by(lambda r: r.celsius), of=Reading
    )

    @tr.process(readings)
    def read(self, event: Reading, ctx: tr.Context[str]) -> None:
        self.hours.add(event)
        self.hours.add(5)  # error
        spent: float = max(self.hours.open().values())
        ctx.emit(averages, Average(ctx.key, 0, spent))

    @tr.on_window(hours)
    def hour(self, hour: tr.Windowed[str, float], ctx: tr.Context[str]) -> None: ...

    @tr.on_window(warmest)  # error
    def wrong(self, hour: tr.Windowed[str, float], ctx: tr.Context[str]) -> None: ...
