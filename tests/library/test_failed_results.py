"""A result that its consumer refuses is lost alone: the other windows and pairs of its key are given as ever."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.testing import COMMIT, CRASH, RELOAD, Harness
from tests.library.oracle_windows import arrivals, sessions, sliding, spans, tumbling


class Event(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    value: int = 1


class Given(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    start: int
    value: int


def refused(start: int) -> bool:
    return start % 3 == 1


def value_of(event: Event) -> int:
    return event.value


def any_(actor: Any) -> Any:
    return actor


KINDS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "tumbling": (windows.tumbling(7), lambda all_: spans(all_, tumbling(7), summed)),
    "sliding": (windows.sliding(9, every=3, offset=1), lambda all_: spans(all_, sliding(9, 3, 1), summed)),
    "sessions": (windows.sessions(3), lambda all_: sessions(all_, 3, summed)),
}


def summed(events: list[tuple[int, Any]]) -> int:
    return sum(event.value for _, event in events)


def make_app(how: str, kind: str) -> tr.App:
    app = tr.App("failing", partitions=1, on_error="dead-letter")
    events, given = app.topic("events", Event, out_of_order=5), app.topic("given", Given)
    total = agg.total(value_of)

    def publish(one: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
        ctx.emit(given, Given(ctx.key, one.start, one.value))
        if refused(one.start):
            raise ValueError("not this one")

    if how == "operator":
        app.process(app.window("sums", events, KINDS[kind][0], total), emits=(given,))(publish)
        return app

    @app.actor(emits=(given,))
    class Sums(tr.Actor):
        sums: tr.Windows[Event, int] = tr.windowed(KINDS[kind][0], total)

        @tr.process(events)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.sums.add(event)

        @tr.on_window(sums)
        def close(self, one: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
            publish(one, ctx)

    return app


@pytest.mark.parametrize("how", ["operator", "field"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.one_seed_in(50)
def test_a_window_whose_result_is_refused_is_lost_alone(how: str, kind: str, seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        app = make_app(how, kind)
        history = [
            Event(random.choice("ab"), n + random.randrange(8), random.randrange(9))
            for n in range(0, 150, random.choice((1, 4)))
        ]
        expected = {
            (key, start, value)
            for key, all_ in arrivals(((one.key, one.at, one) for one in history), 5).items()
            for start, _, value, _ in KINDS[kind][1](all_).results
            if not refused(start)
        }
        with Harness(app, checked=seed % 4 == 0, commit_every=random.choice((None, 1, 7))) as h:
            items: list[Any] = []
            for one in history:
                items += [
                    (app.topics["events"], one),
                    *random.choices((COMMIT, CRASH, RELOAD), k=random.random() < 0.1),
                ]
            h.run(items)
            h.end_of_input()
            found: list[Given] = h.emitted(app.topics["given"])
            assert {(one.key, one.start, one.value) for one in found} == expected, seed
            assert len(found) == len(expected)
            assert h.keys(any_(*app.actors.values())) == []
            assert not h.replay().differences.count
            h.dead_letters()  # of the refused results, if there are some


def test_an_early_result_by_the_clock_that_is_refused_is_not_the_last() -> None:
    app = tr.App("failing", partitions=1, on_error="dead-letter")
    events, given = app.topic("events", Event), app.topic("given", Given)
    counts = app.window("counts", events, windows.global_(), agg.count(), early_clock="1s")

    @app.process(counts)
    def publish(one: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
        if one.value == 1:
            raise ValueError("not this one")
        ctx.emit(given, Given(ctx.key, one.start, one.value))

    with Harness(app) as h:
        for at in range(3):
            h.send(events, Event("a", at))
            h.advance_clock_by("2s")
        assert h.emitted(given) == [Given("a", 0, 2), Given("a", 0, 3)]
        assert not h.replay().differences.count
        assert h.dead_letters()


class Left(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]


@pytest.mark.parametrize("checked", [True, False])
def test_an_event_without_a_match_whose_result_is_refused_is_lost_alone(checked: bool) -> None:
    app = tr.App("failing", partitions=1, on_error="dead-letter")
    lefts, rights = app.topic("lefts", Left), app.topic("rights", Event)
    given = app.topic("given", Given)

    @app.process(app.join("j", lefts, rights, within=("0s", "10s"), how="left"))
    def publish(one: tr.Pair[Left, Event | None], ctx: tr.Context[str]) -> None:
        if one.right is None and refused(one.left.at // 1_000):
            raise ValueError("not this one")
        ctx.emit(given, Given(ctx.key, one.left.at, 0 if one.right is None else one.right.at))

    with Harness(app, checked=checked) as h:
        h.send(lefts, *(Left("a", at) for at in range(0, 60_000, 1_000)))
        h.crash()
        h.send(rights, Event("a", 30_500))
        h.end_of_input()
        matched = dict.fromkeys(range(21_000, 31_000, 1_000), 30_500)
        assert sorted((one.start, one.value) for one in h.emitted(given)) == [
            (at, matched.get(at, 0))
            for at in range(0, 60_000, 1_000)
            if at in matched or not refused(at // 1_000)
        ]
        assert h.keys(any_(app.actors["j"])) == []
        assert not h.replay().differences.count
        assert h.dead_letters()


@pytest.mark.parametrize("how", ["operator", "field"])
@pytest.mark.parametrize("many", [5, 600])
def test_an_early_result_by_the_clock_that_is_refused_is_lost_alone(how: str, many: int) -> None:
    app = tr.App("failing", partitions=1, on_error="dead-letter")
    events, given = app.topic("events", Event, out_of_order=100_000), app.topic("given", Given)

    def publish(one: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
        if one.kind == "early":
            ctx.emit(given, Given(ctx.key, one.start, one.value))
            if refused(one.start):
                raise ValueError("not this one")

    ten, count = windows.tumbling(10), agg.count()
    if how == "operator":
        app.process(app.window("counts", events, ten, count, early_clock="1s"), emits=(given,))(publish)
    else:

        @app.actor(emits=(given,))
        class Counts(tr.Actor):
            counts: tr.Windows[Event, int] = tr.windowed(ten, count, early_clock="1s")

            @tr.process(events)
            def take(self, event: Event, ctx: tr.Context[str]) -> None:
                self.counts.add(event)

            @tr.on_window(counts)
            def close(self, one: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
                publish(one, ctx)

    with Harness(app, checked=False, commit_every=7) as h:
        h.send(events, *(Event("a", at) for at in range(0, many * 10, 10)))
        h.advance_clock_by("2s")
        one_by_one = [start for start in range(0, many * 10, 10) if not refused(start)]
        assert [one.start for one in h.emitted(given)] == (one_by_one if many < 500 else [])
        h.send(events, Event("a", 3))
        h.advance_clock_by("2s")
        assert h.emitted(given)[-1] == Given("a", 0, 2)
        assert h.dead_letters()
        assert not h.replay().differences.count


@pytest.mark.parametrize("kind", ["window", "join", "gather", "window join", "asof"])
def test_a_key_whose_only_result_is_refused_keeps_nothing(kind: str) -> None:
    app: Any = tr.App("failing", partitions=1, on_error="dead-letter")
    lefts, rights = app.topic("lefts", Left), app.topic("rights", Event)
    made: dict[str, Callable[[], Any]] = {
        "window": lambda: app.window("j", lefts, windows.tumbling(10), agg.count()),
        "join": lambda: app.join("j", lefts, rights, within=(0, 5), how="left"),
        "gather": lambda: app.gather("j", lefts, rights, within=10),
        "window join": lambda: app.window_join("j", lefts, rights, windows.tumbling(10), how="full"),
        "asof": lambda: app.asof("j", lefts, rights, keep=5),
    }
    taken: list[int] = []

    def publish(one: Any, ctx: tr.Context[str]) -> None:
        if ctx.event_time < 50:
            raise ValueError("not this one")
        taken.append(ctx.event_time)

    publish.__annotations__ = {}
    app.process(made[kind](), emits=())(publish)
    with Harness(app) as h:
        h.send(lefts, Left("a", 1), Left("b", 2), Left("other", 100))
        if kind != "window":
            h.send(rights, Event("other", 100))
        h.advance_watermark(99)
        assert h.keys(app.actors["j"]) == [] or set(h.keys(app.actors["j"])) == {"other"}
        h.send(lefts, Left("a", 101))  # it begins again
        h.end_of_input()
        assert h.keys(app.actors["j"]) == []
        assert len(h.dead_letters()) == 2
        assert taken
        assert not h.replay().differences.count


class Person(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    user: int


def user_of(one: Person) -> int:
    return one.user


@pytest.mark.parametrize("on_error", ["dead-letter", "dead-letter-all"])
@pytest.mark.parametrize("how", ["operator", "field"])
def test_a_sliding_window_that_cannot_be_merged_is_lost_alone(on_error: Any, how: str) -> None:
    app = tr.App("failing", partitions=1, on_error=on_error)
    people, given = app.topic("people", Person), app.topic("given", Given)
    which = windows.sliding(20, every=10)
    distinct: Any = agg.distinct(user_of, limit=3)
    if how == "operator":
        app.window("j", people, which, distinct, into=given)
    else:
        held: Any = tr.windowed(which, distinct)

        @app.actor(name="j")
        class People(tr.Actor):
            users: tr.Windows[Person, int] = held

            @tr.process(people)
            def take(self, event: Person, ctx: tr.Context[str]) -> None:
                self.users.add(event)

            @tr.on_window(held)
            def close(self, one: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
                ctx.emit(given, Given(ctx.key, one.start, one.value))

    cls: Any = app.actors["j"]
    with Harness(app) as h:
        # The slices from 0 and 10 have three users each; the window from 0 has both.
        h.send(
            people,
            *(Person("k", 1 + n, n) for n in range(3)),
            *(Person("k", 11 + n, 10 + n) for n in range(3)),
        )
        if how == "operator":
            assert cls.opened(h.state(cls, "k"), 12) == {"windows": 2}
        h.send(people, Person("other", 60, 1))
        h.end_of_input()
        found = [(one.start, one.value) for one in h.emitted(given) if one.key == "k"]
        assert found == [(-10, 3), (10, 3)]
        assert len(h.dead_letters()) == 1
        assert h.keys(cls) == []
        assert not h.replay().differences.count


@pytest.mark.parametrize("many", [5, 100])
def test_no_event_fails_for_a_block_of_slices_that_cannot_be_merged(many: int) -> None:
    app = tr.App("failing", partitions=1, on_error="dead-letter")
    people, given = app.topic("people", Person), app.topic("given", Given)
    app.window("w", people, windows.sliding(490, every=10), agg.distinct(user_of, limit=many), into=given)
    history = [Person("k", 10 * n, n % 7 if n < 10 else n // 60) for n in range(250)]
    wanted, lost = dict[int, int](), 0
    for start in range(-480, 2_500, 10):
        users = {one.user for one in history if start <= one.at < start + 490}
        if len(users) <= many:
            wanted[start] = len(users)
        else:
            lost += 1
    with Harness(app) as h:
        for one in history:
            h.send(people, one)
        h.end_of_input()
        assert {one.start: one.value for one in h.emitted(given)} == wanted
        assert len(h.dead_letters()) == lost
        assert (lost > 0) == (many == 5)
        assert not h.replay().differences.count
