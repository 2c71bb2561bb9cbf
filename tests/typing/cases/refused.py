"""Wrong handlers and wrong calls. Each line marked as an error, and no other, has to be one for both type checkers."""

from __future__ import annotations

import msgspec

import tailrace as tr
from tailrace import agg, windows


class Departure(msgspec.Struct, frozen=True):
    tail: str
    at: int


class Arrival(msgspec.Struct, frozen=True):
    tail: str


class Order(msgspec.Struct, tr.Keyed[str], frozen=True):
    shop: tr.Key[str]
    at: tr.EventTime[int]


class Ping(msgspec.Struct, frozen=True):
    n: int


app = tr.App("flights")
departures = app.topic("departures", Departure, key="tail", key_type=str)
arrivals = app.topic("arrivals", Arrival, key=lambda e: e.tail)
numbers = app.topic("numbers", Departure, key="at", key_type=int)
both: tr.Topic[Departure | Arrival, str] = app.topic("both", Departure | Arrival, key="tail")
cleaned = app.stream("cleaned", Departure)

orders = app.topic("orders", Order)

Order(shop=1, at=2)  # error
app.topic("o", Order, event_time=lambda e: e.when)  # error
app.topic("p", Order, lateness="30m")  # error
app.topic("a", Departure, key=lambda e: e.tial)  # error
app.topic("b", Departure, key="tail", event_time=lambda e: e.when)  # error
app.topic("c", Departure, key="tail", late="ignore")  # error
app.topic("d", Departure, key="tail", late=arrivals)  # error
app.topic("e", Departure, key="tail", lateness="30m")  # error
tr.App("other", on_error="ignore")  # error
tr.App("another", partitons=4)  # error
tr.field(defualt=0)  # error
app.actor(nmae="plane")  # error


