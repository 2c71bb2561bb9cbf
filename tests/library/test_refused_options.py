"""What the operators of the library refuse: options without an effect, handlers of other types, results that nobody takes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.testing import Harness


class Read(msgspec.Struct, frozen=True):
    sensor: tr.Key[str]
    at: tr.EventTime[int]
    value: int


def declared() -> tuple[tr.App, Any]:
    app = tr.App("refused", partitions=1)
    return app, app.topic("reads", Read)


HOUR = windows.tumbling("1h")


def test_a_misspelt_option_is_refused_and_the_right_one_is_named() -> None:
    app, reads = declared()
    options: dict[str, Any] = {"latenes": "1d"}
    with pytest.raises(tr.DefinitionError, match=r"no option 'latenes'. Did you mean 'lateness'"):
        app.window("w", reads, HOUR, agg.count(), **options)
    with pytest.raises(tr.DefinitionError, match=r"no option 'latenes'. Did you mean 'lateness'"):
        tr.windowed(HOUR, agg.count(), **options)


@pytest.mark.parametrize("name", ["late", "into"])
def test_a_field_has_no_topics(name: str) -> None:
    _, reads = declared()
    options: dict[str, Any] = {name: reads}
    with pytest.raises(tr.DefinitionError, match=rf"no option '{name}'. add returns False"):
        tr.windowed(HOUR, agg.count(), **options)


def test_a_handler_of_results_of_another_type_is_refused() -> None:
    app, reads = declared()
    hourly: Any = app.window("hourly", reads, HOUR, agg.count())

    with pytest.raises(tr.DefinitionError, match=r"'hourly' holds tr.Windowed\[str, int\]"):

        @app.process(hourly)
        def take(window: tr.Windowed[str, list[str]], ctx: tr.Context[str]) -> None: ...


def test_a_handler_of_a_sum_may_name_the_one_type_that_it_has() -> None:
    app, reads = declared()
    hourly: Any = app.window("hourly", reads, HOUR, agg.total(lambda one: one.value))
    values: list[int] = []

    @app.process(hourly)
    def take(window: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
        values.append(window.value)

    with Harness(app) as h:
        h.send(reads, Read("a", 1, 2), Read("a", 2, 3))
        h.end_of_input()
    assert values == [5]


def test_the_results_of_a_field_go_to_a_method_of_their_type() -> None:
    app, reads = declared()
    with pytest.raises(tr.DefinitionError, match=r"Room.hour takes Read, but gets tr.Windowed\[Any, int\]"):

        class Room(tr.Actor):
            hours: tr.Windows[Read, int] = tr.windowed(HOUR, agg.count())

            @tr.process(reads)
            def read(self, event: Read, ctx: tr.Context[str]) -> None:
                self.hours.add(event)

            @tr.on_window(hours)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            def hour(self, window: Read, ctx: tr.Context[str]) -> None: ...

        app.actor(Room)
        app.plan()


def test_the_events_of_a_stream_cannot_be_asked_for() -> None:
    app, reads = declared()
    hourly: Any = app.window("hourly", reads, HOUR, agg.count())
    with (
        Harness(app) as h,
        pytest.raises(tr.UsageError, match=r"'hourly' is a stream, whose events are in no log"),
    ):
        h.emitted(hourly)


def test_what_is_not_there_is_named_as_it_was_given() -> None:
    app, reads = declared()
    with pytest.raises(tr.DefinitionError, match=r"by='id' .* The default is by=\"id\"."):
        app.dedupe("d", reads, within="1h")
    with pytest.raises(tr.DefinitionError, match=r"adds of='sensor', which is str"):
        app.top("t", reads, 3, by="value", of="sensor")
    with pytest.raises(tr.DefinitionError, match=r"looks up in 'reads', which is not a broadcast topic"):
        app.lookup("l", reads, reads, by="sensor")
    with pytest.raises(
        tr.DefinitionError, match=r"lateness=, and collect.* needs its events in the order of event time"
    ):
        app.window("w", reads, HOUR, agg.collect(Read), lateness="1h")
