"""What is refused by how operators are connected: results that would count again, and an order that they cannot have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.core.errors import DefinitionError
from tests.library.test_refused import Declared, Event, Other, Result, id_of, number_of


def passed_on(d: Declared, name: str, edge: Any, way: str) -> Any:
    """An edge with the events of another."""
    if way == "sample":
        return d.app.sample(name, edge, by="key", fraction=1)
    if way == "dedupe":
        return d.app.dedupe(name, edge, within="1h", by="key")
    if way == "limit":
        return d.app.limit(name, edge, 9, per="1h")
    if way in ("rest", "late"):
        topic = d.app.topic(name, edge.type, key="key", key_type=str)
        d.app.limit(f"{name}-limit", edge, 9, per="1h", **{way: topic})
        return topic
    if way == "late events of a topic":
        return d.app.topics[f"{edge.name}-late"]
    if way == "lookup into":
        topic = d.app.topic(name, Result, key="key")
        return d.app.lookup(f"{name}-lookup", edge, d.shared, by="key", into=topic)
    assert way == "lookup"
    return d.app.lookup(name, edge, d.shared, by=lambda one: "x")


ADDING: dict[str, Callable[[Declared, Any], Any]] = {
    "window": lambda d, edge: d.over(edge),
    "sessions": lambda d, edge: d.app.window("o", edge, windows.sessions(9), agg.count()),
    "top": lambda d, edge: d.app.top("o", edge, 1, by=id_of, of=number_of),
    "join": lambda d, edge: d.join(d.a, edge),
    "window join": lambda d, edge: d.app.window_join("o", d.a, edge, windows.tumbling(9)),
    "asof": lambda d, edge: d.app.asof("o", d.a, edge, keep=9),
    "gather": lambda d, edge: d.app.gather("o", d.a, edge, within=9),
}
WAYS = ("sample", "dedupe", "limit", "rest", "late", "lookup", "lookup into", "late events of a topic")


@pytest.mark.parametrize("name", ADDING)
@pytest.mark.parametrize("is_first", [True, False])
def test_results_do_not_count_again_whatever_was_declared_first(name: str, is_first: bool) -> None:
    declared = Declared()
    hours = declared.app.topic("hours", Result, key="key")

    def write() -> None:
        declared.app.window("hourly", declared.a, windows.tumbling(9), agg.count(), early=2, into=hours)

    def declare() -> None:
        declared.app.plan() if is_first else write()
        ADDING[name](declared, hours)
        write() if is_first else None
        declared.app.plan()

    with pytest.raises(DefinitionError, match="'hours', which has early results: they would count again"):
        declare()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ADDING)
def test_results_do_not_count_again_behind_operators_that_pass_them_on(name: str, way: str) -> None:
    for lateness in ({}, {"lateness": 5}):
        declared = Declared()
        late = declared.app.topic("hours-late", Result, key="key")
        hours = declared.app.topic(
            "hours", Result, key="key", **({"late": late} if way.startswith("late ") else {})
        )
        ADDING[name](declared, passed_on(declared, "p", hours, way))
        declared.app.window("hourly", declared.a, windows.tumbling(9), agg.count(), into=hours, **lateness)
        if lateness:
            with pytest.raises(DefinitionError, match=r"which has corrections: they would count again"):
                declared.app.plan()
        else:
            declared.app.plan()


def test_values_of_a_table_that_are_passed_on_do_not_count_again() -> None:
    declared = Declared()
    few = declared.app.sample("few", declared.latest, by="id", fraction=0.5)
    with pytest.raises(DefinitionError, match="'few', which has new values of the table 'latest'"):
        declared.over(few)


def test_operators_that_write_to_the_topics_of_each_other_are_no_end() -> None:
    declared = Declared()
    one, other = (declared.app.topic(name, Result, key="key") for name in ("one", "other"))
    declared.app.limit("there", one, 1, per="1h", rest=other)
    declared.app.limit("back", other, 1, per="1h", rest=one)
    declared.over(one)
    declared.app.plan()


ORDERED: dict[str, Callable[[Declared, Any], Any]] = {
    "function": lambda d, edge: d.app.process(edge, order="event-time", name="f")(taking),
    "dedupe": lambda d, edge: d.app.dedupe("d", edge, within=9, by="start", order="event-time"),
    "limit": lambda d, edge: d.app.limit("l", edge, 9, per=9, order="event-time"),
    "behind sample": lambda d, edge: d.app.process(
        d.app.sample("s", edge, by="key", fraction=1), order="event-time", name="f"
    )(taking),
}


def taking(one: Any, ctx: Any) -> None: ...


taking.__annotations__ = {}


@pytest.mark.parametrize(
    "windows_of", [windows.tumbling(9), windows.sliding(9, every=3), windows.sessions(9)]
)
@pytest.mark.parametrize("name", ORDERED)
def test_corrections_do_not_go_to_a_handler_in_the_order_of_event_time(name: str, windows_of: Any) -> None:
    def plan(options: dict[str, Any], **more: Any) -> None:
        d = Declared()
        edge = d.app.window("corrected-too", d.a, windows_of, agg.count(), **options, **more)
        ORDERED[name](d, edge)
        d.app.plan()

    plan({})
    with pytest.raises(
        DefinitionError, match="the window 'corrected-too' has corrections, and handlers connected"
    ):
        plan({"lateness": 5})


CIRCLES: dict[str, Callable[[Declared, Any, Any], Any]] = {
    "join": lambda d, edge, order: d.join(edge, d.b),
    "right of a join": lambda d, edge, order: d.join(d.b, edge),
    "window join": lambda d, edge, order: d.app.window_join("o", edge, d.b, windows.tumbling(9)),
    "asof": lambda d, edge, order: d.app.asof("o", edge, d.b, keep=9),
    "gather": lambda d, edge, order: d.app.gather("o", edge, d.b, within=9),
    "at most": lambda d, edge, order: d.app.window("o", edge, windows.sessions(5, at_most=9), agg.count()),
    "collect": lambda d, edge, order: d.app.window("o", edge, windows.tumbling(9), agg.collect(Event)),
    "dedupe": lambda d, edge, order: d.app.dedupe("o", edge, within=9, by="id", order=order),
    "limit": lambda d, edge, order: d.app.limit("o", edge, 9, per=9, order=order),
}


@pytest.mark.parametrize("way", ["topic", "stream", "messages"])
@pytest.mark.parametrize("name", CIRCLES)
def test_what_comes_from_its_own_results_does_not_go_to_an_ordered_operator(name: str, way: str) -> None:
    def app_of(order: Any, *, is_circle: bool) -> Declared:
        d = Declared()
        back: Any = d.app.topic("back", Event)
        edge, receiver = back, None
        if way != "topic":
            edge = d.app.stream("edge", Event, key_type=str)

            class Relay(tr.Actor, order=order):
                @tr.process(back if way == "stream" else d.a)
                def take(self, event: Event, ctx: tr.Context[str]) -> None:
                    ctx.emit(edge, event)

                @tr.on_message
                def hear(self, message: Other, ctx: tr.Context[str]) -> None: ...

            receiver = d.app.actor(emits=(edge,))(Relay)
        results = CIRCLES[name](d, edge, order)
        to = {"topic": back, "stream": back, "messages": receiver}[way]

        def show(result: Any, ctx: tr.Context[str]) -> None: ...

        show.__annotations__ = {}
        d.app.process(results, emits=(to,) if is_circle else ())(show)
        return d

    app_of("event-time", is_circle=False).app.plan()
    what = "messages" if way == "messages" else "'back'"
    said = f"o handles its events in .*, and {what}, which comes from its own|which advances after them: all would wait without end"
    with pytest.raises(DefinitionError, match=said):
        app_of("event-time", is_circle=True).app.plan()
    if name in ("dedupe", "limit"):
        app_of("arrival", is_circle=True).app.plan()
