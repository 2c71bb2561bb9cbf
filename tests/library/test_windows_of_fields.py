"""Fields of windows whose results are taken further: added to another field, or a reason to clear the key."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.testing import COMMIT, CRASH, RELOAD, Harness
from tests.library import oracle_windows as oracle


class Event(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    value: int = 1


class Given(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    start: int
    value: int
    kind: str = "final"


Sum = tr.Windowed[str, int]


def value_of(one: Event | Sum) -> int:
    return one.value


def app_of(
    fields: dict[str, Any],
    results: Callable[[str, Any, Sum, Any, Any], None],
    out_of_order: int = 0,
    order: str = "arrival",
    to: str = "",
    ticks: bool = False,
) -> tr.App:
    """An app with these fields of windows: events go to one of them (default: the first), results to a function.

    With ``ticks``, an event with the value 8 sets a timer at the end of its twenty milliseconds, which adds one.
    """
    app = tr.App("fields", partitions=1)
    events, given = app.topic("events", Event, out_of_order=out_of_order), app.topic("given", Given)
    body: dict[str, Any] = {
        "__module__": __name__,
        "__annotations__": dict.fromkeys(fields, tr.Windows),
        **fields,
    }

    def take(self: Any, event: Event, ctx: tr.Context[str]) -> None:
        getattr(self, to or next(iter(fields))).add(event)
        if ticks and event.value == 8:
            ctx.set_timer(event.at // 20 * 20 + 19, f"tick:{event.at}")

    def tick(self: Any, ctx: tr.Context[str]) -> None:
        getattr(self, next(iter(fields))).add(Event(ctx.key, ctx.event_time))

    def method(name: str) -> Any:
        def result(self: Any, one: Any, ctx: Any) -> None:
            results(name, self, one, ctx, given)

        return tr.on_window(fields[name])(result)

    body |= {"take": tr.process(events)(take), "tick": tr.on_timer("tick")(tick)}
    body |= {**{f"of_{name}": method(name) for name in fields}}
    meta: Any = type(tr.Actor)
    app.actor(emits=(given,))(meta("Fields", (tr.Actor,), body, order=order))
    return app


def chained(names: list[str], kinds: list[Any], order: str = "arrival", **options: Any) -> tr.App:
    """Fields of windows, each of which takes the results of all fields before it. The last one gives its own."""

    def results(name: str, actor: Any, one: Sum, ctx: Any, given: Any) -> None:
        for later in names[names.index(name) + 1 :]:
            getattr(actor, later).add(one)
        if name == names[-1]:
            ctx.emit(given, Given(ctx.key, one.start, one.value))

    made: dict[str, Any] = {
        name: tr.windowed(which, agg.total(value_of), **options)
        for name, which in zip(names, kinds, strict=True)
    }
    return app_of(made, results, out_of_order=400, order=order, ticks=True)


KINDS: list[tuple[Any, Callable[[list[oracle.Arrival]], list[oracle.Result]], int]] = [
    (windows.tumbling(10), lambda all_: oracle.spans(all_, oracle.tumbling(10), total_of).results, -1),
    (windows.tumbling(50), lambda all_: oracle.spans(all_, oracle.tumbling(50), total_of).results, -1),
    (
        windows.sliding(60, every=20),
        lambda all_: oracle.spans(all_, oracle.sliding(60, 20), total_of).results,
        -1,
    ),
    (windows.sessions(10), lambda all_: oracle.sessions(all_, 10, total_of).results, 10),
]


def total_of(events: list[tuple[int, Any]]) -> int:
    return sum(value for _, value in events)


def expected_of(events: list[Event], stages: list[int]) -> list[tuple[str, int, int]]:
    """What the last of these stages gives, each of which takes the results of all before it."""
    found: list[tuple[str, int, int]] = []
    for key in {one.key for one in events}:
        taken = [[(one.at, one.value) for one in events if one.key == key]]
        ticking = {one.at for one in events if one.key == key and one.value == 8}
        taken[0] += [(at // 20 * 20 + 19, 1) for at in ticking]
        last: list[oracle.Result] = []
        for number in stages:
            _, results_of, after = KINDS[number]
            some = sorted(one for results in (taken if len(taken) == 1 else taken[1:]) for one in results)
            last = results_of([oracle.Arrival(-1, at, value) for at, value in some])
            taken.append([(end + after, value) for _, end, value, _ in last])
        found += [(key, start, value) for start, _, value, _ in last]
    return found


@pytest.mark.one_seed_in(5)
def test_fields_close_in_the_order_of_declaration(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        stages = [random.randrange(4) for _ in range(random.choice([2, 3, 4]))]
        names = random.sample(["a", "b", "hours", "days", "z", "été", "日"], len(stages))
        options: dict[str, Any] = random.choice([{}, {"lateness": 60}])
        app = chained(
            names, [KINDS[one][0] for one in stages], random.choice(["arrival", "event-time"]), **options
        )
        events = [
            Event(
                random.choice("ab"),
                max(0, 3 * n - random.randrange(random.choice([1, 390]))),
                random.randrange(9),
            )
            for n in range(200)
        ]
        with Harness(app, checked=seed % 2 == 0) as h:
            for at in range(0, 200, 20):
                h.send(app.topics["events"], *events[at : at + 20])
                h.run([*random.choices((COMMIT, CRASH, RELOAD), k=1)])
            h.end_of_input()
            found: list[Given] = h.emitted(app.topics["given"])
            assert sorted((one.key, one.start, one.value) for one in found) == sorted(
                expected_of(events, stages)
            )
            actor: Any = app.actors["Fields"]
            assert h.keys(actor) == []
            h.replay()


def test_a_field_that_takes_the_results_of_a_later_one_is_refused_each_time() -> None:
    def results(name: str, actor: Any, one: Sum, ctx: Any, given: Any) -> None:
        if name == "hours":
            actor.days.add(one)

    def field(size: int) -> Any:
        return tr.windowed(windows.tumbling(size), agg.total(value_of))

    app = app_of({"days": field(50), "hours": field(10)}, results, to="hours")
    app.on_error = "dead-letter-all"
    with Harness(app) as h:
        h.send(app.topics["events"], *(Event("a", at) for at in range(60)))
        refused = h.dead_letters()
        assert len(refused) == 5
        assert all("Declare 'days' after 'hours'" in str(one) for one in refused)


@pytest.mark.parametrize("name", [None, "~tick", "ﬁn"])
def test_a_timer_that_fires_behind_windows_adds_nothing(name: str | None) -> None:
    app = tr.App("fields", partitions=1)
    events = app.topic("events", Event)

    @app.actor
    class Behind(tr.Actor):
        hours: tr.Windows[Event, int] = tr.windowed(windows.tumbling(10), agg.count())

        @tr.process(events)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            ctx.set_timer(9, name)

        @(tr.on_timer if name is None else tr.on_timer(name))
        def tick(self, ctx: tr.Context[str]) -> None:
            self.hours.add(Event(ctx.key, ctx.event_time))

    with Harness(app) as h, pytest.raises(tr.HandlerError, match="Give the timer a name in ASCII"):
        h.send(events, Event("a", 1), Event("a", 100))


@pytest.mark.parametrize("options", [{"lateness": 50}, {"early": 2}])
@pytest.mark.parametrize("is_field", [False, True])
def test_early_results_and_corrections_are_not_added_to_a_field(is_field: bool, options: Any) -> None:
    def results(name: str, actor: Any, one: Sum, ctx: Any, given: Any) -> None:
        if name == "hours" and (one.kind == "final" or ctx.key == "a"):
            actor.days.add(one)

    def field(size: int, **options: Any) -> Any:
        return tr.windowed(windows.tumbling(size), agg.total(value_of), **options)

    app = app_of({"hours": field(10, **options), "days": field(50)}, results)
    events = app.topics["events"]
    if not is_field:
        app = tr.App("fields", partitions=1)
        events = app.topic("events", Event)
        hours = app.window("hours", events, windows.tumbling(10), agg.count(), **options)

        @app.actor
        class Days(tr.Actor):
            days: tr.Windows[int, int] = tr.windowed(windows.tumbling(50), agg.total(lambda n: n))

            @tr.process(hours)
            def take(self, hour: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
                if ctx.key == "a":
                    self.days.add(hour.value)

    with Harness(app) as h:
        h.send(events, Event("b", 1), Event("b", 2), Event("b", 30), Event("b", 3), Event("b", 200))
        with pytest.raises(tr.HandlerError, match=r"final results only: if window\.kind"):
            h.send(events, Event("a", 211), Event("a", 212), Event("a", 230), Event("a", 213))


CLEARED: dict[str, tuple[str, dict[str, Any], list[tuple[int, int, str]]]] = {
    "early": (
        "early",
        {"early": 2},
        [(10, 2, "early"), (20, 1, "final"), (60, 1, "final"), (100, 1, "final")],
    ),
    "by the clock": ("early", {"early_clock": "1s"}, [(0, 1, "early"), (60, 1, "final"), (100, 1, "final")]),
    "filled": ("final", {"fill": 0}, [(0, 1, "final"), (100, 1, "final")]),
    "correction": (
        "correction",
        {"lateness": 20},
        [(0, 1, "final"), (10, 2, "final"), (20, 1, "final"), (10, 3, "correction"), (100, 1, "final")],
    ),
}


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("name", CLEARED)
def test_a_result_that_clears_its_key_clears_all_of_its_windows(name: str, checked: bool) -> None:
    kind, options, expected = CLEARED[name]

    def results(_: str, actor: Any, one: Sum, ctx: Any, given: Any) -> None:
        ctx.emit(given, Given(ctx.key, one.start, one.value, one.kind))
        if one.kind == kind:
            ctx.clear()

    total = agg.total(value_of)
    app = app_of({"sums": tr.windowed(windows.tumbling(10), total, **options)}, results, out_of_order=30)
    events = app.topics["events"]
    with Harness(app, checked=checked) as h:
        h.send(events, Event("a", 1), Event("a", 11), Event("a", 12), Event("a", 21))
        h.advance_clock_by("2s")
        h.crash()
        h.send(events, Event("a", 60))
        h.send(events, Event("a", 15))
        h.send(events, Event("a", 100))
        h.end_of_input()
        found: list[Given] = h.emitted(app.topics["given"])
        assert [(one.start, one.value, one.kind) for one in found] == expected
        actor: Any = app.actors["Fields"]
        assert h.keys(actor) == []
        h.replay()