class Aircraft(tr.Actor, order="arrival"):
    legs: int = "none"  # error
    stops: int = tr.field(default="none")  # error
    minutes_late: tr.MapState[str, int]

    def wrong_ranges(self) -> None:
        self.minutes_late.last(stop=1)  # error
        self.minutes_late.items(prefix=1)  # error
        self.minutes_late.setdefault("a", "b")  # error
        self.minutes_late.update({1: 1})  # error

    @tr.process(departures)  # error
    def wrong_event(self, event: Arrival, ctx: tr.Context[str]) -> None: ...

    @tr.process(departures)  # error
    def wrong_key(self, event: Departure, ctx: tr.Context[int]) -> None: ...

    @tr.process(departures, arrivals)  # error
    def one_of_two(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    @tr.process(departures, arrivals, both)  # error
    def two_of_three(self, event: Arrival, ctx: tr.Context[str]) -> None: ...

    @tr.process(both)  # error
    def one_of_union(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    @tr.process(departures, numbers)  # error
    def two_keys(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    @tr.process(cleaned)  # error
    def wrong_stream(self, event: Arrival, ctx: tr.Context[str]) -> None: ...

    @tr.process(departures)  # error
    def no_context(self, event: Departure) -> None: ...

    @tr.process(departures)  # error
    def swapped(self, ctx: tr.Context[str], event: Departure) -> None: ...

    @tr.process(departures)  # error
    def returning(self, event: Departure, ctx: tr.Context[str]) -> int:
        return 1

    @tr.process(departures)  # error
    async def asynchronous(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    @tr.process(orders)  # error
    def wrong_keyed(self, event: Order, ctx: tr.Context[int]) -> None: ...

    @tr.process(orders)  # error
    def wrong_order(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    @tr.process("departures")  # error
    def by_name(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    @tr.on_timer("overdue")  # error
    def with_event(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    @tr.on_timer("claim", payload=Departure)  # error
    def with_other_payload(self, payload: Ping, ctx: tr.Context[str]) -> None: ...

    @tr.on_timer("claim", payload=Departure)  # error
    def without_payload(self, ctx: tr.Context[str]) -> None: ...

    @tr.on_processing_timer("claim", payload=Departure)  # error
    def with_more(self, payload: Departure, more: int, ctx: tr.Context[str]) -> None: ...

    @tr.on_timer  # error
    def without_context(self) -> None: ...

    @tr.on_processing_timer("poll")  # error
    async def asynchronous_timer(self, ctx: tr.Context[str]) -> None: ...

    @tr.on_message  # error
    def message_alone(self, message: Ping) -> None: ...

    @tr.on_message(name="ping")  # error
    def message_returning(self, message: Ping, ctx: tr.Context[str]) -> int:
        return message.n

    @tr.process(departures)
    def calls(self, event: Departure, ctx: tr.Context[str]) -> None:
        ctx.emit(arrivals, event)  # error
        ctx.emit(cleaned, Arrival(event.tail))  # error
        ctx.emit(both, Ping(1))  # error
        ctx.emit(arrivals, Arrival(event.tail), at="now")  # error
        ctx.emit(cleaned, event, at="now")  # error
        ctx.emit(arrivals, Arrival(event.tail), event.at)  # error
        number: int = ctx.key  # error
        ctx.set_timer("soon")  # error
        self.minutes_late[1] = 2  # error
        self.minutes_late["JFK"] = "late"  # error
        self.legs = "none"  # error
        self.leg += number  # error
        ctx.send(Departure, "N1", Ping(1))  # error


tabled = app.table("tabled", Order)
app.table("t1", Order, late="drop")  # error
app.table("t2", Order, repartition=True)  # error
app.table("t3", Order, key=None)  # error


class Keeping(tr.Actor):
    @tr.on_delete(departures)  # error
    def of_a_topic(self, ctx: tr.Context[str]) -> None: ...

    @tr.on_delete(tabled)  # error
    def with_an_event(self, event: Order, ctx: tr.Context[str]) -> None: ...

    @tr.on_delete(tabled)  # error
    def with_another_key(self, ctx: tr.Context[int]) -> None: ...

    @tr.process(tabled)
    def set(self, event: Order, ctx: tr.Context[str]) -> None:
        ctx.delete(departures, ctx.key)  # error
        ctx.delete(tabled, ctx.key, event)  # error
        ctx.delete(tabled)  # error


@app.process(departures)  # error
def wrong_event(event: Arrival, ctx: tr.Context[str]) -> None: ...


@app.process(departures, arrivals)  # error
def wrong_key(event: Departure | Arrival, ctx: tr.Context[int]) -> None: ...


@app.process(departures)  # error
async def asynchronous(event: Departure, ctx: tr.Context[str]) -> None: ...


class NoActor:
    legs: int = 0


app.actor(NoActor)  # error
app.actor(emits=[NoActor])  # error
app.actor(emits=[Departure])  # error
app.actor(emits=departures)  # error
app.actor(Aircraft, emits=[departures])  # error
app.process(departures, emits=[Departure])  # error
app.process(departures, arrivals, emits=departures)  # error
app.process(departures, emit=[departures])  # error


def direct(aircraft: Aircraft, event: Arrival, ctx: tr.Context[str]) -> None:
    aircraft.calls(event, ctx)  # error


app.dedupe("a", orders)  # error
app.dedupe("b", orders, within=1.5)  # error
app.dedupe("c", orders, within="1d", by=lambda e: e.nothing)  # error
app.dedupe("d", orders, within="1d", late=departures)  # error
app.dedupe("e", orders, within="1d", order="time")  # error
app.sample("f", orders, fraction=0.1)  # error
app.sample("g", orders, by="at", fraction="10%")  # error


@app.process(app.sample("h", orders, by="at", fraction=0.1))  # error
def other_event(event: Arrival, ctx: tr.Context[str]) -> None: ...


pairs = app.join("pairs", departures, arrivals, within="5m", how="left")
app.join("wrong", departures, arrivals, within="5m", how="outer")  # error


@app.process(pairs)  # error
def both_there(event: tr.Pair[Departure, Arrival], ctx: tr.Context[str]) -> None: ...


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
warmest = rooms.window("warmest", readings, windows.sessions("1h"), agg.max_by(Reading, lambda r: r.celsius))

rooms.window("no-field", readings, windows.tumbling("1h"), agg.mean(lambda r: r.kelvin))  # error
rooms.window("text", readings, windows.tumbling("1h"), agg.mean(lambda r: r.room))  # error
rooms.window("no-windows", readings, "1h", agg.count())  # error
rooms.window("no-option", readings, windows.tumbling("1h"), agg.count(), erly=3)  # error


@rooms.process(warmest)  # error
def wrong_value(one: tr.Windowed[str, float], ctx: tr.Context[str]) -> None: ...


@rooms.process(means)  # error
def other_key(one: tr.Windowed[int, float], ctx: tr.Context[int]) -> None: ...


@rooms.actor
class Room(tr.Actor):
    hours: tr.Windows[Reading, float] = tr.windowed(windows.tumbling("1h"), agg.mean(lambda r: r.celsius))

    @tr.process(readings)
    def read(self, event: Reading, ctx: tr.Context[str]) -> None:
        self.hours.add(5)  # error

    @tr.on_window(hours)  # error
    def wrong(self, hour: tr.Windowed[str, Reading], ctx: tr.Context[str]) -> None: ...


app.limit("i", orders, "3", per="1m")  # error
app.limit("j", orders, 3)  # error
app.limit("k", orders, 3, per="1m", rest=departures)  # error
app.top("l", orders, 3, by="at")  # error
app.top("m", orders, 3, by="at", of=lambda e: e.shop)  # error


tr.migrates(from_version=1)  # error
tr.migrates()  # error


@tr.migrates(from_version="1")  # error
def without_old(key: str) -> None: ...


def asked(client: tr.Client) -> None:
    client.get(tabled, 5)  # error
    client.get(orders, "a")  # error
