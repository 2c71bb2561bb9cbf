"""Event time at every step of an app, whatever the schedule. That results are those of an oracle is a law of ``tests.cast``."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import TaskSettings
from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings
from tailrace.state import MemoryStore
from tailrace.testing import Harness, MemoryLog
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


# --- an actor's results are its own -------------------------------------------------------------------------------


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


# --- what is published holds ----------------------------------------------------------------------------------------


class Bell(msgspec.Struct, frozen=True):
    key: str
    at: int


BELLS, KEYS_OF_BELLS, INSTANT = 60, 30, 5_000


def ringing() -> tuple[tr.App, tr.App]:
    """Many timers of one instant, and a service that follows what they emit."""
    first = tr.App("first", partitions=2)
    bells = first.topic("bells", Bell, key="key", event_time="at")
    rings = first.topic("rings", Bell, key="key", event_time="at")

    @first.actor
    class Tower(tr.Actor):
        rung: int = 0

        @tr.process(bells)
        def hung(self, event: Bell, ctx: tr.Context[str]) -> None:
            if event.at < INSTANT:
                for number in range(BELLS):
                    ctx.set_timer(INSTANT, f"ring:{number}")

        @tr.on_timer("ring")
        def ring(self, ctx: tr.Context[str]) -> None:
            self.rung += 1
            ctx.emit(rings, Bell(ctx.key, ctx.event_time))

    second = tr.App("second", partitions=2)
    followed = second.topic("rings", Bell, key="key", event_time="at", watermark="upstream")

    @second.actor
    class Listener(tr.Actor):
        heard: int = 0

        @tr.process(followed)
        def hear(self, event: Bell, ctx: tr.Context[str]) -> None:
            self.heard += 1

    return first, second


def started(plan: Plan, log: MemoryLog, budget: int, every: int) -> list[Partition]:
    prepare_topics(log, plan, create_declared=True)
    settings = PartitionSettings(
        commit_interval_ms=1 << 60, commit_records=every, task=TaskSettings(firing_budget=budget)
    )
    found = [
        Partition(plan, number, log, MemoryStore(), lambda: 0, lineage=b"bells", settings=settings)
        for number in range(plan.partitions)
    ]
    for one in found:
        one.restore()
    return found


@pytest.mark.parametrize("budget", [1, 7, 100, 10_000])
@pytest.mark.parametrize("every", [1, 13, 500, 1 << 40])
def test_a_commit_in_the_middle_of_a_drain_publishes_nothing_that_is_still_to_come(
    budget: int, every: int
) -> None:
    log = MemoryLog()
    apps = [started(app.plan(), log, budget, every) for app in ringing()]
    first = [Bell(f"k{number}", 1_000) for number in range(KEYS_OF_BELLS)]
    after = [Bell(f"k{number}", 9_000) for number in range(KEYS_OF_BELLS)]
    log.append_all(Output("bells", one.key.encode(), msgspec.json.encode(one), 0) for one in (*first, *after))
    in_the_middle = 0
    moved = True
    while moved:
        moved = False
        for one in (*apps[0], *apps[1]):
            # As a worker does it: a slice, and then perhaps a commit, wherever that falls.
            moved = one.poll(10) or moved
            in_the_middle += one.state is State.RUNNING and one.task.draining
            if one.dirty and (every == 1 or not moved):
                one.commit()
                moved = True
    listeners = apps[1]
    assert sum(one.task.totals.records for one in listeners) == BELLS * KEYS_OF_BELLS
    assert sum(one.task.totals.late for one in listeners) == 0
    assert all(one.task.watermark == 9_000 - 1 for one in listeners)
    assert in_the_middle or budget == 10_000


# --- circles ------------------------------------------------------------------------------------------------------


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
