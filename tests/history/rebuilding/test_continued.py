"""A rebuild in stages that continues from one in stages: what was in flight there is handled in its place, as if nothing had been between."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.app_history import AppHistory
from tailrace.log.embedded import EmbeddedLog
from tests.history.rebuilding import any_app, lived
from tests.history.rebuilding.lived import done, rebuilt
from tests.runtime.processes import Running, wait_until

T0 = 1_700_000_000_000


class Event(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    n: int


class Told(msgspec.Struct, frozen=True):
    n: int


def _spread() -> tr.App:
    """The second operator waits for a second of event time, and reads a disordered input from outside, too."""
    app = tr.App("spread", partitions=1)
    events = app.topic("events", Event)
    more = app.topic("more", Event, out_of_order="1s")
    others = app.topic("others", Event, out_of_order="1s")

    @app.process(events, order="event-time")
    def passed(event: Event, ctx: tr.Context[str]) -> None:
        ctx.emit(more, event)

    @app.actor
    class Second(tr.Actor, order="event-time"):
        seen: list[str] = tr.field(default_factory=list)

        @tr.process(more)
        def event(self, event: Event, ctx: tr.Context[str]) -> None:
            self.seen.append(f"{event.n} {ctx.watermark} {ctx.is_late} {ctx.random.random()}")

        @tr.process(others)
        def other(self, event: Event, ctx: tr.Context[str]) -> None:
            self.seen.append(f"other {event.n} {ctx.watermark}")

    return app


def _events(topic: str, times: list[int]) -> list[Output]:
    return [
        Output(topic, b"k", msgspec.json.encode(Event("k", T0 + at, n)), T0 + at)
        for n, at in enumerate(times, times[0])
    ]


def _ordered(states: list[lived.TaskState]) -> list[Any]:
    return [tape.decode_cut(one.cut).ordered for one in states if one.cut]


@pytest.mark.parametrize("new", [0, 1, 2, 3, 12])
@pytest.mark.parametrize("jump", [300, 5_000])
def test_what_waits_at_the_base_keeps_its_place(new: int, jump: int, tmp_path: Path) -> None:
    app = any_app.place(_spread())
    first = [100 * n for n in range(30)]
    disordered = [one + (-1) ** n * 450 for n, one in enumerate(first[5:])]
    lived.append(
        tmp_path, [*_events("events", first), *_events("others", disordered)], {"events": 1, "others": 1}
    )
    lived.live_on(tmp_path, app, ends=False)
    _, base = done(tmp_path, app, order="stages", name="base")
    assert len([*base.messages(0)]) >= 9
    later = [first[-1] + jump + n for n in range(new)]
    if new:
        lived.append(tmp_path, [*_events("events", later), *_events("others", later)], {})
        lived.live_on(tmp_path, app, ends=False)
    wanted = lived.live(tmp_path, any_app.app.plan())
    assert lived.fields(wanted)
    ways: list[dict[str, Any]] = [{}, {"base": str(tmp_path / "snapshots"), "base_id": "base"}]
    for number, options in enumerate(ways):
        for split in (1, 2):
            name = f"x-{number}-{split}"
            _, snapshot = done(tmp_path, app, order="stages", name=name, split=split, **options)
            assert lived.fields(rebuilt(snapshot)) == lived.fields(wanted)
            ((here,), (live,)) = (_ordered(one) for one in (rebuilt(snapshot), wanted))
            assert here["Second"].lows["others"] == live["Second"].lows["others"]


def _idle() -> tr.App:
    app = tr.App("idle", partitions=2)
    events = app.topic("events", Event, idle_after="1s")

    @app.actor
    class First(tr.Actor, order="event-time"):
        seen: int = 0

        @tr.process(events)
        def event(self, event: Event, ctx: tr.Context[str]) -> None:
            self.seen += 1
            ctx.set_timer(event.at + 30_000, "due")

        @tr.on_timer("due")
        def due(self, ctx: tr.Context[str]) -> None:
            ctx.send(Second, "b", Told(1))

    @app.actor
    class Second(tr.Actor, order="event-time"):
        n: int = 0

        @tr.on_message
        def told(self, message: Told, ctx: tr.Context[str]) -> None:
            self.n += message.n

    return app


idle = _idle()


def cuts_of(folder: Path, plan: Plan) -> list[tape.Cut]:
    """The last cuts of a service."""
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        if plan.changelog_topic not in log.topics():
            return []
        found = [AppHistory(plan, log).committed(one).cut for one in range(plan.partitions)]
    return [tape.decode_cut(one) for one in found if one]


def test_a_message_behind_its_receiver_is_handled_late_and_not_kept(tmp_path: Path) -> None:
    """Its sender's partition is idle when the base is made, and the receiver has passed it."""
    app, plan = f"{__name__}:idle", idle.plan()
    keys = {partition_of(key.encode(), plan.partitions): key for key in map(str, range(9))}

    def at(partition: int, ms: int) -> Output:
        one = Event(keys[partition], T0 + ms, 0)
        return Output("events", one.key.encode(), msgspec.json.encode(one), one.at)

    def reached() -> int:
        return max((one.operators["Second"] for one in cuts_of(tmp_path, plan)), default=0)

    lived.append(tmp_path, [at(0, 0), at(1, 10_000)], {"events": 2})
    where = ("--log", tmp_path / "log", "--state", tmp_path / "state", "--commit-interval", "20ms")
    with Running("run", app, *where, "--create-topics"):
        wait_until(lambda: reached() >= T0 + 9_999, "both partitions are idle")
        lived.append(tmp_path, [at(1, 45_000)], {})
        wait_until(lambda: reached() >= T0 + 44_999, "the timer has fired")
        _, base = done(tmp_path, app, order="stages", name="base")
        stood = max(tape.decode_cut(one.cut).operators["Second"] for one in base.manifest.tasks)
        assert stood >= T0 + 44_999
        lived.append(tmp_path, [at(0, 60_000)], {})
        wait_until(
            lambda: sum(one.totals.late for one in cuts_of(tmp_path, plan)) == 1, "the message has come late"
        )
    asked: dict[str, Any] = {"base": str(tmp_path / "snapshots"), "base_id": "base"}
    report, again = done(tmp_path, app, order="stages", name="again", **asked)
    assert not [*again.messages(0), *again.messages(1)]
    live = lived.fields(lived.live(tmp_path, plan))
    assert lived.fields(rebuilt(again)) == live
    assert (live["Second", "b"]["n"], report.late) == (2, 1)


