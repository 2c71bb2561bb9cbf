"""Event time at every step of an app, whatever the schedule. That results are those of an oracle is a law of ``tests.cast``."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.testing import Harness
from tests.cast.webs import Piece, Result, Web, pieces, records, web_of
from tests.cast.world import World
from tests.proof.seeds import each


def check_circles(seed: int, trace: list[str]) -> None:
    random = Random(seed)
    web = web_of(random, circles=True)
    trace += [str(node) for node in web.nodes]
    inputs = list(records(web, pieces(web, random, 20)))
    random.shuffle(inputs)
    world = World(web.app.plan(), seed, inputs, None)
    world.trace = trace
    world.live(30)
    world.rest()  # a circle has no end that all of its records come before
    world.replay()


@pytest.mark.one_seed_in(5)  # one takes 40 ms
def test_apps_with_circles_come_to_the_same_bytes_again_under_kills(seeds: range) -> None:
    each(seeds, check_circles)


def alone(web: Web, names: set[str], found: dict[str, list[Piece]]) -> dict[str, list[tuple[object, ...]]]:
    """What actors next to the sources come to: their rows and what they emit, by actor, byte for byte, in their order."""
    made: dict[str, list[tuple[object, ...]]] = {name: [] for name in names}
    with Harness(web.app, slice_size=7) as h:
        h.log.append_all(one for name in sorted(found) for one in records(web, {name: found[name]}))
        h.advance_watermark(30_000)
        h.end_of_input()
        for store in h._service.stores:
            for name in sorted(names):
                prefix = rows.actor_prefix(name)
                made[name] += store.scan(prefix, rows.prefix_end(prefix))
        # By key, as the log keeps no order between partitions.
        emitted = sorted(h.log.read("results"), key=lambda record: record.key or b"")
        for record in emitted:
            who = msgspec.json.decode(record.value or b"", type=Result).who
            if who in names:
                made[who].append((record.key, record.value, record.timestamp_ms))
    return made


def check_apart(seed: int, trace: list[str]) -> None:
    random = Random(seed)
    web, more = (web_of(random) for _ in range(2))
    found = {name: pieces(web, random)[name] for name in web.sources} | {
        name: some for name, some in pieces(more, random).items() if name not in web.sources
    }
    others = [replace(node, name=f"z{node.name}") for node in more.nodes]
    for node in others:  # they have topics, streams and messages of their own
        node.topics = [name if name.startswith("s") else f"z{name}" for name in node.topics]
        node.targets = [f"z{name}" for name in node.targets]
        node.sends = [f"z{name}" for name in node.sends]
        node.stream = None if node.stream is None else f"z{node.stream}"
        node.gives = None if node.gives is None else f"z{node.gives}"
    both = Web([*web.nodes, *others], web.partitions, web.out_of_order, web.repartitioned, circles=False)
    trace += [str(node) for node in both.nodes]
    plan = web.app.plan()
    names = {
        one.name
        for one in plan.operators
        if one.actor is not None and not one.level and not any(plan.inputs[s].own for s in one.sources)
    }
    assert alone(web, names, {name: found[name] for name in web.sources}) == alone(both, names, found)


@pytest.mark.one_seed_in(10)  # one takes 0.1 s
def test_what_an_actor_comes_to_is_the_same_bytes_whatever_other_actors_its_app_has(seeds: range) -> None:
    each(seeds, check_apart)


class Bell(msgspec.Struct, frozen=True):
    key: str
    at: int


def retrying() -> tuple[tr.App, tr.Topic[Bell, str], tr.Topic[Bell, str]]:
    """A handler that hands some events round by way of another actor, and has timers of its own."""
    app = tr.App("round", partitions=2)
    asked = app.topic("asked", Bell, key="key", event_time="at")
    again = app.topic("again", Bell, key="key", event_time="at")
    done = app.topic("done", Bell, key="key", event_time="at")

    @app.actor
    class Worker(tr.Actor, order="arrival"):
        seen: int = 0

        @tr.process(asked, again)
        def work(self, event: Bell, ctx: tr.Context[str]) -> None:
            self.seen += 1
            assert not ctx.is_late
            if self.seen == 1:
                ctx.emit(again, event)
            ctx.set_timer(event.at + 1_000, "finished")

        @tr.on_timer("finished")
        def finished(self, ctx: tr.Context[str]) -> None:
            ctx.emit(done, Bell(ctx.key, ctx.event_time))

    return app, asked, done


def test_a_circle_waits_for_what_comes_from_outside_and_not_for_itself() -> None:
    app, asked, done = retrying()
    assert app.plan().circles == (("Worker",),)
    with Harness(app) as h:
        h.send(asked, Bell("a", 100), Bell("b", 200))
        news = h.advance_watermark(5_000)
        assert Counter(news.to(done)) == {Bell("a", 1_100): 1, Bell("b", 1_200): 1}
        assert h.late == 0
        h.replay()
