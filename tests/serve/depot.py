"""An app for the tests of answers: actors with every kind of key and field, and queries on them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import msgspec

import tailrace as tr

DAY = datetime(2024, 5, 1, tzinfo=UTC)
AT = int(DAY.timestamp() * 1_000)


class Arrival(msgspec.Struct):
    depot: str
    at: datetime
    what: str
    weight: float = 1.0


class Moved(msgspec.Struct):
    number: int
    raw: bytes
    lane: str
    day: date
    id: UUID


class Shelf(msgspec.Struct):
    what: str
    weights: list[float]


class Moment(msgspec.Struct):
    name: str
    at: datetime
    number: int = 1


app = tr.App("depot", partitions=2)
arrivals = app.topic("arrivals", Arrival, key="depot", event_time="at", out_of_order="0s")
moments = app.topic("moments", Moment, key="name", event_time="at", out_of_order="0s")
by_number = app.topic("by-number", Moved, key="number")
by_raw = app.topic("by-raw", Moved, key="raw", format="msgpack")
by_lane = app.topic("by-lane", Moved, key=("lane", "number"))
by_day = app.topic("by-day", Moved, key="day")
by_id = app.topic("by-id", Moved, key="id")


@app.actor
class Depot(tr.Actor):
    """What a depot holds."""

    count: int = 0
    heaviest: float = 0.0
    last: Arrival | None = None
    lanes: dict[tuple[str, int], list[dict[tuple[int, int], str]]] = tr.field(default_factory=dict)
    fresh: str = tr.field(default="", ttl="10m")
    seen: str = tr.field(default="", name="s", ttl="10m", ttl_time="processing")
    by_what: tr.MapState[str, float]
    recent: tr.MapState[int, str] = tr.field(ttl="10m")
    order: tr.ListState[str]

    @tr.process(arrivals)
    def arrived(self, event: Arrival, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.heaviest = max(self.heaviest, event.weight)
        self.last = event
        self.lanes[event.what, self.count] = [{(self.count, 1): event.what}]
        self.fresh = self.seen = event.what
        self.by_what[event.what] = self.by_what.get(event.what, 0.0) + event.weight
        self.recent[self.count] = event.what
        self.order.append(event.what)
        ctx.set_timer(event.at + timedelta(days=1), name="clear")

    @tr.on_timer("clear")
    def cleared(self, ctx: tr.Context[str]) -> None:
        self.order.clear()

    @tr.query
    def heavier(self, than: float, only: list[str] | None = None, most: int = 10) -> list[Shelf]:
        """What is heavier than this."""
        return [
            Shelf(what, [weight])
            for what, weight in self.by_what.items()
            if weight > than and (only is None or what in only)
        ][:most]

    @tr.query
    def steal(self) -> int:
        self.by_what["gold"] = 1.0
        return 1

    @tr.query
    def reset(self) -> int:
        self.count = 0
        return self.count

    @tr.query
    def broken(self) -> object:
        raise RuntimeError("no scales")

    @tr.query
    def garbled(self) -> str:
        return "\ud800"

    @tr.query
    def all_of_it(self) -> object:
        return self.by_what


@app.actor
class Short(tr.Actor):
    """Nothing of it lasts."""

    fresh: str = tr.field(default="", ttl="10m")
    recent: tr.MapState[int, str] = tr.field(ttl="10m")

    @tr.process(moments)
    def came(self, event: Moment, ctx: tr.Context[str]) -> None:
        if event.number == 1:
            self.fresh = event.name
        self.recent[event.number] = event.name


def counting(name: str, topic: tr.Topic[Moved, object]) -> None:
    class Counter(tr.Actor):
        moves: int = 0

        @tr.process(topic)
        def moved(self, event: Moved, ctx: tr.Context) -> None:
            self.moves += 1

    app.actor(name=name, emits=[])(Counter)


for each, topic in (
    ("Number", by_number),
    ("Raw", by_raw),
    ("Lane", by_lane),
    ("Day", by_day),
    ("Id", by_id),
):
    counting(each, topic)
