"""The harness's proof can fail: whatever is not on the tape, and whatever is not what the log says, turns it
red.
"""

import itertools
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.replay import Replay
from tailrace.core.errors import ReplayDivergedError, StateLeakError
from tailrace.testing import Harness
from tests.testing import everything
from tests.testing.everything import Do


class Step(msgspec.Struct, frozen=True):
    key: str
    n: int


class Sum(msgspec.Struct, frozen=True):
    key: str
    n: int


app = tr.App("leaking", partitions=1)
ticks = app.topic("ticks", Step, key="key", key_type=str)
tocks = app.topic("tocks", Sum, key="key", key_type=str)
kept: list[Any] = []
calls = itertools.count(1)
take = Replay.take


@app.actor
class Leaking(tr.Actor):
    total: int = 0

    @tr.process(ticks)
    def tick(self, step: Step, ctx: tr.Context[str]) -> None:
        match step.n:
            case 1:
                kept.append(self)
            case 2:
                kept[-1].total = 99
            case 3:
                self.total = next(calls)
            case 4:
                ctx.emit(tocks, Sum(ctx.key, next(calls)))
            case _:
                self.total += 1


def test_a_replay_needs_nothing_that_was_in_memory():
    with Harness(app) as h:
        h.send(ticks, Step("a", 0), Step("b", 0))
        h.crash()
        assert h.replay().records == 2


def test_a_checked_harness_finds_state_that_is_changed_behind_its_back():
    kept.clear()
    with Harness(app) as h, pytest.raises(StateLeakError, match="changed while none of its handlers ran"):
        h.send(ticks, Step("a", 1), Step("b", 2))


@pytest.mark.parametrize("starts", [False, True])
def test_a_replay_finds_state_that_depends_on_more_than_the_tape(starts):
    with Harness(app) as h:
        h.send(ticks, Step("a", 3))
        if starts:
            h.restart(h.snapshot())
            h.replay()
            h.send(ticks, Step("a", 3))
        with pytest.raises(
            ReplayDivergedError, match=r"the state of Leaking, key 'a' .*total: \d+ in the service, \d+ in"
        ):
            h.replay()


def test_a_replay_finds_outputs_that_depend_on_more_than_the_tape():
    with Harness(app) as h:
        h.send(ticks, Step("a", 4))
        with pytest.raises(
            ReplayDivergedError,
            match=r"output 0 of app 'leaking' partition 0 differs.*n: \d+ in the log, \d+",
        ):
            h.replay()


def test_a_replay_finds_a_store_that_is_not_what_the_log_says():
    with Harness(app) as h:
        h.send(ticks, Step("a", 0))
        (store,) = h._service.stores
        ((row, value),) = [(r, v) for r, v in store.scan(b"s", b"t")]
        assert store.cut is not None
        store.write({row: value[:-1] + b"\x07"}, store.cut)
        with pytest.raises(
            ReplayDivergedError, match=r"Leaking, key 'a' .* differs; total: 7 in the service, 1 in the"
        ):
            h.replay()


def test_a_replay_finds_a_tape_that_tells_another_story(monkeypatch):
    def forgetful(replay, record):
        record.causes = record.causes[:-3]
        return take(replay, record)

    with Harness(app) as h:
        h.send(ticks, Step("a", 0))
        h.send(ticks, Step("a", 0))
        monkeypatch.setattr(Replay, "take", forgetful)
        with pytest.raises(ReplayDivergedError, match="came out differently"):
            h.replay()


def test_the_report_of_a_replay_says_what_was_compared():
    with Harness(everything.app, partitions=2) as h:
        h.send(everything.main, Do("a", 1_000, "timer", 5), Do("b", 1_000, "send", 0, "a"))
        h.advance_watermark(1_005)
        report = h.replay()
        assert (report.partitions, report.records, report.timers) == (2, 3, 1)
        assert report.outputs == 5
        assert report.commits >= 3
        assert report.rows == 3
