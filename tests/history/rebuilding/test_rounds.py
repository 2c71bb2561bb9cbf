"""An app whose operators are ordered is rebuilt in rounds: it comes to what one run over all partitions comes to."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.rounds import whole_because
from tailrace.core.records import Output
from tailrace.history.rebuilding import canonical_targets, canonical_unit
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.planning import plan_rebuild
from tests.cast.webs import Piece
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import TaskState, done, rebuilt
from tests.history.rebuilding.planted import FAR_MS, app_of, drawn, fed
from tests.history.rebuilding.struck_engines import Stopping

DEEP, KEYED = 333, 281
"""Seeds of apps of three rounds and three partitions: with messages, and with a topic that is keyed again."""


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[TaskState]]:
    """The history of an app of three rounds with messages, and its state."""
    folder = tmp_path_factory.mktemp("deep")
    fed(folder, DEEP)
    _, snapshot = done(folder, app_of(DEEP, "b"), order="canonical", as_of_ms=FAR_MS)
    return folder, rebuilt(snapshot)


def test_a_driver_that_is_stopped_repeats_no_unit(deep: tuple[Path, list[TaskState]]) -> None:
    folder, wanted = deep
    for most in (1, 3, 7, 11, 12):
        asked = lived.request(
            folder, app_of(DEEP, "b"), order="canonical", as_of_ms=FAR_MS, name=f"stopped-{most}"
        )
        first = Stopping(most)
        with pytest.raises(InterruptedError):
            rebuild(asked, first)
        second = Stopping(0)
        report = rebuild(asked, second)
        assert report.resumed
        assert not {*first.ran} & {*second.ran}
        assert len(first.ran + second.ran) == 12, "three rounds and the end, of three partitions"
        assert rebuilt(lived.opened(asked, report)) == wanted


@pytest.mark.parametrize(
    ("name", "why"), [("s2", "late events are forwarded to proof.s2.by-key"), ("s0", "some events were late")]
)
def test_an_app_with_late_events_falls_back_to_one_unit(tmp_path: Path, name: str, why: str) -> None:
    fed(tmp_path, KEYED)
    late = [(name, Piece(f"k{n}", 0, 1)) for n in range(7)]
    last = [(to, Piece(f"k{n}", FAR_MS + 20, 1)) for to in drawn(KEYED).web.sources for n in range(7)]
    some = [Output(to, one.key.encode(), msgspec.json.encode(one), FAR_MS) for to, one in (*late, *last)]
    lived.append(tmp_path, some, {})
    report, here = done(tmp_path, app_of(KEYED, "b"), order="canonical")
    assert f"all partitions were run as one: {why}" in str(report.notes)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(canonical_targets, "whole_because", lambda _: "asked")
        _, there = done(tmp_path, app_of(KEYED, "b"), order="canonical", name="whole")
    assert [one.rows for one in rebuilt(here)] == [one.rows for one in rebuilt(there)]


def test_the_plan_shows_the_rounds(deep: tuple[Path, list[TaskState]]) -> None:
    folder, _ = deep
    plan = plan_rebuild(lived.request(folder, app_of(DEEP, "b"), order="canonical"))
    assert plan.rounds == 3
    assert [one.partition for one in plan.units] == [0, 1, 2]
    assert any(re.search(r"partition 0, in 3 rounds: about \d+ record", line) for line in plan.lines())


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


class Told(msgspec.Struct, frozen=True):
    n: int


def test_operators_that_send_to_each_other_in_a_circle_are_run_in_one_unit() -> None:
    app = tr.App("small", partitions=2)
    events = app.topic("events", Event, key="key", event_time="at")

    @app.actor(emits=["Second"])
    class First(tr.Actor, order="event-time"):
        @tr.process(events)
        def one(self, event: Event, ctx: tr.Context[str]) -> None:
            ctx.send(Second, event.key, Told(1))

        @tr.on_message
        def heard(self, message: Told, ctx: tr.Context[str]) -> None: ...

    @app.actor(emits=[First])
    class Second(tr.Actor, order="event-time"):
        @tr.on_message
        def told(self, message: Told, ctx: tr.Context[str]) -> None: ...

    assert whole_because(app.plan()) == "First and Second send to each other in a circle"


def _ahead() -> tr.App:
    """An app that writes events for later."""
    app = tr.App("ahead", partitions=2)
    events = app.topic("events", Event, key="key", event_time="at", out_of_order=40)
    more = app.topic("more", Event, key="key", event_time="at", out_of_order=100)

    @app.actor
    class First(tr.Actor, order="event-time"):
        @tr.process(events)
        def one(self, event: Event, ctx: tr.Context[str]) -> None:
            ctx.emit(more, later_of(event))

    @app.actor
    class Second(tr.Actor, order="event-time"):
        times: list[int] = tr.field(default_factory=list)

        @tr.process(more)
        def two(self, event: Event, ctx: tr.Context[str]) -> None:
            self.times.append(event.at)

    return app


def later_of(event: Event) -> Event:
    return Event(f"k{event.at % 3}", event.at + event.at % 90)


ahead = _ahead()


def test_what_a_round_sends_for_later_is_read_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is written in many frames."""
    monkeypatch.setattr(canonical_unit, "_OUTPUTS_AT_ONCE", 20)
    random = Random(1)
    events = [Event(f"k{n % 7}", 1_000 + 5 * n - random.randrange(40)) for n in range(400)]
    some = [Output("events", one.key.encode(), msgspec.json.encode(one), one.at) for one in events]
    lived.append(tmp_path, some, {"events": 2, "more": 2})
    report, found = done(tmp_path, f"{__name__}:ahead", order="canonical", as_of_ms=FAR_MS)
    assert "in 2 rounds along the graph" in str(report.notes)
    wanted: dict[str, list[int]] = {}
    for one in sorted(map(later_of, events), key=lambda one: one.at):
        wanted.setdefault(one.key, []).append(one.at)
    assert {key: one["times"] for (_, key), one in lived.fields(rebuilt(found)).items()} == wanted