def _joined() -> tr.App:
    app = tr.App("joined", partitions=1)
    some = app.topic("some", Event, idle_after="1s")
    others = app.topic("others", Event)

    @app.actor
    class Both(tr.Actor, order="event-time"):
        n: int = 0

        @tr.process(some)
        def one(self, event: Event, ctx: tr.Context[str]) -> None:
            self.n += 1

        @tr.process(others)
        def other(self, event: Event, ctx: tr.Context[str]) -> None:
            self.n += 1

    return app


joined = _joined()


def test_a_note_counts_what_was_late_in_the_service_after_a_silence(tmp_path: Path) -> None:
    app, plan = f"{__name__}:joined", joined.plan()
    lived.append(tmp_path, [*_events("some", [0]), *_events("others", [0])], {"some": 1, "others": 1})
    where = ("--log", tmp_path / "log", "--state", tmp_path / "state", "--commit-interval", "20ms")
    with Running("run", app, *where, "--create-topics"):
        lived.append(tmp_path, _events("others", [60_000]), {})
        wait_until(
            lambda: any(one.operators["Both"] >= T0 + 59_999 for one in cuts_of(tmp_path, plan)),
            "the silent input counts no more",
        )
        lived.append(tmp_path, _events("some", [30_000]), {})
        wait_until(lambda: any(one.totals.late for one in cuts_of(tmp_path, plan)), "the event has come late")
    report, _ = done(tmp_path, app, order="stages")
    said = (
        "1 event of some was late in the service because this input had been idle: here they may be in time"
    )
    assert said in report.notes
