"""A system of apps: each as in a harness of its own, and event time on its way from one to the next."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import HandlerError, TopicMismatchError, UsageError
from tailrace.testing import COMMIT, CRASH, END, REBALANCE, RELOAD, Clock, Idle, Item, System, Watermark
from tests.testing.fares import (
    HOUR_MS,
    LATENESS_MS,
    Day,
    Days,
    DriverHour,
    Drivers,
    Fare,
    RegionHour,
    Regions,
    some_fares,
    sums_in,
    sums_of,
)


def two() -> tuple[Drivers, Regions]:
    return Drivers(), Regions()


def fare(driver: str, at: int, cents: int = 1, region: str = "r0") -> Fare:
    return Fare(driver, region, at, cents)


# --- event time from app to app


def test_what_one_app_emits_is_handled_by_the_next_within_the_same_call() -> None:
    drivers, regions = two()
    with System(drivers.app, regions.app) as s:
        s.send(drivers.fares, fare("a", 0, 5), fare("b", 10, 6))
        assert s.emitted(drivers.hours) == []
        assert s[drivers.app].state(drivers.Driver, "a") is not None
        news = s.advance_watermark(HOUR_MS - 1)
        assert len(news.to(drivers.hours)) == 2
        assert news.to(regions.sums) == [RegionHour("r0", HOUR_MS - 1, 11, 2)]
        assert s[regions.app].emitted(regions.sums) == news.to(regions.sums)
        assert s[drivers.app].emitted(drivers.hours) == news.to(drivers.hours)
        assert s[regions.app].watermark(2) == HOUR_MS - 1
        assert {name: report.outputs for name, report in s.replay().items()} == {"drivers": 2, "regions": 1}


@pytest.mark.one_seed_in(5)  # one takes 45 ms
def test_sums_of_sums_are_those_of_plain_python_however_time_goes(seeds: range) -> None:
    """The law of the chain: nothing comes to an hour after it was told of, none is missed, and no commit is
    seen.
    """
    for seed in seeds:
        random = Random(seed)
        fares = some_fares(random, random.randrange(1, 60))
        drivers, regions = two()
        options: dict[str, Any] = {
            "slice_size": random.choice([1, 3, 1_000]),
            "commit_every": random.choice([None, 1, 5]),
            "partitions": random.choice([None, 1, 2]),
        }
        with System(drivers.app, regions.app, **options) as s:
            waiting = list(fares)
            while waiting:
                count = random.randrange(1, 8)
                s.send(drivers.fares, *waiting[:count])
                del waiting[:count]
                done = fares[: len(fares) - len(waiting)]
                match random.randrange(6):
                    case 0:
                        s.advance_watermark(max(one.at for one in done) - LATENESS_MS - 1)
                    case 1:
                        s.crash(random.choice([drivers.app, regions.app]))
                    case 2:
                        s.crash()
                    case 3:
                        with s.down(regions.app):
                            s.send(drivers.fares)
                    case _:
                        pass
                told = s.emitted(regions.sums)
                assert set(told) <= set(sums_of(fares)), (
                    f"seed {seed}: an hour was told of before it was over"
                )
            s.end_of_input()
            assert sums_in(s, regions.sums) == sums_of(fares), f"seed {seed}"
            assert (s[drivers.app].late, s[regions.app].late) == (0, 0), f"seed {seed}"
            assert not s[drivers.app].behind
            s.replay()


def test_a_chain_of_three_comes_to_its_end_along_the_topics_between_them() -> None:
    drivers, regions, days = Drivers(), Regions(), Days()
    fares = some_fares(Random(5), 80)
    with System(days.app, drivers.app, regions.app) as s:
        s.send(drivers.fares, *fares)
        s.end_of_input()
        expected = sums_of(fares)
        assert s.emitted(days.days) == [Day("all", sum(one.cents for one in fares), len(expected))]
        s.replay()


def test_the_least_of_the_tasks_upstream_holds_the_next_app_back_until_its_input_is_idle() -> None:
    drivers, regions = two()
    with System(drivers.app, regions.app) as s:
        s.send(drivers.fares, fare("a", 0, 5), fare("a", 2 * HOUR_MS, 7))
        assert [one.end for one in s.emitted(drivers.hours)] == [HOUR_MS - 1]
        assert s.emitted(regions.sums) == []
        s.advance_clock_by("59s")
        assert s.emitted(regions.sums) == []
        s.advance_clock_by("1s")
        assert s.emitted(regions.sums) == [RegionHour("r0", HOUR_MS - 1, 5, 1)]
        s.replay()


def test_an_input_can_be_raised_by_itself() -> None:
    drivers, regions = two()
    with System(drivers.app, regions.app) as s:
        s.send(drivers.fares, fare("a", 0, 5))
        assert s.advance_watermark(HOUR_MS - 2, topic=drivers.fares) == []
        assert s.advance_watermark(HOUR_MS - 1, topic=drivers.fares).to(regions.sums) != []
        for topic in (drivers.hours, regions.hours):
            with pytest.raises(
                UsageError, match="'driver-hours' follows what the app 'drivers' writes to it"
            ):
                s.advance_watermark(HOUR_MS, topic=topic)
        with pytest.raises(UsageError, match="no handler of the apps 'drivers', 'regions' takes the topic"):
            s.send(regions.sums, RegionHour("r0", 1, 1, 1))


class Step(msgspec.Struct, frozen=True):
    key: str
    at: int


def test_only_inputs_from_outside_are_raised_and_all_apps_that_read_one_are() -> None:
    first, second = tr.App("first", partitions=1), tr.App("second", partitions=1)
    steps = first.topic("steps", Step, key="key", event_time="at")
    own = first.topic("own", Step, key="key", event_time="at")
    other_steps = second.topic("steps", Step, key="key", event_time="at")
    # It goes by its events and not by what is published for it.
    other_own = second.topic("own", Step, key="key", event_time="at")
    marks: dict[str, int] = {}

    @first.process(steps)
    def forward(event: Step, ctx: tr.Context[str]) -> None:
        marks["first"] = ctx.watermark
        ctx.emit(own, event)

    @second.actor
    class BySteps(tr.Actor):
        @tr.process(other_steps)
        def step(self, event: Step, ctx: tr.Context[str]) -> None:
            marks["steps"] = ctx.watermark

    @second.actor
    class ByOwn(tr.Actor):
        @tr.process(other_own)
        def step(self, event: Step, ctx: tr.Context[str]) -> None:
            marks["own"] = ctx.watermark

    with System(first, second) as s:
        s.advance_watermark(50)
        s.send(steps, Step("a", 100))
        assert (marks["first"], marks["steps"]) == (50, 50)
        assert marks["own"] < 0
        assert s[second].watermark(actor=ByOwn) == 99
        s.replay()


def test_a_system_none_of_whose_inputs_has_a_watermark_cannot_be_advanced() -> None:
    app = tr.App("reference", partitions=1)
    steps = app.topic("steps", Step, key="key", event_time="at", watermark=False)

    @app.process(steps)
    def forward(event: Step, ctx: tr.Context[str]) -> None: ...

    with System(app) as s:
        with pytest.raises(UsageError, match="no input of the app 'reference' has a watermark"):
            s.advance_watermark(1)
        with pytest.raises(UsageError, match="the input 'steps' has no watermark"):
            s.advance_watermark(1, topic=steps)


# --- the end


def circle(*, turns: int) -> tuple[tr.App, tr.App, tr.Topic[Step, str], Callable[[System], Any]]:
    """Two apps that play a ball to each other, ``turns`` times, each waiting a while of event time."""
    left, right = tr.App("left", partitions=2), tr.App("right", partitions=2)
    to_left = left.topic("to-left", Step, key="key", event_time="at")
    from_left = left.topic("to-right", Step, key="key", event_time="at")
    to_right = right.topic("to-right", Step, key="key", event_time="at")
    from_right = right.topic("to-left", Step, key="key", event_time="at")

    @left.actor
    class Left(tr.Actor):
        got: list[int] = []

        @tr.process(to_left)
        def play(self, event: Step, ctx: tr.Context[str]) -> None:
            self.got.append(event.at)
            if len(self.got) < turns:
                ctx.emit(from_left, Step(event.key, event.at + 10))

    @right.actor
    class Right(tr.Actor):
        got: list[int] = []

        @tr.process(to_right)
        def play(self, event: Step, ctx: tr.Context[str]) -> None:
            self.got.append(event.at)
            ctx.set_timer(event.at + 1)

        @tr.on_timer
        def back(self, ctx: tr.Context[str]) -> None:
            ctx.emit(from_right, Step(ctx.key, ctx.event_time + 10))

    return left, right, to_left, lambda s: (s[left].state(Left, "a"), s[right].state(Right, "a"))


def test_apps_in_a_circle_end_together() -> None:
    left, right, to_left, look = circle(turns=5)
    with System(left, right) as s:
        s.send(to_left, Step("a", 0))
        assert [one.got for one in look(s)] == [[0], [10]]
        s.end_of_input()
        assert [one.got for one in look(s)] == [[0, 21, 42, 63, 84], [10, 31, 52, 73]]
        s.replay()


def test_an_app_between_ends_after_what_it_reads_though_it_reads_from_outside_as_well() -> None:
    """Its own end would let it rise past what is still to come."""
    first, second = tr.App("first", partitions=1), tr.App("second", partitions=1)
    steps = first.topic("steps", Step, key="key", event_time="at")
    ends = first.topic("ends", Step, key="key", event_time="at")
    others = second.topic("others", Step, key="key", event_time="at")
    second_ends = second.topic("ends", Step, key="key", event_time="at", watermark="upstream", late="drop")

    @first.actor
    class First(tr.Actor):
        @tr.process(steps)
        def step(self, event: Step, ctx: tr.Context[str]) -> None:
            ctx.set_timer(event.at + 1_000)

        @tr.on_timer
        def over(self, ctx: tr.Context[str]) -> None:
            ctx.emit(ends, Step(ctx.key, ctx.event_time))

    @second.actor
    class Second(tr.Actor, order="arrival"):
        got: list[int] = []

        @tr.process(others)
        def other(self, event: Step, ctx: tr.Context[str]) -> None:
            ctx.set_timer(event.at + 100_000, "late")

        @tr.on_timer("late")
        def late(self, ctx: tr.Context[str]) -> None: ...

        @tr.process(second_ends)
        def end(self, event: Step, ctx: tr.Context[str]) -> None:
            self.got.append(event.at)

    with System(second, first) as s:
        s.send(steps, Step("a", 0), Step("a", 500))
        s.send(others, Step("a", 0))
        s.end_of_input()
        found = s[second].state(Second, "a")
        assert found is not None
        assert found.got == [1_000, 1_500]
        assert s[second].late == 0
        assert s[second].timers(Second, "a") == {}
        s.replay()


def test_nothing_can_be_sent_after_the_end() -> None:
    drivers, regions = two()
    with System(drivers.app, regions.app) as s:
        s.end_of_input()
        with pytest.raises(UsageError, match="has ended"):
            s.send(drivers.fares, fare("a", 0))


# --- crashes and commits


def test_an_app_that_is_down_is_left_behind_and_catches_up() -> None:
    drivers, regions = two()
    with System(drivers.app, regions.app) as s:
        with s.down(regions.app):
            s.send(drivers.fares, fare("a", 0, 5))
            s.advance_watermark(HOUR_MS - 1)
            s.recover()
            assert len(s.emitted(drivers.hours)) == 1
            assert s.emitted(regions.sums) == []
            with pytest.raises(UsageError, match="'regions' is down"):
                s[regions.app].state(regions.Region, "r0")
            with pytest.raises(UsageError, match="'regions' is down"):
                s.end_of_input()
        assert s.emitted(regions.sums) == []
        assert s.send(drivers.fares).to(regions.sums) == [RegionHour("r0", HOUR_MS - 1, 5, 1)]
        s.replay()


def test_what_an_app_that_is_down_would_have_been_told_it_is_told_when_it_comes_up() -> None:
    drivers, regions = two()
    with System(drivers.app, regions.app) as s:
        s.send(drivers.fares, fare("a", 0, 5))
        with s.down(drivers.app):
            s.send(drivers.fares, fare("a", 1, 6))
            assert s.advance_watermark(HOUR_MS - 1) == []
        assert s.advance_clock(1).to(regions.sums) == [RegionHour("r0", HOUR_MS - 1, 11, 1)]
        assert s[drivers.app].late == 0
        s.replay()


def test_readers_wait_for_an_app_that_is_down() -> None:
    """Two apps write what a third reads: one of them holds it back as long as it does not go on."""
    drivers, more, regions = Drivers(), Drivers(name="more"), Regions()
    with System(drivers.app, more.app, regions.app, partitions=1) as s:
        s.send(drivers.fares, fare("a", 0, 5))
        assert len(s.emitted(drivers.hours)) == 0
        with s.down(more.app):
            s.advance_watermark(HOUR_MS - 1)
            assert len(s.emitted(drivers.hours)) == 1
            assert s.emitted(regions.sums) == []
        assert s.send(drivers.fares).to(regions.sums) == [RegionHour("r0", HOUR_MS - 1, 10, 2)]
        s.replay()


def test_a_list_of_faults_is_run_as_in_a_harness() -> None:
    drivers, regions = two()
    items: list[Item] = [
        (drivers.fares, fare("a", 0, 5)),
        CRASH,
        COMMIT,
        (drivers.fares, fare("b", 10, 6)),
        RELOAD,
        Idle(drivers.fares),
        Clock(5),
        REBALANCE,
        Watermark(HOUR_MS, drivers.fares),
        CRASH,
        END,
    ]
    with System(drivers.app, regions.app) as s:
        out = s.run(items)
        assert out.to(regions.sums) == [RegionHour("r0", HOUR_MS - 1, 11, 2)]
        assert s.now == 5
        s.replay()


def test_an_error_of_one_app_takes_the_system_down_and_it_goes_on_from_the_last_commits() -> None:
    drivers = Drivers()
    app = tr.App("fragile", partitions=2)
    hours = app.topic("driver-hours", DriverHour, key="region", event_time="end")
    healed: list[bool] = []

    @app.actor
    class Fragile(tr.Actor):
        got: int = 0

        @tr.process(hours)
        def take(self, event: DriverHour, ctx: tr.Context[str]) -> None:
            if not healed:
                raise ValueError("not yet")
            self.got += 1

    with System(drivers.app, app) as s:
        s.send(drivers.fares, fare("a", 0, 5))
        with pytest.raises(HandlerError, match="not yet"):
            s.advance_watermark(HOUR_MS - 1)
        healed.append(True)
        s.send(drivers.fares)
        found = s[app].state(Fragile, "r0")
        assert found is not None
        assert found.got == 1
        assert len(s.emitted(drivers.hours)) == 1


# --- looking, and mistakes


def test_wrong_systems_are_told() -> None:
    drivers, regions = two()
    with pytest.raises(UsageError, match="without an app"):
        System()
    with pytest.raises(UsageError, match="two apps of the system have the name 'drivers'"):
        System(drivers.app, Drivers().app)
    with pytest.raises(UsageError, match="numbers of records"):
        System(drivers.app, slice_size=0)
    with System(drivers.app) as s:
        with pytest.raises(UsageError, match="is not an app of the system"):
            s[regions.app]
        with pytest.raises(UsageError, match="is not an app of the system"):
            s.crash(regions.app)
        with pytest.raises(UsageError, match="not to the app 'drivers'"):
            s.send(regions.hours)
    with pytest.raises(UsageError, match="the system is closed"):
        s.commit()


def test_two_apps_that_read_a_topic_have_as_many_partitions() -> None:
    other = Drivers(partitions=3, name="other")
    with pytest.raises(TopicMismatchError, match=r"the input has \d partitions, the app"):
        System(Drivers().app, other.app)
