"""An app whose operators are ordered is rebuilt in rounds: it comes to what one run over all partitions comes to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.rounds import whole_because
from tailrace.core.engine.task import ORIGIN_HEADER
from tailrace.core.records import Output
from tailrace.history.rebuilding import canonical_targets, canonical_unit
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine, OnProgress
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.output_files import read_outputs
from tailrace.history.rebuilding.planning import plan_rebuild
from tailrace.history.rebuilding.results import UnitResult
from tailrace.state.snapshots import Place, Snapshot
from tests.cast.webs import Piece, Result, oracle, records
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import TaskState, done, rebuilt
from tests.history.rebuilding.random_rounds import drawn
from tests.proof.seeds import each

FAR_MS = 10_000_000
DEEP = 25
"""The seed of an app of three rounds, with messages, a repartitioned topic and three partitions."""


def app_of(seed: int) -> str:
    return f"tests.history.rebuilding.random_rounds:app_{seed}"


def fed(folder: Path, seed: int) -> None:
    web, events = drawn(seed)
    topics = dict.fromkeys(
        sorted({*web.sources, *(t for n in web.nodes for t in (*n.topics, *n.targets)), "results"}),
        web.partitions,
    )
    lived.append(folder, sorted(records(web, events), key=lambda one: one.timestamp_ms), topics)


def emitted(folder: Path, snapshot: Snapshot) -> list[tuple[int, Output]]:
    """The outputs by partition, without their numbers."""
    found: list[tuple[int, Output]] = []
    for file in sorted((folder / "outputs" / "proof" / snapshot.manifest.id).glob("*.parquet")):
        for _, one in read_outputs(Place.at(str(file))):
            headers = tuple(pair for pair in one.headers if pair[0] != ORIGIN_HEADER)
            found.append((int(file.name.split("-")[1]), one._replace(headers=headers)))
    return found


def plain(cut: bytes) -> Any:
    """A cut without what may differ: the identity, the clock, and the offsets of what was sent and waits."""
    found = tape.decode_cut(cut)
    found.identity, found.now = b"", 0
    for one in found.ordered.values():
        one.lows = {name: (0, count, 0) for name, (_, count, _) in one.lows.items()}
    return found


def assert_same(one: tape.Cut, other: tape.Cut) -> None:
    for name in tape.Cut.__struct_fields__:
        assert getattr(one, name) == getattr(other, name), name


@pytest.mark.one_seed_in(25)
def test_random_apps_come_to_what_one_run_comes_to_and_to_what_an_oracle_says(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = Counter[bool]()
    # The seeds of timers depend on the offsets of what was sent.
    monkeypatch.setattr("tailrace.core.declare.context_timers.SPREAD", 0)
    monkeypatch.setattr(canonical_unit, "_OUTPUTS_AT_ONCE", 5)  # what is sent is written in several frames

    def check(seed: int, trace: list[str]) -> None:
        web, events = drawn(seed)
        random = Random(seed)
        trace += [str(node) for node in web.nodes]
        folder = tmp_path / str(seed)
        fed(folder, seed)
        as_of = random.choice((None, FAR_MS, random.randint(0, 400_000)))
        options: dict[str, Any] = {
            "order": "canonical",
            "as_of_ms": as_of,
            "outputs": f"parquet:{folder / 'outputs'}",
        }
        report, here = done(folder, app_of(seed), **options)
        with monkeypatch.context() as patched:
            patched.setattr(canonical_targets, "whole_because", lambda _: "asked")
            _, there = done(folder, app_of(seed), name="whole", **options)
        ran["rounds along the graph" in " ".join(report.notes)] += 1
        ours, theirs = rebuilt(here), rebuilt(there)
        assert [one.rows for one in ours] == [one.rows for one in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert_same(plain(one.cut or b""), plain(other.cut or b""))
        made = emitted(folder, here)
        assert Counter(made) == Counter(emitted(folder, there))
        if as_of is not None:
            some = {name: [one for one in few if one.at <= as_of] for name, few in events.items()}
            wanted = Counter({one: n for one, n in oracle(web, some).items() if one.at <= as_of})
            results = [
                msgspec.json.decode(one.value or b"", type=Result)
                for _, one in made
                if one.topic == "results"
            ]
            assert Counter(results) == wanted

    each(seeds, check)
    assert ran[True] >= len(seeds) // 3


class Stopping(LocalEngine):
    """Stops after so many units, as if the driver was killed then."""

    def __init__(self, most: int) -> None:
        super().__init__(1)
        self.most, self.ran = most, list[str]()

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        for one in super().run(units, on_progress):
            self.ran.append(one.unit)
            yield one
            if len(self.ran) == self.most:
                raise KeyboardInterrupt


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[TaskState]]:
    """The history of an app of three rounds with messages, and its state."""
    folder = tmp_path_factory.mktemp("deep")
    fed(folder, DEEP)
    _, snapshot = done(folder, app_of(DEEP), order="canonical", as_of_ms=FAR_MS)
    return folder, rebuilt(snapshot)


def test_a_driver_that_is_stopped_repeats_no_unit(deep: tuple[Path, list[TaskState]]) -> None:
    folder, wanted = deep
    for most in (1, 3, 7, 11, 12):
        asked = lived.request(
            folder, app_of(DEEP), order="canonical", as_of_ms=FAR_MS, name=f"stopped-{most}"
        )
        first = Stopping(most)
        with pytest.raises(KeyboardInterrupt):
            rebuild(asked, first)
        second = Stopping(0)
        report = rebuild(asked, second)
        assert report.resumed
        assert not {*first.ran} & {*second.ran}
        assert len(first.ran + second.ran) == 12, "three rounds and the end, of three partitions"
        assert rebuilt(lived.opened(asked, report)) == wanted


def test_processes_and_keys_change_nothing(deep: tuple[Path, list[TaskState]]) -> None:
    folder, wanted = deep
    options: dict[str, Any] = {"order": "canonical", "as_of_ms": FAR_MS}
    _, other = done(folder, app_of(DEEP), processes=2, name="processes", **options)
    assert rebuilt(other) == wanted
    _, some = done(folder, app_of(DEEP), keys=("k1", "k2"), name="keys", **options)
    kept = [
        [pair for pair in one.rows if rows.read_state_row(pair[0]).key in {b"k1", b"k2"}] for one in wanted
    ]
    assert [one.rows for one in rebuilt(some)] == kept
    assert any(kept)


@pytest.mark.parametrize(
    ("name", "why"), [("s0", "late events are forwarded to proof.s0.by-key"), ("s2", "some events were late")]
)
def test_an_app_with_late_events_falls_back_to_one_unit(tmp_path: Path, name: str, why: str) -> None:
    fed(tmp_path, DEEP)
    late = [(name, Piece(f"k{n}", 0, 1)) for n in range(7)]
    last = [(source, Piece(f"k{n}", FAR_MS, 1)) for source in drawn(DEEP).web.sources for n in range(7)]
    some = [Output(to, one.key.encode(), msgspec.json.encode(one), FAR_MS) for to, one in (*late, *last)]
    lived.append(tmp_path, some, {})
    report, here = done(tmp_path, app_of(DEEP), order="canonical")
    assert f"all partitions were run as one: {why}" in str(report.notes)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(canonical_targets, "whole_because", lambda _: "asked")
        _, there = done(tmp_path, app_of(DEEP), order="canonical", name="whole")
    assert [one.rows for one in rebuilt(here)] == [one.rows for one in rebuilt(there)]


def test_the_plan_shows_the_rounds(deep: tuple[Path, list[TaskState]]) -> None:
    folder, _ = deep
    plan = plan_rebuild(lived.request(folder, app_of(DEEP), order="canonical"))
    assert plan.rounds == 3
    assert [one.partition for one in plan.units] == [0, 1, 2]
    assert any(re.search(r"partition 0, in 3 rounds: about \d+ record", line) for line in plan.lines())


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


class Told(msgspec.Struct, frozen=True):
    n: int


def small(*, order: Any = "event-time", back: bool = False) -> tr.App:
    app = tr.App("small", partitions=2)
    events = app.topic("events", Event, key="key", event_time="at")
    more = app.topic("more", Event, key="key", event_time="at")

    @app.actor
    class First(tr.Actor, order="event-time"):
        @tr.process(events)
        def one(self, event: Event, ctx: tr.Context[str]) -> None:
            ctx.send(Second, event.key, Told(1))

        if back:

            @tr.on_message
            def heard(self, message: Told, ctx: tr.Context[str]) -> None: ...

    @app.actor(emits=[First] if back else [])
    class Second(tr.Actor, order=order):
        @tr.process(more)
        def two(self, event: Event, ctx: tr.Context[str]) -> None: ...

        @tr.on_message
        def told(self, message: Told, ctx: tr.Context[str]) -> None: ...

    return app


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, ""),
        ({"order": "arrival"}, 'Second handles events on arrival (order="arrival")'),
        ({"back": True}, "First and Second send to each other in a circle"),
    ],
)
def test_what_depends_on_more_than_the_set_of_events_is_run_in_one_unit(
    given: dict[str, Any], why: str
) -> None:
    assert whole_because(small(**given).plan()) == why


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
    made = dict[str, list[int]]()
    for task in rebuilt(found):
        for row, value in task.rows:
            parts = rows.read_state_row(row)
            fields = msgspec.msgpack.decode(value[rows.start_of_fields(value) :])
            made[parts.key.decode()] = fields["times"]
    assert made == wanted
