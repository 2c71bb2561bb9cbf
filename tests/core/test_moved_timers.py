"""Timers that are set, moved and cancelled go off when they were last set for, whatever the queue names
meanwhile.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tests.core.driven import Driven

NAMES = ("n:1", "n:2")


class Turn(msgspec.Struct, frozen=True):
    """At ``at`` the timer ``name`` is set ``ahead_ms`` later; cancelled if that is None."""

    key: str
    at: int
    name: str
    ahead_ms: int | None = None
    fails: bool = False


class Rang(msgspec.Struct, frozen=True):
    key: str
    name: str | None
    at: int


def clocks_app() -> tr.App:
    app = tr.App("clocks", partitions=1, on_error="dead-letter")
    turns = app.topic("turns", Turn, key="key", event_time="at")
    rings = app.topic("rings", Rang, key="key")

    @app.actor
    class Clock(tr.Actor):
        turned: int = 0

        @tr.process(turns)
        def turn(self, event: Turn, ctx: tr.Context[str]) -> None:
            self.turned += 1
            if event.ahead_ms is None:
                ctx.cancel_timer(event.name)
            else:
                ctx.set_timer(event.at + event.ahead_ms, name=event.name)
            if event.fails:
                raise ValueError("told to fail")

        @tr.on_timer("n")
        def ring(self, ctx: tr.Context[str]) -> None:
            ctx.emit(rings, Rang(ctx.key, ctx.timer_name, ctx.event_time))

    return app


class Life(Driven):
    """A task beside what a dict of its pending timers says."""

    def __init__(self, in_memory: int = 200_000) -> None:
        super().__init__(clocks_app().plan(), timers_in_memory=in_memory)
        self.decode = msgspec.json.Decoder(Rang).decode
        self.pending: dict[tuple[str, str], int] = {}

    def turn(self, turn: Turn) -> None:
        self.take(turn)
        if not turn.fails:
            self.pending.pop((turn.key, turn.name), None)
            if turn.ahead_ms is not None:
                self.pending[turn.key, turn.name] = turn.at + turn.ahead_ms
        self.goes_off(turn.at - 1)

    def goes_off(self, watermark: int) -> None:
        """What is due has gone off, in order, and nothing else."""
        assert not self.task.draining
        assert self.task.watermark == watermark
        due = sorted((at, key, name) for (key, name), at in self.pending.items() if at <= watermark)
        for _, key, name in due:
            del self.pending[key, name]
        values = [one.value or b"" for one in self.task.take_outputs() if one.topic == "rings"]
        assert [(one.at, one.key, one.name) for one in map(self.decode, values)] == due

    def finish(self) -> None:
        watermark = max([self.task.watermark, *self.pending.values()])
        self.task.finish(0)
        self.goes_off(watermark)

    @property
    def named(self) -> int:
        """How many entries the queue holds in memory."""
        queue: Any = self.task._firing.events[0]
        return len(list(queue.latest_first()))


steps = st.one_of(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from("kl"),
        st.sampled_from(NAMES),
        st.one_of(st.none(), st.integers(-3, 12), st.just(6)),
        st.sampled_from((False, False, False, True)),
    ),
    st.sampled_from(("commit", "restart")),
)


@given(st.lists(steps, max_size=60), st.sampled_from((1, 2, 3, 200_000)))
def test_a_timer_goes_off_when_it_was_last_set_for(some: list[Any], in_memory: int) -> None:
    life, at = Life(in_memory), 100
    for step in some:
        if isinstance(step, str):
            life.commit()
            if step == "restart":
                life.start()
        else:
            later, key, name, ahead_ms, fails = step
            at += later
            life.turn(Turn(key, at, name, ahead_ms, fails))
    life.finish()
    assert not life.pending


def test_a_timer_that_is_put_off_again_and_again_is_named_once() -> None:
    life = Life()
    for at in range(5_000):
        life.turn(Turn("k", at, "n:1", 60))
        assert life.named == 1
    life.finish()


def test_a_timer_that_is_moved_to_and_fro_is_not_named_without_end() -> None:
    """Each move to an earlier time names it anew; what is named twice at one time becomes one."""
    life, most = Life(), 0
    for at in range(5_000):
        life.turn(Turn("k", at, "n:1", 60 if at % 2 else 30))
        most = max(most, life.named)
    assert 2 <= most <= 100
    life.finish()


def test_the_end_waits_for_a_timer_that_was_moved_and_not_committed_since() -> None:
    life = Life(2)
    life.turn(Turn("k", 100, "n:1", 10))
    life.turn(Turn("l", 100, "n:1", 20))
    life.commit()
    life.start()
    life.turn(Turn("k", 101, "n:1", 5_000))
    life.finish()
    assert life.task.watermark == 5_101
