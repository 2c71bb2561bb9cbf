"""A rebuild in stages along the graph: resumed, refused, of reference data, and of late events."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.replay import Limits
from tailrace.core.engine.stages import Stages
from tailrace.core.errors import BadRecordError, OffsetGoneError, OptionError, StateUnavailableError
from tailrace.core.records import Output
from tailrace.history.rebuilding import sends, stage_unit
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine, OnProgress
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.planning import plan_rebuild
from tailrace.history.rebuilding.results import UnitResult
from tailrace.log.embedded import EmbeddedLog
from tailrace.state.snapshots import Snapshots
from tests.history.rebuilding import any_app, lived
from tests.history.rebuilding.lived import TaskState, done, rebuilt
from tests.history.rebuilding.planted import FAR_MS, app_of, fed
from tests.history.rebuilding.struck_engines import Stopping

DEEP = 333
"""The seed of an app of three stages and three partitions, with messages."""


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[TaskState]]:
    """The history of an app of three stages with messages, and its state."""
    folder = tmp_path_factory.mktemp("deep")
    fed(folder, DEEP)
    _, snapshot = done(folder, app_of(DEEP, "b"), order="stages", as_of_ms=FAR_MS)
    return folder, rebuilt(snapshot)


def test_a_driver_that_is_stopped_repeats_no_unit(deep: tuple[Path, list[TaskState]]) -> None:
    folder, wanted = deep
    for most in (1, 3, 7, 8):
        asked = lived.request(
            folder, app_of(DEEP, "b"), order="stages", as_of_ms=FAR_MS, name=f"stopped-{most}"
        )
        first = Stopping(most)
        with pytest.raises(InterruptedError):
            rebuild(asked, first)
        second = Stopping(0)
        report = rebuild(asked, second)
        assert report.resumed
        assert not {*first.ran} & {*second.ran}
        assert len(first.ran + second.ran) == 9, "three stages of three partitions"
        assert rebuilt(lived.opened(asked, report)) == wanted


def test_the_plan_shows_the_stages(deep: tuple[Path, list[TaskState]]) -> None:
    folder, _ = deep
    plan = plan_rebuild(lived.request(folder, app_of(DEEP, "b"), order="stages"))
    assert plan.stages == 3
    assert [one.partition for one in plan.units] == [0, 1, 2]
    assert "in 3 stages" in plan.lines()[0]


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


class Told(msgspec.Struct, frozen=True):
    n: int


def encoded(topic: str, events: list[Event]) -> list[Output]:
    return [Output(topic, one.key.encode(), msgspec.json.encode(one), one.at) for one in events]


def test_operators_that_send_to_each_other_in_a_circle_have_no_stage() -> None:
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

    with pytest.raises(OptionError, match="First and Second read what they write themselves"):
        Stages(app.plan())


def test_an_operator_that_sends_to_itself_is_a_circle() -> None:
    app = tr.App("alone", partitions=1)
    events = app.topic("events", Event, key="key", event_time="at")

    @app.process(events)
    def again(event: Event, ctx: tr.Context[str]) -> None:
        ctx.emit(events, event)

    with pytest.raises(OptionError, match="again reads what it writes itself"):
        Stages(app.plan())


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


def test_what_a_stage_sends_for_later_is_read_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is written in many frames."""
    monkeypatch.setattr(stage_unit, "_OUTPUTS_AT_ONCE", 20)
    some = [Event(f"k{n % 7}", 1_000 + 5 * n - n * 37 % 40) for n in range(400)]
    lived.append(tmp_path, encoded("events", some), {"events": 2, "more": 2})
    report, found = done(tmp_path, f"{__name__}:ahead", order="stages", as_of_ms=FAR_MS)
    assert "in 2 stages along the graph" in str(report.notes)
    wanted: dict[str, list[int]] = {}
    for one in sorted(map(later_of, some), key=lambda one: one.at):
        wanted.setdefault(one.key, []).append(one.at)
    assert {key: one["times"] for (_, key), one in lived.fields(rebuilt(found)).items()} == wanted


def test_a_limit_by_offsets_of_what_the_app_sends_is_refused(tmp_path: Path) -> None:
    lived.append(tmp_path, encoded("events", [Event("a", 1_000)]), {"events": 2, "more": 2})
    with pytest.raises(OptionError, match="writes 'more' itself"):
        done(tmp_path, f"{__name__}:ahead", order="stages", until=Limits({"more": {0: 1}}))


# --- an input that several stages read


def _twice() -> tr.App:
    """The events go to an operator of the first stage, and to one of the second. Late ones go elsewhere, once."""
    app = tr.App("twice", partitions=1)
    late = app.topic("late", Event, key="key", event_time="at")
    events = app.topic(
        "events", Event, key="key", event_time="at", out_of_order=0, late=late, on_error="dead-letter"
    )

    @app.actor
    class First(tr.Actor, order="event-time"):
        n: int = 0

        @tr.process(events)
        def one(self, event: Event, ctx: tr.Context[str]) -> None:
            self.n += 1
            ctx.send(Second, event.key, Told(1))

    @app.actor
    class Second(tr.Actor, order="event-time"):
        n: int = 0

        @tr.process(events)
        def two(self, event: Event, ctx: tr.Context[str]) -> None:
            self.n += 1

        @tr.on_message
        def told(self, message: Told, ctx: tr.Context[str]) -> None:
            self.n += message.n

    return app


