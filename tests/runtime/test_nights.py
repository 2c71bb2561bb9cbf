"""The end of input fires all timers, for good; what comes after it is an error, until somebody decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import TimerLoopError
from tailrace.testing import Harness
from tests.cli.commands import Ended, done, records, run

APP = "tests.runtime.test_nights:app"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = 472_222 * HOUR_MS


class Reading(msgspec.Struct, frozen=True):
    meter: str
    at: int
    amount: int


class Hour(msgspec.Struct, frozen=True):
    meter: str
    end: int
    total: int


app = tr.App("meters", partitions=3)
readings = app.topic("readings", Reading, key="meter", key_type=str, event_time="at", out_of_order="5m")
hours = app.topic("hours", Hour, key="meter", key_type=str)


@app.actor
class Meter(tr.Actor):
    open: tr.MapState[int, int]

    @tr.process(readings)
    def read(self, event: Reading, ctx: tr.Context[str]) -> None:
        end = event.at // HOUR_MS * HOUR_MS + HOUR_MS
        self.open[end] = self.open.get(end, 0) + event.amount
        ctx.set_timer(end, f"hour:{end}")

    @tr.on_timer("hour")
    def closed(self, ctx: tr.Context[str]) -> None:
        ctx.emit(hours, Hour(ctx.key, ctx.event_time, self.open.pop(ctx.event_time)))


class Place:
    """A log of the meters, and the service that is run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        done("topics", "apply", "--app", APP, "--log", self.log)

    def append(self, *some: tuple[int, int]) -> None:
        """Readings of a meter: when, and how much."""
        lines = b"\n".join(msgspec.json.encode(Reading("a", at, amount)) for at, amount in some)
        done("log", "append", "readings", "--app", APP, "--log", self.log, stdin=lines)

    def run(self, *options: object) -> Ended:
        where = ("--log", self.log, "--state", self.folder / "state", "--log-format", "json")
        return run("run", APP, *where, *options)

    def done(self, *options: object) -> str:
        ended = self.run(*options)
        assert ended.code == 0, ended.err
        return ended.err

    @property
    def hours(self) -> Counter[Hour]:
        decode = msgspec.json.Decoder(Hour).decode
        return Counter(decode(record.value) for _, record in records(self.log, "hours"))


@pytest.fixture
def ended(tmp_path: Path) -> Place:
    """Meters whose inputs have ended for good, after a reading of a."""
    place = Place(tmp_path)
    place.append((START_MS, 1))
    assert "timers of Meter stay pending" in place.done("--until-end")
    assert place.hours == {}
    assert "stay pending" not in place.done("--end-of-input")
    assert place.hours == {Hour("a", START_MS + HOUR_MS, 1): 1}
    return place


def test_an_app_whose_inputs_have_ended_is_started_again_and_says_so(ended: Place) -> None:
    ended.done("--until-end")
    ended.done("--end-of-input")
    assert ended.hours == {Hour("a", START_MS + HOUR_MS, 1): 1}
    assert "its input has ended for good" in done("status", APP, "--log", ended.log).out


@pytest.mark.parametrize("option", ["--until-end", "--end-of-input"])
def test_an_event_after_the_end_of_input_is_an_error_until_somebody_decides(
    ended: Place, option: str
) -> None:
    ended.append((START_MS + 1, 10))
    for _ in range(2):
        failed = ended.run(option)
        assert failed.code == 1
        assert "were ended for good, and a record has come after that" in failed.err
        assert "(topic 'readings', partition " in failed.err
        assert ", offset 1)" in failed.err
        assert "--after-end" in failed.err
    assert ended.hours == {Hour("a", START_MS + HOUR_MS, 1): 1}
    ended.done(option, "--after-end")
    ended.append((START_MS + 9 * DAY_MS, 5), (START_MS + 9 * DAY_MS + 2 * HOUR_MS, 0))
    if option == "--until-end":
        ended.done(option)  # the decision was for good
    else:
        assert ended.run(option).code == 1
        ended.done(option, "--after-end")
    assert ended.hours[Hour("a", START_MS + HOUR_MS, 10)] == 1
    assert ended.hours[Hour("a", START_MS + 9 * DAY_MS + HOUR_MS, 5)] == 1
    done("replay", APP, "--log", ended.log)


