"""Joins against the oracle: random bounds and histories, equal times, hot keys, commits, crashes, several partitions, chained."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import tailrace as tr
from tailrace import windows
from tailrace.testing import Harness
from tests.library import oracle_joins as oracle
from tests.library.joining import BEGIN_MS, HOWS, A, B, C, Given, World, bounds, history, shown
from tests.library.oracle_joins import Arrival, Result


@pytest.mark.one_seed_in(2)
def test_an_interval_join_gives_all_pairs_within_the_bounds_once_and_in_order(seeds: range) -> None:
    given = 0
    for seed in seeds:
        random = Random(seed)
        (first, last), how = bounds(random), random.choice(HOWS)
        order = random.choice(
            [(0, 1), (1, 0)]
        )  # the side that is declared first is the left or the right one

        def join(world: World) -> tr.Stream[Any, str]:
            left, right = (world.topics[one] for one in order)  # noqa: B023  # it is called at once
            options: Any = {"how": how, **world.options(*order)}  # noqa: B023
            made: tr.Stream[Any, str] = world.app.join("j", left, right, within=(first, last), **options)  # noqa: B023
            return made

        def of_key(by_input: list[list[Arrival]]) -> list[Result]:
            return oracle.interval(by_input[order[0]], by_input[order[1]], first, last, how)  # noqa: B023

        hot = random.random() < 0.2
        sent = history(random, random.choice([5, 30, 80, 150]), (A, B), hot=hot)
        try:
            given += World(random, join).check(random, sent, of_key)
        except BaseException as error:
            error.add_note(f"seed {seed}: {how} join from {first} to {last}, order {order}")
            raise
    assert given > len(seeds)


@pytest.mark.one_seed_in(4)
def test_a_join_behind_a_join_gives_what_both_definitions_say(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        (first, last), (first_2, last_2) = bounds(random), bounds(random)
        how, how_2 = random.choice(["inner", "left"]), random.choice(["inner", "left"])

        def join(world: World) -> tr.Stream[Any, str]:
            a, b, c = world.topics
            one: Any = {"how": how}  # noqa: B023
            two: Any = {"how": how_2}  # noqa: B023
            world.routes = False
            both = world.app.join("i", a, b, within=(first, last), **one)  # noqa: B023
            made: tr.Stream[Any, str] = world.app.join("j", both, c, within=(first_2, last_2), **two)  # noqa: B023
            return made

        def of_key(by_input: list[list[Arrival]]) -> list[Result]:
            both = oracle.interval(by_input[0], by_input[1], first, last, how)  # noqa: B023
            pairs = [Arrival(time, 0, place, pair) for place, (time, *pair) in enumerate(both)]
            found = oracle.interval(pairs, by_input[2], first_2, last_2, how_2)  # noqa: B023
            return [(time, *pair, right) for time, pair, right in found]

        sent = history(random, random.choice([5, 30, 60]), (A, B, C))
        try:
            world = World(random, join, 3)
            world.check(random, sent, of_key, ordered=False, operators=("i", "j"))
        except BaseException as error:
            error.add_note(f"seed {seed}: {how} {first} to {last}, then {how_2} {first_2} to {last_2}")
            raise


@pytest.mark.one_seed_in(3)
def test_a_window_join_gives_all_pairs_of_a_window_at_its_end(seeds: range) -> None:
    given = 0
    for seed in seeds:
        random = Random(seed)
        size, how = random.choice([1, 10, 60, 600]), random.choice(HOWS)
        offset = random.choice([0, 7]) % size

        def join(world: World) -> tr.Stream[Any, str]:
            windowed: Any = world.app.window_join
            fixed = windows.tumbling(size, offset=offset)  # noqa: B023  # it is called at once
            made: tr.Stream[Any, str] = windowed("j", *world.topics, fixed, how=how, **world.options(0, 1))  # noqa: B023
            return made

        def of_key(by_input: list[list[Arrival]]) -> list[Result]:
            return oracle.window(by_input[0], by_input[1], size, offset, how)  # noqa: B023

        sent = history(random, random.choice([5, 30, 80]), (A, B), hot=random.random() < 0.2)
        try:
            given += World(random, join).check(random, sent, of_key)
        except BaseException as error:
            error.add_note(f"seed {seed}: {how} join of windows of {size}")
            raise
    assert given > len(seeds)


@pytest.mark.one_seed_in(3)
def test_an_asof_join_gives_the_version_that_is_valid_at_the_very_time(seeds: range) -> None:
    given = 0
    for seed in seeds:
        random = Random(seed)
        keep, order = random.choice([1, 5, 30, 200, None]), random.choice([(0, 1), (1, 0)])

        def join(world: World) -> tr.Stream[Any, str]:
            left, right = (world.topics[one] for one in order)  # noqa: B023  # it is called at once
            made: tr.Stream[Any, str] = world.app.asof("j", left, right, keep=keep, **world.options(*order))  # noqa: B023
            return made

        def of_key(by_input: list[list[Arrival]]) -> list[Result]:
            return oracle.asof(by_input[order[0]], by_input[order[1]], 10**15 if keep is None else keep)  # noqa: B023

        sent = history(random, random.choice([5, 30, 80]), (A, B), hot=random.random() < 0.3)
        try:
            world = World(random, join)
            given += world.check(random, sent, of_key, operators=("j",) if keep else ())
        except BaseException as error:
            error.add_note(f"seed {seed}: keep {keep}, order {order}")
            raise
    assert given > len(seeds)


@pytest.mark.one_seed_in(3)
def test_a_case_has_all_parts_or_what_is_there_when_time_is_over(seeds: range) -> None:
    given = 0
    for seed in seeds:
        random = Random(seed)
        within, inputs = random.choice([1, 5, 30, 200]), random.choice([2, 3, 3])

        def join(world: World) -> tr.Stream[Any, str]:
            options = world.options(*range(inputs))  # noqa: B023  # it is called at once
            made: tr.Stream[Any, str] = world.app.gather("j", *world.topics, within=within, **options)  # noqa: B023
            return made

        def of_key(by_input: list[list[Arrival]]) -> list[Result]:
            return oracle.gather(by_input, within)  # noqa: B023

        sent = history(random, random.choice([5, 30, 80]), (A, B, C)[:inputs], hot=random.random() < 0.2)
        try:
            given += World(random, join, inputs).check(random, sent, of_key)
        except BaseException as error:
            error.add_note(f"seed {seed}: {inputs} parts within {within}")
            raise
    assert given > len(seeds)


@pytest.mark.one_seed_in(5)
def test_chains_of_joins_are_right_at_equal_times(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        keep, keep_2 = random.choice([1, 30, 200]), random.choice([1, 30, 200])

        def join(world: World) -> tr.Stream[Any, str]:
            a, b, c = world.topics
            world.routes = False
            return world.app.asof("j", a, world.app.asof("i", b, c, keep=keep_2), keep=keep)  # noqa: B023

        def of_key(by_input: list[list[Arrival]]) -> list[Result]:
            versions = oracle.asof(by_input[1], by_input[2], keep_2)  # noqa: B023
            rights = [Arrival(time, 1, place, pair) for place, (time, *pair) in enumerate(versions)]
            found = oracle.asof(by_input[0], rights, keep)  # noqa: B023
            return [(time, left, *(right or (None,))) for time, left, right in found]

        sent = history(random, random.choice([5, 30, 60]), (A, B, C))
        try:
            World(random, join, 3).check(random, sent, of_key, operators=("i", "j"))
        except BaseException as error:
            error.add_note(f"seed {seed}: keep {keep}, {keep_2}")
            raise


OPERATORS: dict[str, Callable[[tr.App, Any, Any], tr.Stream[Any, str]]] = {
    "inner": lambda app, a, b: app.join("j", a, b, within=("-5ms", "30ms")),
    "full": lambda app, a, b: app.join("j", a, b, within="30ms", how="full"),
    "window": lambda app, a, b: app.window_join("j", a, b, windows.tumbling(60), how="full"),
    "asof": lambda app, a, b: app.asof("j", a, b, keep="30ms"),
    "gather": lambda app, a, b: app.gather("j", a, b, within="60ms"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_no_schedule_changes_the_results(name: str) -> None:
    random = Random(name)
    world = World(random, lambda world: OPERATORS[name](world.app, *world.topics))
    with Harness(world.app, partitions=world.partitions) as h:
        world.run(random, history(random, 80, (A, B)), h)
        assert h.emitted(world.given)
        assert h.explore(schedules=15, idleness=False).equal


@pytest.mark.parametrize("name", OPERATORS)
def test_a_timer_that_has_failed_leaves_nothing_that_a_later_event_meets(name: str) -> None:
    app = tr.App("joins", partitions=1, on_error="dead-letter-all")
    a, b, given = app.topic("a", A), app.topic("b", B), app.topic("given", Given)

    @app.process(OPERATORS[name](app, a, b))
    def publish(one: Any, ctx: tr.Context[str]) -> None:
        if ctx.event_time < BEGIN_MS + 1_000:
            raise ValueError("not today")
        ctx.emit(
            given, Given(ctx.key, ctx.event_time, "" if name == "gather" else shown(one.left, one.right))
        )

    with Harness(app, checked=False) as h:
        h.send(a, A("k", BEGIN_MS, 1))
        h.advance_watermark(BEGIN_MS + 2_000)
        later = BEGIN_MS + 6_000
        h.send(b, B("k", later + 1, 3))
        h.send(a, A("k", later + 2, 2))
        h.end_of_input()
        found = [one.parts for one in h.emitted(given)]
        assert found == ([""] if name == "gather" else ["A2 B3"])
        actor: Any = app.actors["j"]
        assert h.keys(actor) == []


def test_one_event_may_have_thousands_of_partners_beyond_what_is_kept_in_a_field() -> None:
    app = tr.App("joins", partitions=1)
    a, b = app.topic("a", A), app.topic("b", B)
    given = app.topic("given", Given)

    @app.process(app.join("j", a, b, within="1s", how="full"))
    def publish(both: tr.Pair[A | None, B | None], ctx: tr.Context[str]) -> None:
        ctx.emit(given, Given(ctx.key, ctx.event_time, shown(both.left, both.right)))

    with Harness(app, checked=False) as h:
        h.send(a, *(A("k", BEGIN_MS + n // 10, n) for n in range(3_000)))
        h.send(b, B("k", BEGIN_MS + 500, 0), B("k", BEGIN_MS + 60_000, 1))
        h.commit()
        h.crash()
        h.end_of_input()
        assert [one.parts for one in h.emitted(given)] == [*(f"A{n} B0" for n in range(3_000)), "None B1"]
        actor: Any = app.actors["j"]
        assert h.keys(actor) == []


def test_what_cannot_be_joined_is_refused_when_it_is_declared() -> None:
    app = tr.App("joins")
    a, b = app.topic("a", A), app.topic("b", B)
    slow = app.topic("slow", B, watermark=False)
    numbers = app.topic("numbers", B, key="n", key_type=int)
    dropping = app.topic("dropping", B, late="drop")
    early = app.window("early", b, tr.windows.tumbling("1h"), tr.agg.count(), early=5)
    join: Any = app.join
    for inputs, options, said in (
        ((a, b), {"within": ("2s", "1s")}, "within"),
        ((a, b), {"within": "0s"}, "within"),
        ((a, b), {"within": "-5s"}, "within"),
        ((a, b), {"within": ("1s",)}, "within"),
        ((a, b), {"within": "1 parsec"}, "not a duration"),
        ((a, b), {"within": "1s", "how": "outer"}, "outer"),
        ((a, a), {"within": "1s"}, "twice"),
        ((a, slow), {"within": "1s"}, "watermark=False"),
        ((a, app.topic("shared", B, broadcast=True)), {"within": "1s"}, "broadcast|keys"),
        ((a, app.table("last", B)), {"within": "1s"}, "is a table"),
        ((a, numbers), {"within": "1s"}, "keys of type int"),
        ((a, early), {"within": "1s"}, "early results"),
        ((a, b), {"within": "1s", "late": a}, "late="),
        ((a, b), {"within": "1s", "late": (a,)}, "2 inputs"),
        ((a, dropping), {"within": "1s", "late": (None, b)}, "takes them away"),
    ):
        with pytest.raises(tr.DefinitionError, match=said):
            join("j", *inputs, **options)
    others: Any = app
    for refused in (
        lambda: others.window_join("j", a, b, windows.sliding("1h", every="10m")),
        lambda: others.asof("j", a, b, keep="0s"),
        lambda: others.gather("j", a, within="1s"),
        lambda: others.gather("j", a, b, within="0s"),
    ):
        with pytest.raises(tr.DefinitionError, match="the operator 'j'"):
            refused()
    join("j", a, b, within=("-1s", "2s"))
    with pytest.raises(tr.DefinitionError):
        join("j", a, b, within="1s")


def test_other_bounds_do_not_read_what_was_kept_for_these() -> None:
    def app_of(**options: Any) -> tr.App:
        app = tr.App("joins", partitions=1)
        app.join("j", app.topic("a", A), app.topic("b", B), **options)
        return app

    before = app_of(within=("0s", "10m"))
    with Harness(before) as h:
        h.send(before.topics["a"], A("k", BEGIN_MS, 1), A("k", BEGIN_MS + 5, 1))
        h.advance_watermark(BEGIN_MS + 5)
        snapshot = h.snapshot()
    Harness(app_of(within=("0s", "10m")), start=snapshot).close()
    for options in ({"within": ("0s", "11m")}, {"within": ("0s", "10m"), "how": "left"}):
        with pytest.raises(tr.TailraceError, match="join: inner, from 0ms to 10m"):
            Harness(app_of(**options), start=snapshot)


def test_only_streams_that_form_a_circle_have_a_limit_of_deliveries() -> None:
    app = tr.App("circle", partitions=1)
    a, again = app.topic("a", A), app.stream("again", A, key_type=str)

    @app.process(a)
    def begin(event: A, ctx: tr.Context[str]) -> None:
        ctx.emit(again, event)

    @app.process(again)
    def repeat(event: A, ctx: tr.Context[str]) -> None:
        ctx.emit(again, event)

    with Harness(app) as h, pytest.raises(tr.TailraceError, match="more than 1000 deliveries"):
        h.send(a, A("k", BEGIN_MS, 1))