def test_what_is_late_or_refused_counts_once_though_two_stages_read_it(tmp_path: Path) -> None:
    app = any_app.place(_twice())
    some = encoded("events", [Event("a", at) for at in (1_000, 2_000, 500, 3_000, 700, 4_000)])
    some.insert(3, Output("events", b"a", b"no json", 2_500))
    lived.append(tmp_path, some, {"events": 1, "late": 1})
    place = tmp_path / "outputs"
    report, snapshot = done(
        tmp_path, app, order="stages", as_of_ms=10_000, outputs=f"parquet:{place}", on_error="dead-letter"
    )
    assert (report.late, report.refused) == (2, 1)
    assert report.events == 6 + 4, "the events, and the messages"
    late = lived.outputs(place, snapshot, "late")
    assert sorted(msgspec.json.decode(one.value or b"", type=Event).at for one in late) == [500, 700]
    assert len(lived.outputs(place, snapshot, "twice.dead-letters")) == 1
    counts = {actor: one["n"] for (actor, _), one in lived.fields(rebuilt(snapshot)).items()}
    assert counts == {"First": 4, "Second": 8}


# --- reference data


class Rate(msgspec.Struct, frozen=True):
    name: str
    value: int


def _rated() -> tr.App:
    app = tr.App("rated", partitions=1)
    rates = app.topic("rates", Rate, key="name", watermark=False)
    events = app.topic("events", Event, key="key", event_time="at", out_of_order=0)

    @app.actor
    class Rated(tr.Actor, order="arrival"):
        rate: int = 0
        found: list[tuple[int, int]] = tr.field(default_factory=list)

        @tr.process(rates)
        def changed(self, rate: Rate, ctx: tr.Context[str]) -> None:
            self.rate = rate.value

        @tr.process(events)
        def event(self, event: Event, ctx: tr.Context[str]) -> None:
            self.found.append((event.at, self.rate))

    return app


def _rates(*at_value: tuple[int, int]) -> list[Output]:
    return [Output("rates", b"a", msgspec.json.encode(Rate("a", value)), at) for at, value in at_value]


def _found(folder: Path, app: str, **options: Any) -> list[list[int]]:
    _, snapshot = done(folder, app, order="stages", **options)
    (fields,) = lived.fields(rebuilt(snapshot)).values()
    found: list[list[int]] = fields["found"]
    return found


def test_reference_data_comes_before_the_first_event_that_is_not_earlier(tmp_path: Path) -> None:
    app = any_app.place(_rated())
    events = [Event("a", at) for at in (1_000, 2_000, 3_000, 2_500, 4_000)]
    some = [*encoded("events", events), *_rates((900, 1), (2_000, 2), (3_500, 3), (3_400, 4))]
    lived.append(tmp_path, some, {"events": 1, "rates": 1})
    # The third record lies before the fourth, whatever their timestamps are.
    assert _found(tmp_path, app) == [[1_000, 1], [2_000, 2], [3_000, 2], [2_500, 2], [4_000, 4]]
    assert _found(tmp_path, app, tables="first") == [[one.at, 4] for one in events]


def test_reference_data_of_which_nothing_lies_before_the_first_event_is_refused_until_told(
    tmp_path: Path,
) -> None:
    app = any_app.place(_rated())
    some = [*encoded("events", [Event("a", 1_000), Event("a", 9_000)]), *_rates((5_000, 1))]
    lived.append(tmp_path, some, {"events": 1, "rates": 1})
    with pytest.raises(
        OptionError, match="nothing of the reference data in 'rates' lies before the first event"
    ):
        done(tmp_path, app, order="stages")
    assert _found(tmp_path, app, tables="as-of") == [[1_000, 0], [9_000, 1]]
    assert _found(tmp_path, app, tables="first") == [[1_000, 1], [9_000, 1]]


def test_what_the_service_had_read_at_its_first_commit_comes_before_all(tmp_path: Path) -> None:
    app = any_app.place(_rated())
    lived.append(tmp_path, _rates((5_000, 1)), {"events": 1, "rates": 1})
    lived.live_on(tmp_path, app, ends=False)
    lived.append(
        tmp_path, [*encoded("events", [Event("a", 1_000), Event("a", 9_000)]), *_rates((8_000, 2))], {}
    )
    lived.live_on(tmp_path, app, ends=False)
    assert _found(tmp_path, app) == [[1_000, 1], [9_000, 2]]


# --- a topic of the app that others write, too


def _written_by_others() -> tr.App:
    app = tr.App("drawing", partitions=1)
    events = app.topic("events", Event, key="key", event_time="at", out_of_order=0)
    more = app.topic("more", Event, key="key", event_time="at", out_of_order=0)

    @app.process(events)
    def passed(event: Event, ctx: tr.Context[str]) -> None:
        ctx.emit(more, event)

    @app.actor
    class Drawn(tr.Actor, order="event-time"):
        ids: list[str] = tr.field(default_factory=list)

        @tr.process(more)
        def drawn(self, event: Event, ctx: tr.Context[str]) -> None:
            self.ids.append(f"{event.at} {ctx.uuid()}")

    return app