# --- timers that are set meanwhile


class Beat(msgspec.Struct, frozen=True):
    key: str
    at: int


def beating(*, unless_ended: bool, named: bool = True) -> tuple[tr.App, Any, Any]:
    """Each key has a last timer, three hours after its event, and a beat each hour without end."""
    beats = tr.App("beats", partitions=1)
    begun = beats.topic("begun", Beat, key="key", key_type=str, event_time="at")
    out = beats.topic("out", Beat, key="key", key_type=str)
    name = "beat" if named else None
    on_beat: Callable[[Any], Any] = (
        tr.on_timer("beat", unless_ended=unless_ended) if named else tr.on_timer(unless_ended=unless_ended)
    )

    @beats.actor(emits=[out])
    class Heart(tr.Actor):
        @tr.process(begun)
        def begin(self, event: Beat, ctx: tr.Context[str]) -> None:
            ctx.set_timer(event.at + HOUR_MS, name)
            ctx.set_timer(event.at + 3 * HOUR_MS, "last")

        @on_beat
        def beat(self, ctx: tr.Context[str]) -> None:
            ctx.emit(out, Beat(ctx.key, ctx.event_time))
            ctx.set_timer(ctx.event_time + HOUR_MS, name)

        @tr.on_timer("last")
        def last(self, ctx: tr.Context[str]) -> None:
            ctx.emit(out, Beat("last", ctx.event_time))

    return beats, begun, out


@pytest.mark.parametrize("named", [True, False])
def test_a_heartbeat_does_not_pass_the_last_timer_of_another_kind(*, named: bool) -> None:
    beats, begun, out = beating(unless_ended=True, named=named)
    with Harness(beats) as h:
        h.send(begun, Beat("a", 0), Beat("b", 2 * HOUR_MS))
        h.end_of_input()
        at = [(one.key, one.at // HOUR_MS) for one in h.emitted(out)]
        # b has the last timer, at five; the watermark is that of the task.
        wanted = (
            [("a", n) for n in range(1, 6)] + [("b", n) for n in range(3, 6)] + [("last", 3), ("last", 5)]
        )
        assert sorted(at) == sorted(wanted)
        assert [hour for _, hour in at] == sorted(hour for _, hour in at)
        assert h.watermark() == 5 * HOUR_MS
        h.replay()


def test_timers_that_are_set_without_end_are_an_error_that_names_them() -> None:
    beats, begun, _ = beating(unless_ended=False)
    with Harness(beats) as h:
        h.send(begun, Beat("a", 0))
        with pytest.raises(TimerLoopError) as caught:
            h.end_of_input()
    said = str(caught.value)
    assert "1000 times" in said
    assert "Heart" in said
    assert "'a'" in said
    assert (
        '@tr.on_timer("beat", unless_ended=True)' in said or "@tr.on_timer('beat', unless_ended=True)" in said
    )


def test_a_message_at_the_end_that_sets_a_timer_has_it_fired_in_its_own_task() -> None:
    """Around a circle, from key to key and so from task to task: each hop is a timer, a message, and a later timer."""
    ring = tr.App("ring", partitions=4)
    begun = ring.topic("begun", Beat, key="key", key_type=str, event_time="at")
    out = ring.topic("out", Beat, key="key", key_type=str)

    @ring.actor
    class Hop(tr.Actor):
        @tr.process(begun)
        def begin(self, event: Beat, ctx: tr.Context[str]) -> None:
            ctx.set_timer(event.at + HOUR_MS, "hop")

        @tr.on_message
        def handed(self, message: Beat, ctx: tr.Context[str]) -> None:
            ctx.set_timer(message.at + HOUR_MS, "hop")

        @tr.on_timer("hop")
        def hop(self, ctx: tr.Context[str]) -> None:
            ctx.emit(out, Beat(ctx.key, ctx.event_time))
            if int(ctx.key) < 9:
                key = str(int(ctx.key) + 1)
                ctx.send(Hop, key, Beat(key, ctx.event_time))

    with Harness(ring) as h:
        h.send(begun, Beat("0", 0))
        h.end_of_input()
        assert sorted(one.at // HOUR_MS for one in h.emitted(out)) == list(range(1, 11))
        h.replay()
