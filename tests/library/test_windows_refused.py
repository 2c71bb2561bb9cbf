"""Windows: what is refused where it is written, at the start, and while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.core.errors import DefinitionError, IncompatibleStateError
from tailrace.testing import Harness
from tests.library.test_windows_options import Reading, rooms


def window(which: Any, aggregate: Any, **options: Any) -> None:
    app, readings, _ = rooms()
    app.window("w", readings, which, aggregate, **options)


class NoMerge(agg.Aggregate[Reading, int, int]):
    def start(self) -> int:
        return 0

    def add(self, acc: int, event: Reading, time_ms: int) -> int:
        return acc + 1

    def result(self, acc: int) -> int:
        return acc


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: windows.tumbling(0), "zero"),
        (lambda: windows.tumbling("-1h"), "is not a duration"),
        (lambda: windows.tumbling("200000d"), "longer than"),
        (lambda: windows.tumbling("1h", offset="1h"), "not below its size"),
        (lambda: windows.sliding("1h", every="2h"), "longer than its size"),
        (lambda: windows.sliding("1d", every="1s"), "86,400 accumulators"),
        (lambda: windows.sessions(0), "zero"),
        (lambda: windows.sessions("1h", at_most="1m"), "shorter than the gap"),
        (lambda: windows.count(0), "0 events"),
        (lambda: windows.daily(zone="Mars/Base"), "zone='Mars/Base'"),
        (lambda: agg.collect(Reading, limit=0), "limit=0"),
        (lambda: window("1h", agg.count()), "which are no windows"),
        (lambda: window(windows.tumbling(9), len), "which is no aggregate"),
        (lambda: window(windows.tumbling(9), agg.count(), early=0), "early=0"),
        (lambda: window(windows.tumbling(9), agg.count(), early="10s"), "early='10s'"),
        (lambda: window(windows.tumbling(9), agg.count(), lateness=0), "zero"),
        (lambda: window(windows.tumbling(9), agg.collect(Reading), lateness=5), "in the order of event time"),
        (
            lambda: window(windows.sessions(5, at_most=9), agg.count(), lateness=5),
            "in the order of event time",
        ),
        (lambda: window(windows.sliding(9, every=3), agg.count(), early=5), "early results of sliding"),
        (lambda: window(windows.sliding(9, every=3), NoMerge()), "needs to merge"),
        (lambda: window(windows.sessions(9), NoMerge()), "needs to merge"),
        (lambda: window(windows.global_(), agg.count()), "never end"),
        (lambda: window(windows.count(3), agg.count(), lateness=5), "without a time"),
        (lambda: window(windows.sessions(3), agg.count(), fill=0), "fill="),
        (lambda: window(windows.tumbling(3), agg.count(), fill_windows=3), "fill_windows=3"),
        (lambda: window(windows.tumbling(3), agg.count(), fill=0, lateness=4), "fill="),
    ],
)
def test_what_does_not_make_sense_is_refused_where_it_is_written(
    make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(DefinitionError, match=message):
        make()


def test_what_would_count_twice_or_never_is_refused() -> None:
    app, readings, given = rooms()
    early = app.window("early", readings, windows.tumbling(10), agg.count(), early=1)
    with pytest.raises(DefinitionError, match="early results: they would count again"):
        app.window("again", early, windows.tumbling(100), agg.count())
    app.window("corrected", readings, windows.tumbling(10), agg.count(), lateness=5, into=given)
    with pytest.raises(DefinitionError, match="corrections: they would count again"):
        app.window("over-a-topic", given, windows.tumbling(100), agg.count())
    cases: list[tuple[Any, str]] = [(early, "early results"), (given, "corrections")]
    for has_more, what in cases:
        with pytest.raises(DefinitionError, match=f"{what}: they would count again"):
            app.join("pairs", has_more, readings, within="1s")
    dropping = app.topic("dropping", Reading, late="drop")
    with pytest.raises(DefinitionError, match="takes them away"):
        app.window("late", dropping, windows.tumbling(100), agg.count(), lateness=5)
    with pytest.raises(DefinitionError, match="its events are Reading"):
        app.window("late", readings, windows.tumbling(100), agg.count(), late=given)
    averages = app.topic(
        "averages", msgspec.defstruct("Average", [("room", tr.Key[str]), ("celsius", float)])
    )
    with pytest.raises(DefinitionError, match="cannot fill the field 'celsius'"):
        app.window("into", readings, windows.tumbling(100), agg.count(), into=averages)


def test_state_of_another_window_is_not_read() -> None:
    def of(size: int) -> tuple[tr.App, Any]:
        app, readings, _ = rooms()
        app.window("w", readings, windows.tumbling(size), agg.count())
        return app, readings

    app, readings = of(100)
    with Harness(app) as h:
        h.send(readings, Reading("a", 1, 1.0))
        snapshot = h.snapshot()
    with pytest.raises(IncompatibleStateError, match="w"), Harness(of(200)[0], start=snapshot):
        pass


def test_a_global_window_that_counted_for_its_early_results_does_not_begin_with_those_of_the_clock() -> None:
    def of(**early: Any) -> tuple[tr.App, Any]:
        app, readings, _ = rooms()
        app.window("w", readings, windows.global_(), agg.count(), **early)
        return app, readings

    app, readings = of(early=10)
    with Harness(app) as h:
        h.send(readings, Reading("a", 1, 1.0), Reading("a", 2, 1.0))
        snapshot = h.snapshot()
    with Harness(of(early=3)[0], start=snapshot):
        pass
    with (
        pytest.raises(IncompatibleStateError, match="by the clock"),
        Harness(of(early_clock="1s")[0], start=snapshot),
    ):
        pass


def test_an_aggregate_of_another_type_is_an_error_of_the_handler() -> None:
    class Wrong(NoMerge):
        def add(self, acc: int, event: Reading, time_ms: int) -> int:
            return "1"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]  # the mistake

    app, readings, _ = rooms()
    app.window("w", readings, windows.tumbling(100), Wrong())
    with Harness(app, checked=False) as h, pytest.raises(tr.HandlerError, match="not of the declared type"):
        h.send(readings, Reading("a", 1, 1.0))