def test_records_of_others_in_a_topic_of_the_app_have_the_ids_that_they_have_in_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = any_app.place(_written_by_others())
    some = encoded("events", [Event("a", 1_000 * n) for n in range(1, 9)])
    some[3:3] = encoded("more", [Event("a", 2_500), Event("a", 4_000)])
    some += encoded("more", [Event("a", at) for at in (5_500, 6_000, 60_000)])
    lived.append(tmp_path, [*some, *encoded("events", [Event("a", 60_000)])], {"events": 1, "more": 1})
    lived.live_on(tmp_path, app, ends=False)
    wanted = lived.fields(lived.live(tmp_path, any_app.app.plan()))
    assert len(wanted["Drawn", "a"]["ids"]) == 12
    for held in (2, 200_000):
        monkeypatch.setattr(sends, "_HELD", held)
        report, snapshot = done(tmp_path, app, order="stages", name=f"held-{held}")
        assert lived.fields(rebuilt(snapshot)) == wanted
        assert "5 records of others in more partition 0, which the app writes itself" in str(report.notes)
    with closing(EmbeddedLog(tmp_path / "log", create=False)) as log:
        log.delete_before("more", 0, 2)
    with pytest.raises(OffsetGoneError, match="'more'"):
        done(tmp_path, app, order="stages")
    report, _ = done(tmp_path, app, order="stages", after_deleted=True)
    assert "offsets 0 to 1 of more partition 0 are deleted, and left out" in report.notes


def _telling(*, told: bool) -> tr.App:
    app = tr.App("telling", partitions=1)
    events = app.topic("events", Event, key="key", event_time="at", out_of_order=0)

    class Hears(tr.Actor, order="event-time"):
        n: int = 0

        @tr.on_message
        def told(self, message: Told, ctx: tr.Context[str]) -> None:
            self.n += message.n

    if told:
        app.actor(Hears)

    @app.process(events, emits=[Hears] if told else [])
    def tell(event: Event, ctx: tr.Context[str]) -> None:
        if told:
            ctx.send(Hears, event.key, Told(1))

    @app.actor
    class Other(tr.Actor, order="event-time"):
        n: int = 0

        @tr.process(events)
        def event(self, event: Event, ctx: tr.Context[str]) -> None:
            self.n += 1

    return app


def test_a_message_in_flight_at_the_base_for_an_actor_that_is_gone_is_refused(tmp_path: Path) -> None:
    lived.append(tmp_path, encoded("events", [Event("a", 1_000), Event("a", 2_000)]), {"events": 1})
    _, base = done(tmp_path, any_app.place(_telling(told=True)), order="stages", name="base")
    assert [*base.messages(0)], "the last message waits"
    with pytest.raises(BadRecordError, match="a message for 'Hears', which this app does not have"):
        done(
            tmp_path,
            any_app.place(_telling(told=False)),
            order="stages",
            base=str(tmp_path / "snapshots"),
            base_id="base",
        )


# --- what happens to log and disk meanwhile


def test_retention_that_deletes_during_a_rebuild_is_an_error_in_each_stage(tmp_path: Path) -> None:
    app = any_app.place(_twice())
    lived.append(tmp_path, encoded("events", [Event("a", 1_000 * n) for n in range(1, 30)]), {"events": 1})

    class Deleting(LocalEngine):
        def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
            if units[0].stage == stage:
                with closing(EmbeddedLog(tmp_path / "log", create=False)) as log:
                    log.delete_before("events", 0, 4 + stage)
            yield from super().run(units, on_progress)

    for stage in (0, 1):
        asked = lived.request(tmp_path, app, order="stages", after_deleted=stage > 0, name=f"stage-{stage}")
        with pytest.raises(OffsetGoneError, match="'events'"):
            rebuild(asked, Deleting(1))
        assert not Snapshots(asked.to.uri, "twice").list()


def test_a_disk_that_fills_publishes_nothing_and_the_same_command_goes_on_after(tmp_path: Path) -> None:
    app = f"{__name__}:ahead"
    some = [Event(f"k{n % 7}", 1_000 + 5 * n - n * 37 % 40) for n in range(8_000)]
    lived.append(tmp_path, encoded("events", some), {"events": 2, "more": 2})
    _, wanted = done(tmp_path, app, order="stages", as_of_ms=FAR_MS, name="roomy")
    asked = lived.request(tmp_path, app, order="stages", as_of_ms=FAR_MS, name="filled", store="memory")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))  # the log takes 32 KiB beside itself
    try:
        with pytest.raises(StateUnavailableError, match=r"no space|too large"):
            rebuild(asked, LocalEngine(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [one.name for one in Snapshots(asked.to.uri, "ahead").list()] == ["roomy"]
    report = rebuild(asked, LocalEngine(1))
    assert report.resumed
    assert rebuilt(lived.opened(asked, report)) == rebuilt(wanted)
