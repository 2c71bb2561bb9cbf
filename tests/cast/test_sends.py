"""What an ordered operator does, its ids and random numbers included, depends on no schedule: all orders give what the oracle says."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from random import Random
from typing import Any, cast

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import COMMIT, CRASH, REBALANCE, RELOAD, Harness
from tests.cast.sends import START_MS, Fed, Item, Oracle, Out, Web, build, place_of, web_of

Events = list[tuple[str, Item]]


def events_of(web: Web, random: Random, count: int) -> Events:
    """Events of few keys and few times."""
    outside = [name for name in web.topics if name.startswith("s")]
    found: Events = []
    for number in range(count):
        name = random.choice(outside)
        at = START_MS + random.choice((10, 20, 20, 20, 30, random.randrange(50)))
        found.append((name, Item(f"k{random.randrange(5)}", at, f"e{number}")))
    return found


def shuffled(web: Web, events: Events, random: Random) -> Events:
    """Another order of arrival, which keeps that of each partition."""
    left: dict[Any, Events] = {}
    for name, event in events:
        left.setdefault((name, place_of(web, name, event)), []).append((name, event))
    found: Events = []
    while left:
        place = random.choice(list(left))
        found.append(left[place].pop(0))
        if not left[place]:
            del left[place]
    return found


def came_to(web: Web, events: Events, random: Random | None = None) -> Any:
    """States by operator and key, outputs, and what was fed. With ``random``: in slices, with commits and crashes."""
    options: dict[str, Any] = {}
    if random is not None:
        options = {"slice_size": random.randint(1, 4), "commit_every": random.choice(("manual", 1, 3))}
    app = build(web)
    plan = app.plan()
    with Harness(app, **options) as h:
        for name, event in events:
            value, place = msgspec.json.encode(event), place_of(web, name, event)
            h.send_raw(plan.topics[name], value, key=event.key.encode(), partition=place)
            if random is not None and random.random() < 0.4:
                h.run([random.choice((COMMIT, CRASH, REBALANCE, RELOAD))])
        end = START_MS + 1_000_000
        for at in (START_MS + 15, START_MS + 25, end) if random is not None else (end,):
            h.advance_watermark(at)
            if random is not None:
                h.run([random.choice((COMMIT, CRASH, REBALANCE, RELOAD))])
        for _ in range(10):
            h.commit()
            h.advance_watermark(end)
        actors: list[tuple[str, Any]] = [(one.name, one.cls) for one in plan.actors]
        seen = {(name, key): cast(Any, h.state(cls, key)).seen for name, cls in actors for key in h.keys(cls)}
        outs = sorted((one.key, one.text) for one in h.emitted(plan.topics["out"]))
        fed = [
            Fed(name, number, record.offset, msgspec.json.decode(record.value or b"", type=Item))
            for name in {name for name, _ in events}
            for number in range(plan.partitions)
            for record in h.log.read(name, number)
        ]
        assert not h.late
    return seen, outs, fed


@pytest.mark.one_seed_in(20)  # one takes 0.2 s
def test_every_order_of_arrival_under_faults_comes_to_what_plain_python_says(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        web = web_of(random)
        events = events_of(web, random, random.randint(2, 12))
        seen, outs, fed = came_to(web, events)
        oracle = Oracle(web).run(fed)
        assert (seed, seen) == (seed, dict(oracle.seen))
        assert (seed, outs) == (seed, sorted(oracle.outs))
        for _ in range(3):
            again = came_to(web, shuffled(web, events, random), random)
            assert (seed, web, *again[:2]) == (seed, web, seen, outs)


@pytest.mark.one_seed_in(50)  # one takes 0.4 s
def test_all_orders_of_a_few_events_come_to_the_same(seeds: range) -> None:
    for seed in seeds:
        random = Random(f"few {seed}")
        web = web_of(random)
        events = events_of(web, random, 4)
        places = [(name, place_of(web, name, event)) for name, event in events]
        orders = [
            [events[one] for one in order]
            for order in permutations(range(len(events)))
            if all(a < b or places[a] != places[b] for at, a in enumerate(order) for b in order[at + 1 :])
        ]
        results = [came_to(web, order)[:2] for order in orders]
        assert (seed, web, results) == (seed, web, results[:1] * len(results))


class Note(msgspec.Struct, frozen=True):
    name: str


def test_messages_of_several_tasks_with_equal_times_are_handled_alike_and_draw_the_same_in_any_order() -> (
    None
):
    app = tr.App("law", partitions=4)
    sent = app.topic("sent", Item, key="key", event_time="at", out_of_order="1m")
    out = app.topic("out", Out, key="key")

    @app.actor
    class Sender(tr.Actor):
        @tr.process(sent)
        def take(self, event: Item, ctx: tr.Context[str]) -> None:
            ctx.send(Stock, "stock", Note(event.text))

    @app.actor
    class Stock(tr.Actor, order="event-time"):
        names: list[str] = tr.field(default_factory=list)

        @tr.on_message
        def noted(self, note: Note, ctx: tr.Context[str]) -> None:
            self.names.append(note.name)
            ctx.emit(out, Out(note.name, str(ctx.uuid())))

    def run(order: Iterable[tuple[str, int]]) -> Any:
        with Harness(app) as h:
            for name, at in order:
                h.send(sent, Item(name, START_MS + at, name))
            h.advance_watermark(START_MS + 100_000)
            stock = h.state(Stock, "stock")
            assert stock is not None
            return stock.names, sorted((one.key, one.text) for one in h.emitted(out))

    results = [run(order) for order in permutations([("a", 10), ("d", 20), ("c", 20)])]
    assert results == results[:1] * 6


def test_two_ordered_operators_that_hand_one_record_on_give_their_reader_different_numbers() -> None:
    """Both handle it in a unit of its own, and emit to one stream."""
    app = tr.App("twins", partitions=1)
    sent = app.topic("sent", Item, key="key", event_time="at")
    out = app.topic("out", Out, key="key")
    stream = app.stream("st", Item)

    def handing_on(name: str) -> None:
        @app.actor(name=name)
        class HandingOn(tr.Actor, order="event-time"):
            @tr.process(sent)
            def take(self, event: Item, ctx: tr.Context[str]) -> None:
                ctx.emit(stream, event)

    for name in ("One", "Other"):
        handing_on(name)

    @app.process(stream)
    def draw(event: Item, ctx: tr.Context[str]) -> None:
        ctx.emit(out, Out(event.key, str(ctx.uuid())))

    with Harness(app) as h:
        h.send(sent, Item("k", START_MS, ""))
        h.advance_watermark(START_MS + 100_000)
        one, other = h.emitted(out)
        assert one.text != other.text
