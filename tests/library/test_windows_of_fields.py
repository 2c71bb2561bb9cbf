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
    fields: dict[str, Any], results: Callable[[str, Any, Sum, Any, Any], None], out_of_order: int = 0
) -> tr.App:
    """An app with these fields of windows: events go to the first, results to a function."""
    app = tr.App("fields", partitions=1)
    events, given = app.topic("events", Event, out_of_order=out_of_order), app.topic("given", Given)
    body: dict[str, Any] = {
        "__module__": __name__,
        "__annotations__": dict.fromkeys(fields, tr.Windows),
        **fields,
    }

    def take(self: Any, event: Event, ctx: tr.Context[str]) -> None:
        getattr(self, next(iter(fields))).add(event)

    def method(name: str) -> Any:
        def result(self: Any, one: Any, ctx: Any) -> None:
            results(name, self, one, ctx, given)

        return tr.on_window(fields[name])(result)

    body |= {"take": tr.process(events)(take), **{f"of_{name}": method(name) for name in fields}}
    meta: Any = type(tr.Actor)
    app.actor(emits=(given,))(meta("Fields", (tr.Actor,), body))
    return app


def chained(first: str, second: str) -> tr.App:
    def results(name: str, actor: Any, one: Sum, ctx: Any, given: Any) -> None:
        if name == first:
            getattr(actor, second).add(one)
        else:
            ctx.emit(given, Given(ctx.key, one.start, one.value))

    total = agg.total(value_of)
    fields: dict[str, Any] = {
        first: tr.windowed(windows.tumbling(10), total),
        second: tr.windowed(windows.tumbling(50), agg.total(value_of)),
    }
    return app_of(fields, results, out_of_order=20)


def test_a_window_of_results_has_that_of_its_last_instant(seeds: range) -> None:
    for seed in seeds[:20]:
        random, app = Random(seed), chained("a_hours", "days")
        events = [
            Event(random.choice("ab"), n + random.randrange(20), random.randrange(9)) for n in range(200)
        ]
        expected: dict[tuple[str, int], int] = {}
        for one in events:
            start = one.at // 50 * 50
            expected[one.key, start] = expected.get((one.key, start), 0) + one.value
        with Harness(app, checked=seed % 2 == 0) as h:
            for at in range(0, 200, 20):
                h.send(app.topics["events"], *events[at : at + 20])
                h.run([*random.choices((COMMIT, CRASH, RELOAD), k=1)])
            h.end_of_input()
            found: list[Given] = h.emitted(app.topics["given"])
            assert sorted((one.key, one.start, one.value) for one in found) == sorted(
                (*place, value) for place, value in expected.items()
            )


def test_a_window_of_results_that_would_close_before_the_last_of_them_is_refused() -> None:
    app = chained("hours", "days")
    with Harness(app) as h, pytest.raises(tr.HandlerError, match="rename 'days' to what sorts after 'hours'"):
        h.send(app.topics["events"], *(Event("a", at) for at in range(60)))


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
