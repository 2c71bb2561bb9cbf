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
