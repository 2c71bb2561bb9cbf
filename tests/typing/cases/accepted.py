"""What users write, and what both type checkers have to accept in their strict modes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import msgspec

import tailrace as tr
from tailrace import agg, windows


class Departure(msgspec.Struct, frozen=True):
    tail: str
    at: int
    scheduled: datetime | None = None


class Arrival(msgspec.Struct, frozen=True):
    tail: str


class Overdue(msgspec.Struct, frozen=True):
    tail: str


class Circle(msgspec.Struct, frozen=True, tag=True):
    colour: str


class Square(msgspec.Struct, frozen=True, tag=True):
    colour: str


class Ping(msgspec.Struct, frozen=True):
    n: int


def tail_of(event: Departure) -> str:
    return event.tail


app = tr.App("flights", partitions=4, on_error="dead-letter", version="2")
late = app.topic("late", Departure, key="tail")
departures = app.topic("departures", Departure, key="tail", event_time="at", out_of_order="30m", late=late)
keyed = app.topic("keyed", Departure, key=tail_of, event_time=lambda e: e.at, idle_after=timedelta(seconds=5))
arrivals = app.topic("arrivals", Arrival, key="tail", key_type=str, event_time=tr.ARRIVAL_TIME)
marked = app.topic("marked", Departure, key=lambda e: e.tail, key_type=str, watermark="upstream")
slow = app.topic("slow", Departure, key=("tail", "at"), watermark=False, time_range=(0, 10**13))
overdue = app.topic("overdue", Overdue, key="tail", format="msgpack")
sink = app.topic("sink", Overdue)
shapes: tr.Topic[Circle | Square, str] = app.topic("shapes", Circle | Square, key="colour")
cleaned = app.stream("cleaned", Departure)


class Vehicle(tr.Actor):
    odometer: int = 0
    owner: str


@app.actor
class Aircraft(Vehicle):
    airborne: Departure | None = None
    captain: str
    legs: int = tr.field(default=0, name="n")
    stops: list[str] = []  # an actor's empty list is copied for each instance
    crew: list[str] = tr.field(default_factory=list[str], ttl="8h")
    bags: dict[str, int] = tr.field(default_factory=dict)
    minutes_late: tr.MapState[str, int]
    visits: tr.MapState[tuple[str, int], Departure] = tr.field(ttl=timedelta(hours=1), ttl_time="processing")
    log: tr.ListState[str]

    @tr.process(departures)
    def departed(self, event: Departure, ctx: tr.Context) -> None:
        self.airborne = event
        self.minutes_late[event.tail] = self.minutes_late.get(event.tail, 0) + 1
        self.log.append(event.tail)
        airports: list[str] = list(reversed(self.minutes_late))
        latest: tuple[str, int] | None = self.minutes_late.last(stop=event.tail)
        visits: list[Departure] = list(self.visits.values(prefix=("JFK",), reverse=True))
        first: tuple[tuple[str, int], Departure] | None = self.visits.pop_first(stop=("JFK", len(visits)))
        self.minutes_late.update({"a": 1} if latest is None else [latest])
        self.minutes_late.update(self.minutes_late)
        self.minutes_late.clear(start="a", stop="b")
        late: int = self.minutes_late.setdefault("a", 0 if first is None else 1)
        ctx.set_timer(event.at + 1000 + len(airports) + late, name="overdue")
        ctx.emit(cleaned, event)

    @tr.process(keyed, arrivals)
    def moved(self, event: Departure | Arrival, ctx: tr.Context[str]) -> None:
        tail: str = ctx.key
        ctx.emit(overdue, Overdue(tail))
        ctx.emit(sink, Overdue(tail))
        ctx.emit(sink, Overdue(tail), at=ctx.event_time + 1)
        ctx.emit(overdue, Overdue(tail), at=datetime(2020, 1, 1, tzinfo=UTC))
        ctx.send(Aircraft, tail, Ping(1))

    @tr.process(marked)
    def any_struct(self, event: msgspec.Struct, ctx: tr.Context[str]) -> None: ...

    @tr.process(cleaned)
    def clean(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    @tr.on_timer("overdue")
    def still_up(self, ctx: tr.Context[str]) -> None:
        if self.airborne is not None:
            ctx.emit(overdue, Overdue(tail=ctx.key))

    @tr.on_timer
    def unnamed(self, ctx: tr.Context[str]) -> None: ...

    @tr.on_processing_timer("poll")
    def poll(self, ctx: tr.Context) -> None: ...

    @tr.on_timer("claim", payload=Ping)
    def claimed(self, payload: Ping, ctx: tr.Context[str]) -> None:
        ctx.set_timer(ctx.event_time + 1, "claim", payload)
        due: list[int] = [one.due for one in ctx.timers() if one.domain == "event"]
        name: str | None = ctx.timers()[0].name
        del due, name

    @tr.on_timer(payload=Ping, unless_ended=True)
    def unnamed_claim(self, payload: Ping, ctx: tr.Context[str]) -> None: ...

    @tr.on_processing_timer("claim", payload=int)
    def counted(self, payload: int, ctx: tr.Context[str]) -> None:
        due: int | None = ctx.timer_due
        del due

    @tr.on_message
    def pinged(self, message: Ping, ctx: tr.Context[str]) -> None: ...

    @tr.on_message(name="pong")
    def ponged(self, message: Arrival, ctx: tr.Context[str]) -> None: ...

    @tr.query
    def status(self, verbose: bool = False) -> str:
        return self.captain if verbose else ""


@app.actor(name="shapes")
class Shapes(tr.Actor):
    n: int = 0

    @tr.process(shapes)
    def seen(self, event: Circle | Square, ctx: tr.Context[str]) -> None:
        ctx.emit(shapes, Circle(event.colour))


@app.process(departures, emits=[overdue, cleaned, Aircraft, "shapes"])
def late_ones(event: Departure, ctx: tr.Context[str]) -> None:
    ctx.emit(cleaned, event)


@app.process(departures, arrivals, keyed, cleaned, name="all", emits=(overdue,), order="arrival")
def everything(event: Departure | Arrival, ctx: tr.Context[str]) -> None:
    ctx.metrics.count("seen")


@app.process(sink)
def unkeyed(event: Overdue, ctx: tr.Context[bytes | None]) -> None:
    ctx.emit(overdue, event)


def direct(aircraft: Aircraft, event: Departure, ctx: tr.Context[str]) -> str:
    aircraft.departed(event, ctx)
    return aircraft.status(verbose=True)


@app.actor(emits=[overdue, Shapes])
class Ship(tr.Actor):
    @tr.process(departures)
    def left(self, event: Departure, ctx: tr.Context[str]) -> None: ...


@app.actor(name="boat", emits=[])
class Boat(Ship): ...


class Order(msgspec.Struct, tr.Keyed[str], frozen=True):
    shop: tr.Key[str]
    at: tr.EventTime[int]


@dataclass(frozen=True)
class Payment(tr.Keyed[tuple[str, int]]):
    shop: tr.Key[str]
    number: tr.Key[int]
    at: tr.EventTime[datetime]


class Marked(msgspec.Struct, frozen=True):
    shop: tr.Key[str]
    at: tr.EventTime[int] = 0


assert_type(Order("Ada", 1).shop, str)
assert_type(Order("Ada", 1).at, int)
assert_type(app.topic("orders", Order), tr.Topic[Order, str])
assert_type(app.topic("payments", Payment, out_of_order="1m"), tr.Topic[Payment, tuple[str, int]])
assert_type(app.topic("unsaid", Marked), tr.Topic[Marked, Any])
assert_type(app.topic("said", Marked, key_type=str), tr.Topic[Marked, str])
assert_type(app.topic("others", Order, key="at", key_type=int), tr.Topic[Order, int])
assert_type(app.topic("functions", Order, key=lambda e: e.at), tr.Topic[Order, int])
assert_type(app.topic("loose", Order, key=None), tr.Topic[Order, bytes | None])

tabled = app.table("tabled", Order)
assert_type(tabled, tr.Table[Order, str])
assert_type(app.table("t1", Marked), tr.Table[Marked, Any])
assert_type(app.table("t2", Marked, key_type=str), tr.Table[Marked, str])
assert_type(app.table("t3", Order, key=lambda e: e.at, watermark=False), tr.Table[Order, int])


class Keeping(tr.Actor):
    @tr.process(tabled)
    def set(self, event: Order, ctx: tr.Context[str]) -> None:
        ctx.emit(tabled, event)
        ctx.delete(tabled, ctx.key, at=5)

    @tr.on_delete(tabled)
    def deleted(self, ctx: tr.Context[str]) -> None: ...


@app.process(app.topic("orders", Order))
def bare_context(event: Order, ctx: tr.Context) -> None:
    assert_type(ctx.key, Any)  # no checker takes a parameter's default from the decorator around it


keyed_orders = app.topic("rolled", Order)
assert_type(app.dedupe("once", keyed_orders, by="at", within="1d"), tr.Stream[Order, str])
assert_type(
    app.dedupe("again", keyed_orders, by=lambda e: e.at, by_type=int, within=5, late=keyed_orders),
    tr.Stream[Order, str],
)
assert_type(
    app.sample(
        "some", app.dedupe("deduped", departures, by=("tail", "at"), within="1d"), by="at", fraction=0.1
    ),
    tr.Stream[Departure, Any],
)


orders, refunds = app.topic("placed", Order), app.topic("refunded", Order)
near = app.join("near", orders, refunds, within="5m")
assert_type(app.join("i", orders, refunds, within="5m", how="left", into=refunds), tr.Topic[Order, str])
assert_type(app.asof("i2", orders, refunds, keep=None, into=refunds), tr.Topic[Order, str])
assert_type(app.gather("i3", orders, refunds, within="5m", into=refunds), tr.Topic[Order, str])
assert_type(near, tr.Stream[tr.Pair[Order, Order], str])
assert_type(
    app.join("l", orders, refunds, within=("0s", "5m"), how="left"),
    tr.Stream[tr.Pair[Order, Order | None], str],
)
assert_type(
    app.join("r", orders, refunds, within=5, how="right"), tr.Stream[tr.Pair[Order | None, Order], str]
)
assert_type(
    app.join("f", orders, near, within="5m", how="full"),
    tr.Stream[tr.Pair[Order | None, tr.Pair[Order, Order] | None], str],
)


@app.process(near)
def both(event: tr.Pair[Order, Order], ctx: tr.Context[str]) -> None: ...


class Reading(msgspec.Struct, tr.Keyed[str], frozen=True):
    room: tr.Key[str]
    at: tr.EventTime[int]
    celsius: float
    people: int


class Average(msgspec.Struct, frozen=True):
    room: tr.Key[str]
    start: int
    value: float


rooms = tr.App("rooms")
readings = rooms.topic("readings", Reading)
averages = rooms.topic("averages", Average)


means = rooms.window("means", readings, windows.tumbling("1h"), agg.mean(lambda r: r.celsius))
people = rooms.window("people", readings, windows.sliding("1h", every="15m"), agg.total(lambda r: r.people))
warmest = rooms.window("warmest", readings, windows.sessions("1h"), agg.max_by(Reading, lambda r: r.celsius))
all_ = rooms.window("all", readings, windows.daily(zone="UTC"), agg.collect(Reading))
best = rooms.window("best", people, windows.weekly(zone="UTC"), agg.max(lambda w: w.value))
topmost = rooms.window(
    "top", readings, windows.count(9), agg.top(3, by=lambda r: r.room, of=lambda r: r.celsius)
)
into: tr.Topic[Average, str] = rooms.window(
    "into", readings, windows.tumbling(5), agg.mean(lambda r: r.celsius), into=averages
)


@rooms.process(means)
def mean(one: tr.Windowed[str, float], ctx: tr.Context[str]) -> None: ...


@rooms.process(people)
def total(one: tr.Windowed[str, int], ctx: tr.Context[str]) -> None: ...


@rooms.process(warmest)
def warm(one: tr.Windowed[str, Reading], ctx: tr.Context[str]) -> None: ...


@rooms.process(all_)
def every(one: tr.Windowed[str, tuple[Reading, ...]], ctx: tr.Context[str]) -> None: ...


@rooms.process(best)
def most(one: tr.Windowed[str, int], ctx: tr.Context[str]) -> None: ...


@rooms.process(topmost)
def top(one: tr.Windowed[str, list[tuple[str, float]]], ctx: tr.Context[str]) -> None: ...


@rooms.actor
class Room(tr.Actor):
    hours: tr.Windows[Reading, float] = tr.windowed(windows.tumbling("1h"), agg.mean(lambda r: r.celsius))
    warmest: tr.Windows[Reading, Reading] = tr.windowed(
        windows.tumbling("1h"), agg.max_by(Reading, lambda r: r.celsius)
    )

    @tr.process(readings)
    def read(self, event: Reading, ctx: tr.Context[str]) -> None:
        self.hours.add(event)
        spent: float = max(self.hours.open().values())
        ctx.emit(averages, Average(ctx.key, 0, spent))

    @tr.on_window(hours)
    def hour(self, hour: tr.Windowed[str, float], ctx: tr.Context[str]) -> None: ...

    @tr.on_window(warmest)
    def warm(self, hour: tr.Windowed[str, Reading], ctx: tr.Context[str]) -> None: ...


assert_type(
    app.window_join("w", orders, refunds, tr.windows.tumbling("1h"), how="left"),
    tr.Stream[tr.Pair[Order, Order | None], str],
)
assert_type(
    app.asof("asof", orders, near, keep=None), tr.Stream[tr.Pair[Order, tr.Pair[Order, Order] | None], str]
)
cases = app.gather("cases", orders, refunds, near, within="7d")
assert_type(
    cases, tr.Stream[tr.Gathered[tuple[Order | None, Order | None, tr.Pair[Order, Order] | None]], str]
)


@app.process(cases)
def gathered(
    case: tr.Gathered[tuple[Order | None, Order | None, tr.Pair[Order, Order] | None]], ctx: tr.Context[str]
) -> None:
    _, refund, _ = case.parts
    assert_type(refund, Order | None)


assert_type(app.limit("few", keyed_orders, 3, per="1m", rest=keyed_orders), tr.Stream[Order, str])
assert_type(app.top("best_of", keyed_orders, 3, by="at", of=lambda e: e.at), tr.Stream[tr.Top[str], str])


@app.process(app.top("again-best_of", keyed_orders, 3, by=lambda e: e.at, by_type=int, of="at"))
def best_of(event: tr.Top[str], ctx: tr.Context[str]) -> None: ...


class Pence(msgspec.Struct):
    total: int


class Pounds(msgspec.Struct):
    total: float


@app.actor
class Migrated(tr.Actor):
    total: float = 0.0
    days: tr.MapState[int, float]

    @staticmethod
    @tr.migrates(from_version="1")
    def pounds(key: str, old: Pence) -> Pounds:
        return Pounds(old.total / 100)

    @staticmethod
    @tr.migrates(from_version=("1", "1.1"), of="days")
    def days_to_pounds(key: str, old: int) -> float:
        return old / 100

    @tr.process(keyed_orders)
    def order(self, event: Order, ctx: tr.Context[str]) -> None: ...


assert_type(Migrated.pounds("a", Pence(5)), Pounds)


def asked(client: tr.Client) -> None:
    assert_type(client.get(tabled, "a"), Order | None)
    assert_type(client.get(Migrated, "a"), Migrated | None)


async def asked_async(client: tr.AsyncClient) -> None:
    assert_type(await client.get(tabled, "a"), Order | None)
    assert_type(await client.get(Migrated, "a"), Migrated | None)
