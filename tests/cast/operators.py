"""Windows, joins, tables, broadcast and chained: what the library and the streams of an app make of events."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec

import tailrace as tr
from tailrace import agg
from tailrace import windows as kinds
from tests.cast.member import NEVER, Case, Event, Found, Said, history, in_order, records

DISORDER_MS = 2_000
WIDTH_MS = 5_000
WITHIN_MS = 3_000


class Counted(msgspec.Struct, frozen=True):
    """A window."""

    key: tr.Key[str]
    start: int
    end: int
    value: int


def windows(random: Random) -> Case:
    """Events by windows, and the windows by longer ones."""
    sent = history(random, "events", disorder_ms=DISORDER_MS, late=0.1)
    counts, outer = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for key, some in in_order(sent, "events", DISORDER_MS)[0].items():
        counts.update((key, one.at // WIDTH_MS * WIDTH_MS) for one in some)
    outer.update((key, start // (4 * WIDTH_MS) * (4 * WIDTH_MS)) for key, start in counts)
    found = Found(("short", Counted(key, at, at + WIDTH_MS, n)) for (key, at), n in counts.items())
    found.update(("long", Counted(key, at, at + 4 * WIDTH_MS, n)) for (key, at), n in outer.items())
    return Case(windows_app, random.choice((1, 2)), records(sent), found, ("short", "long"))


def windows_app(partitions: int) -> tr.App:
    app = tr.App("windows", partitions=partitions)
    events = app.topic("events", Event, out_of_order=DISORDER_MS, late="drop", idle_after=NEVER)
    short, long = (app.topic(name, Counted) for name in ("short", "long"))
    inner = app.window("inner", events, kinds.tumbling(WIDTH_MS), agg.count())

    @app.process(inner)
    def publish(window: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
        ctx.emit(short, Counted(ctx.key, window.start, window.end, window.value))

    app.window("outer", inner, kinds.tumbling(4 * WIDTH_MS), agg.count(), into=long)
    return app


def joins(random: Random) -> Case:
    """Pairs of two inputs that are near in time, and the left ones that have none."""
    sent = history(random, "lefts", "rights", disorder_ms=DISORDER_MS)
    lefts, rights = ([one for name, one in sent if name == topic] for topic in ("lefts", "rights"))
    found = Found()
    for left in lefts:
        near = [one for one in rights if one.key == left.key and abs(one.at - left.at) <= WITHIN_MS]
        found.update(("said", Said(left.key, max(left.at, one.at), f"with {one.n}", left.n)) for one in near)
        if not near:
            found["said", Said(left.key, left.at + WITHIN_MS, "alone", left.n)] += 1
    return Case(joins_app, random.choice((1, 2)), records(sent), found)


def joins_app(partitions: int) -> tr.App:
    app = tr.App("joins", partitions=partitions)
    lefts, rights = (
        app.topic(name, Event, out_of_order=DISORDER_MS, idle_after=NEVER) for name in ("lefts", "rights")
    )
    said = app.topic("said", Said)
    pairs = app.join("pairs", lefts, rights, within=WITHIN_MS, how="left")

    @app.process(pairs)
    def tell(pair: tr.Pair[Event, Event | None], ctx: tr.Context[str]) -> None:
        what = "alone" if pair.right is None else f"with {pair.right.n}"
        ctx.emit(said, Said(ctx.key, ctx.event_time, what, pair.left.n))

    return app


def tables(random: Random) -> Case:
    """A table has the last value of each key, or none if that was deleted."""
    sent = history(random, "changes", disorder_ms=DISORDER_MS, late=0.05)
    found = Found()
    for key, some in in_order(sent, "changes", DISORDER_MS)[0].items():
        if some[-1].n % 4:
            found["last", Said(key, some[-1].at, "set", some[-1].n)] += 1
    return Case(tables_app, random.choice((1, 2)), records(sent), found, ("last",))


def tables_app(partitions: int) -> tr.App:
    app = tr.App("tables", partitions=partitions)
    changes = app.topic("changes", Event, out_of_order=DISORDER_MS, late="drop", idle_after=NEVER)
    last = app.table("last", Said)

    @app.actor
    class Item(tr.Actor, order="event-time"):
        count: int = 0

        @tr.process(changes)
        def changed(self, event: Event, ctx: tr.Context[str]) -> None:
            self.count += 1
            if event.n % 4:
                ctx.emit(last, Said(ctx.key, event.at, "set", event.n))
            else:
                ctx.delete(last, ctx.key)

    return app


def broadcast(random: Random) -> Case:
    """Every task has all rules, which are there at the first start: they come before all events, wherever these stand."""
    rules = [("rules", Event(f"r{n}", 1, random.randrange(100))) for n in range(4)]
    rules.append(("rules", Event("r2", 1, 100)))
    sent = history(random, "events")
    known = {one.key: one.n for _, one in rules}
    found = Found(
        ("said", Said(one.key, one.at, f"of {len(known)}", known.get(f"r{one.n % 5}", -1))) for _, one in sent
    )
    return Case(
        broadcast_app,
        random.choice((2, 3)),
        records([*sent[:10], *rules, *sent[10:]]),
        found,
        early=len(rules) + 20,
    )


def broadcast_app(partitions: int) -> tr.App:
    app = tr.App("broadcast", partitions=partitions)
    events = app.topic("events", Event, idle_after=NEVER)
    rules = app.topic("rules", Event, broadcast=True)
    said = app.topic("said", Said)

    @app.actor
    class Judge(tr.Actor):
        known: tr.Shared[str, Event] = tr.shared(rules)

        @tr.process(events)
        def judge(self, event: Event, ctx: tr.Context[str]) -> None:
            rule = self.known.get(f"r{event.n % 5}")
            ctx.emit(said, Said(ctx.key, event.at, f"of {len(self.known)}", -1 if rule is None else rule.n))

    return app


def chained(random: Random) -> Case:
    """A function hands parts of events to an actor by a stream, and that its sums to another function."""
    sent = history(random, "events", disorder_ms=DISORDER_MS)
    sums = Counter[tuple[str, int]]()
    for _, one in sent:
        for part in range(one.n % 3):
            sums[one.key, one.at // WIDTH_MS * WIDTH_MS + WIDTH_MS - 1] += one.n + part
    found = Found(("said", Said(key, end, "sum", n)) for (key, end), n in sums.items())
    return Case(chained_app, random.choice((1, 2)), records(sent), found)


def chained_app(partitions: int) -> tr.App:
    app = tr.App("chained", partitions=partitions)
    events = app.topic("events", Event, out_of_order=DISORDER_MS, idle_after=NEVER)
    said = app.topic("said", Said)
    parts, sums = app.stream("parts", Event), app.stream("sums", Said)

    @app.process(events)
    def split(event: Event, ctx: tr.Context[str]) -> None:
        for part in range(event.n % 3):
            ctx.emit(parts, msgspec.structs.replace(event, n=event.n + part))

    @app.actor
    class Sum(tr.Actor):
        open: dict[str, int] = tr.field(default_factory=dict)

        @tr.process(parts)
        def add(self, event: Event, ctx: tr.Context[str]) -> None:
            end = event.at // WIDTH_MS * WIDTH_MS + WIDTH_MS - 1
            self.open[str(end)] = self.open.get(str(end), 0) + event.n
            ctx.set_timer(end, f"end:{end}")

        @tr.on_timer("end")
        def end(self, ctx: tr.Context[str]) -> None:
            ctx.emit(sums, Said(ctx.key, ctx.event_time, "sum", self.open.pop(str(ctx.event_time))))

    @app.process(sums)
    def tell(one: Said, ctx: tr.Context[str]) -> None:
        ctx.emit(said, one)

    return app
