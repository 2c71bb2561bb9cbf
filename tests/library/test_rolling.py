"""``app.limit``, ``top``, ``running`` and ``throttle`` against loops over the whole history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from math import fsum
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg
from tailrace.core.errors import DefinitionError
from tailrace.testing import COMMIT, CRASH, REBALANCE, RELOAD, Harness
from tests.library.oracle_rolling import Event, actor_of, limited, ranked, turns

FAULTS = COMMIT, CRASH, RELOAD, REBALANCE
AMOUNTS = (1.0, 2.0, 0.1, -0.1, -2.0, 1e16, -1e16, 0.0)


class Named(msgspec.Struct, frozen=True):
    """What the streams of these tests give, in one form."""

    key: tr.Key[str]
    what: list[Any]
    at: int


class World:
    """A random history, and an app whose operators are to be added."""

    def __init__(self, seed: int, names: int = 6) -> None:
        self.random = random = Random(seed)
        self.seed, self.out_of_order = seed, random.choice((0, 5, 60))
        self.order: Any = random.choice((None, "event-time"))
        spread, keys = random.choice((0, 10, 100)), random.choice(("a", "ab"))
        self.history = [
            Event(
                random.choice(keys),
                max(0, n - random.randrange(spread + 1)),
                f"i{random.randrange(names)}",
                random.choice(AMOUNTS),
            )
            for n in range(random.choice((30, 150)))
        ]
        self.app = tr.App("rolling", partitions=1)
        self.events = self.app.topic("events", Event, key_type=str, out_of_order=self.out_of_order)
        self.out = self.app.topic("out", Event, key_type=str)
        self.rest = self.app.topic("rest", Event, key_type=str)
        self.late = self.app.topic("late", Event, key_type=str)
        self.named = self.app.topic("named", Named, key_type=str)

    def publish(self, stream: Any, to: Any, made: Callable[[Any], Any]) -> None:
        """Write what an operator gives to a topic."""

        @self.app.process(stream, emits=(to,))
        def publish(event: Any, ctx: tr.Context[str]) -> None:
            ctx.emit(to, made(event))

    def turns(self, *, ordered: bool | None = None) -> Any:
        return turns(
            self.history, self.out_of_order, ordered=self.order is not None if ordered is None else ordered
        )

    def run(self, h: Harness) -> None:
        random, items = self.random, list[Any]()
        for event in self.history:
            items += (
                [(self.events, event)]
                if random.random() < 0.9
                else [(self.events, event), random.choice(FAULTS)]
            )
        h.run(items)

    def harness(self) -> Harness:
        random, seed = self.random, self.seed
        return Harness(
            self.app,
            checked=seed % 8 == 0,
            reload=seed % 16 == 0,
            slice_size=random.choice((1, 7, 1000)),
            commit_every=random.choice((None, 1, 10)),
        )

    def check_runs(self, h: Harness) -> None:
        h.replay()
        if self.seed % 40 == 0:
            assert h.explore(schedules=8, idleness=False).equal


@pytest.mark.one_seed_in(4)
def test_a_limit_passes_on_the_first_of_each_period_whatever_strikes_it(seeds: range) -> None:
    for seed in seeds:
        world = World(seed)
        n, per, routes = world.random.choice((1, 2, 7)), world.random.choice((1, 10, 40)), seed % 8 < 4
        topics: Any = {"rest": world.rest, "late": world.late} if routes else {}
        few = world.app.limit("few", world.events, n, per=per, order=world.order, **topics)
        world.publish(few, world.out, lambda one: one)
        expected = limited(world.turns(), n, per)
        with world.harness() as h:
            world.run(h)
            if world.order is None:
                check_periods(h, per, expected.passed)
            h.end_of_input()
            assert h.emitted(world.out) == expected.passed, seed
            assert h.emitted(world.rest) == (expected.rest if routes else []), seed
            assert h.emitted(world.late) == (expected.late if routes else []), seed
            assert h.metrics.get("few.limited", 0) == (0 if routes else len(expected.rest)), seed
            assert h.dropped == (0 if routes else len(expected.late)), seed
            assert h.keys(actor_of(world.app, "few")) == [], "all periods have ended"
            world.check_runs(h)


def check_periods(h: Harness, per: int, passed: list[Event]) -> None:
    """What is stored is the number of events that were passed on of each open period."""
    actor: Any = h.plan.actors[0].cls
    watermark = h.watermark(actor=actor)
    for key in "ab":
        numbers = Counter((one.at // per + 1) * per for one in passed if one.key == key)
        state: Any = h.state(actor, key)
        panes = [] if state is None else [*state.panes, *state.spilled.values()]
        assert {end: count for _, end, count, _ in panes} == {
            end: n for end, n in numbers.items() if end - 1 > watermark
        }


def test_a_limit_keeps_more_open_periods_than_its_field_holds() -> None:
    app = tr.App("rolling", partitions=1)
    events = app.topic("events", Event, key_type=str, out_of_order=1_000)
    out = app.topic("out", Event, key_type=str)

    @app.process(app.limit("few", events, 1, per=10))
    def publish(event: Event, ctx: tr.Context[str]) -> None:
        ctx.emit(out, event)

    times = [Random(1).randrange(1_000) for _ in range(50)] + list(range(0, 1_000, 10))
    with Harness(app, checked=False) as h:
        h.send(events, *(Event("a", at, "x") for at in times))
        h.crash()
        h.send(events, *(Event("a", at, "x") for at in times))
        assert sorted(one.at // 10 for one in h.emitted(out)) == list(range(100))
        state: Any = h.state(actor_of(app, "few"), "a")
        assert len(state.panes) + len(state.spilled) == 100
        h.end_of_input()
        assert h.keys(actor_of(app, "few")) == []


@pytest.mark.one_seed_in(4)
def test_the_best_names_are_those_of_the_exact_sums_whatever_strikes_them(seeds: range) -> None:
    for seed in seeds:
        world = World(seed)
        n = world.random.choice((1, 3, 5, 20))
        best = world.app.top("best", world.events, n, by="id", of="amount")
        world.publish(
            best, world.named, lambda one: Named(one.key, [list(each) for each in one.best], one.at)
        )
        with world.harness() as h:
            world.run(h)
            h.end_of_input()
            expected = [
                Named(key, [list(one) for one in of], at)
                for key, of, at in ranked(world.turns(ordered=False), n)
            ]
            assert h.emitted(world.named) == expected, seed
            state: Any = h.state(actor_of(world.app, "best"), "a")
            assert state is None or len(state.best) == min(n, len(state.sums))
            world.check_runs(h)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Vote(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    colour: Colour
    weight: int | None = 1


def weight_of_none() -> Any:
    return "x"


def test_names_with_equal_sums_go_by_the_order_of_keys_and_not_a_number_is_last() -> None:
    app = tr.App("votes", partitions=1)
    votes = app.topic("votes", Vote, key_type=str, format="msgpack")
    named = app.topic("named", Named, key_type=str, format="msgpack")

    @app.process(
        app.top(
            "best",
            votes,
            2,
            by="colour",
            of=lambda one: float("nan") if one.weight == 0 else one.weight or weight_of_none(),
        )
    )
    def publish(event: tr.Top[str], ctx: tr.Context[str]) -> None:
        ctx.emit(named, Named(ctx.key, [one.value for one, _ in event.best], event.at))

    red, blue = Colour.RED, Colour.BLUE
    with Harness(app) as h:
        h.send(
            votes,
            Vote("a", 1, red),
            Vote("a", 2, blue),
            Vote("a", 3, red),
            Vote("a", 4, red, -5),
            Vote("a", 5, blue, 0),
        )
        assert [one.what for one in h.emitted(named)] == [
            ["red"],
            ["blue", "red"],
            ["red", "blue"],
            ["blue", "red"],
            ["red", "blue"],
        ]
        with pytest.raises(tr.HandlerError, match="a sum takes int and float, not str"):
            h.send(votes, Vote("a", 6, red, None))


@pytest.mark.parametrize("fault", [None, COMMIT, CRASH, RELOAD])
@pytest.mark.parametrize("checked", [True, False])
def test_best_names_without_a_number_change_once_whatever_strikes_them(fault: Any, checked: bool) -> None:
    app = tr.App("rolling", partitions=1)
    events = app.topic("events", Event, key_type=str, format="msgpack")
    named = app.topic("named", Named, key_type=str, format="msgpack")

    @app.process(app.top("best", events, 2, by="id", of="amount"))
    def publish(one: tr.Top[str], ctx: tr.Context[str]) -> None:
        ctx.emit(named, Named(ctx.key, [name for name, _ in one.best], one.at))

    amounts = [("x", float("nan")), ("x", 1.0), ("x", float("nan")), ("y", float("inf")), ("x", float("inf"))]
    with Harness(app, checked=checked) as h:
        for at, (name, amount) in enumerate(
            [*amounts, ("z", 1.0), ("x", 1.0), ("y", 1.0), ("y", float("-inf"))]
        ):
            h.run([(events, Event("a", at, name, amount)), *([] if fault is None else [fault])])
        assert [(one.what, one.at) for one in h.emitted(named)] == [
            (["x"], 0),
            (["y", "x"], 3),
            (["y", "z"], 5),
            (["z", "x"], 8),
        ]
        h.replay()


def test_a_running_aggregate_has_a_value_after_every_event() -> None:
    for seed in range(8):
        world = World(seed)
        totals = world.app.running("totals", world.events, agg.total(lambda e: e.amount))
        world.publish(totals, world.named, lambda one: Named(one.key, [one.value], one.end))
        with world.harness() as h:
            world.run(h)
            h.end_of_input()
            world.check_runs(h)
            seen: dict[str, list[Event]] = {}
            expected: list[Named] = []
            for one in world.history:
                all_ = seen.setdefault(one.key, [])
                all_.append(one)
                expected.append(
                    Named(one.key, [fsum(each.amount for each in all_)], max(each.at for each in all_))
                )
            assert h.emitted(world.named) == expected


class Total(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    value: float
    end: tr.EventTime[int]


def test_a_running_aggregate_may_go_into_a_topic() -> None:
    app = tr.App("rolling", partitions=1)
    events = app.topic("events", Event, key_type=str)
    totals = app.topic("totals", Total, key_type=str)
    assert app.running("totals-so-far", events, agg.count(), into=totals) is totals
    with Harness(app) as h:
        h.send(events, Event("a", 5, "x"), Event("b", 6, "x"), Event("a", 9, "x"))
        assert h.emitted(totals) == [Total("a", 1, 5), Total("b", 1, 6), Total("a", 2, 9)]


@pytest.mark.one_seed_in(8)
def test_a_throttle_gives_the_newest_of_each_interval_at_its_end(seeds: range) -> None:
    for seed in seeds:
        world = World(seed)
        every = world.random.choice((1, 10, 40))
        newest = world.app.throttle("newest", world.events, every=every, late=world.late)
        world.publish(
            newest,
            world.named,
            lambda one: Named(one.key, list(msgspec.structs.astuple(one.value)[1:]), one.end),
        )

        intervals: dict[tuple[int, str], list[Event]] = {}
        late: list[Event] = []
        for one, fired_to in world.turns(ordered=False):
            end = one.at - one.at % every + every
            if fired_to >= end - 1:
                late.append(one)
            else:
                intervals.setdefault((end, one.key), []).append(one)
        expected: list[Named] = []
        for (end, key), those in sorted(intervals.items()):
            newest_one = min(those, key=lambda one: (-one.at, msgspec.msgpack.encode(one)))
            expected.append(Named(key, list(msgspec.structs.astuple(newest_one)[1:]), end))
        with world.harness() as h:
            world.run(h)
            h.end_of_input()
            assert h.emitted(world.named) == expected, seed
            assert h.emitted(world.late) == late, seed
            assert h.keys(actor_of(world.app, "newest")) == []
            world.check_runs(h)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda app, events: app.limit("few", events, 0, per="1m"), "n=0"),
        (lambda app, events: app.limit("few", events, True, per="1m"), "n=True"),
        (lambda app, events: app.limit("few", events, 1, per=0), "per=0, which is zero"),
        (lambda app, events: app.limit("few", events, 1, per="soon"), "wrong per"),
        (lambda app, events: app.limit("few", events, 1, per=1, rest=app.topic("r", Vote, key_type=str)), "has rest="),
        (lambda app, events: app.limit("few", app.topic("d", Event, key_type=str, late="drop"), 1, per=1, late=events), "takes all late events away"),
        (lambda app, events: app.top("best", events, 0, by="id", of="amount"), "n=0"),
        (lambda app, events: app.top("best", events, 1.0, by="id", of="amount"), "n=1.0"),
        (lambda app, events: app.top("best", events, 1, by="nothing", of="amount"), "no field 'nothing'"),
        (lambda app, events: app.top("best", events, 1, by="amount", of="amount"), "float cannot be the key of a map"),
        (lambda app, events: app.top("best", events, 1, by="id", of="nothing"), "no field 'nothing'"),
        (lambda app, events: app.top("best", events, 1, by="id", of=None), "of=None is not a field"),
        (lambda app, events: app.top("best", events, 1, by=lambda e: e.id, of="amount"), "without an annotated return type"),
        (lambda app, events: app.throttle("newest", events, every=0), "0"),
        (lambda app, events: app.running("sums", events, sum), "no aggregate"),
        (lambda app, events: app.running("events", events, agg.count()), "another topic or stream has the name"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(call: Any, message: str) -> None:
    app = tr.App("rolling", partitions=1)
    events = app.topic("events", Event, key_type=str)
    with pytest.raises(DefinitionError, match=message):
        call(app, events)


def test_another_n_of_the_best_is_refused_over_stored_state_and_another_limit_is_not() -> None:
    def app_of(n: int) -> Any:
        app = tr.App("rolling", partitions=1)
        events = app.topic("events", Event, key_type=str)
        out = app.topic("out", Event, key_type=str)

        @app.process(app.limit("few", events, n, per="1m"))
        def publish(event: Event, ctx: tr.Context[str]) -> None:
            ctx.emit(out, event)

        return app, events, out

    app, events, _ = app_of(1)
    with Harness(app) as h:
        h.send(events, Event("a", 1, "x"))
        snapshot = h.snapshot()
    app, events, out = app_of(2)
    with Harness(app, start=snapshot) as h:
        h.send(events, Event("a", 2, "y"), Event("a", 3, "z"))
        assert [one.id for one in h.emitted(out)] == ["y"]
    first, second = tr.App("rolling", partitions=1), tr.App("rolling", partitions=1)
    for each, n in ((first, 1), (second, 2)):
        each.top("best", each.topic("events", Event, key_type=str), n, by="id", of="amount")
    with Harness(first) as h:
        h.send(first.topics["events"], Event("a", 1, "x"))
        snapshot = h.snapshot()
    with pytest.raises(tr.TailraceError, match="top: 1 by id"), Harness(second, start=snapshot):
        pass
