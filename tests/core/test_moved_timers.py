"""Timers that are set, moved and cancelled go off when they were last set for, whatever the queue names
meanwhile.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core import rows
from tailrace.core.engine.settings import CommitBatch
from tailrace.state import MemoryStore
from tests.core.driven import Driven

NAMES = tuple(f"n:{number}" for number in range(1, 8))
INSIDE = 3
"""Maximum number of timers inside a row in the property test."""


class Turn(msgspec.Struct, frozen=True):
    """At ``at`` the timer ``name`` is set ``ahead_ms`` later; cancelled if that is None, all if there is no name."""

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
            if not event.name:
                ctx.clear()
                self.turned = 1
            elif event.ahead_ms is None:
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
        self.committed: dict[tuple[str, str], int] = {}
        self.changelog: dict[bytes, bytes] = {}
        self.is_exact = True
        """Whether the index has no row of a timer that is not pending: so it is until a start from the store."""

    def commit(self) -> CommitBatch:
        batch = super().commit()
        for row, value in batch.rows.items():
            if value is None:
                assert self.changelog.pop(row, None) is not None, "nothing is deleted that was not there"
            else:
                self.changelog[row] = value
        self.committed = dict(self.pending)
        self.is_stored()
        return batch

    def is_stored(self) -> None:
        """The rows are those of the timers that are pending, wherever commits have fallen, and each has an index row."""
        found: dict[tuple[str, str], int] = {}
        for key in "kl":
            prefix = rows.actor_prefix("Clock") + rows.escaped(key.encode())
            stored = {row[len(prefix) :]: one for row, one in self.state().items() if row.startswith(prefix)}
            spread = rows.spread(stored)
            assert rows.gathered(spread) == stored
            timers = {rest[2:]: rows.decode_timer(one) for rest, one in spread.items() if rest[:1] == b"t"}
            assert any(rest[:1] == b"t" for rest in stored) == (len(timers) > INSIDE)
            found |= {(key, name[1:].decode()): timer.time_ms for name, timer in timers.items()}
        assert found == self.committed
        index = [rows.read_index_row(row) for row, _ in self.store.rows() if row[:1] == rows.INDEX]
        named = [(key.decode(), name[1:].decode(), at) for at, _, key, name in index]
        for which, due in found.items():
            assert any(at <= due for key, name, at in named if (key, name) == which)
        if self.is_exact:
            assert sorted((key, name) for key, name, _ in named) == sorted(found)

    def again(self, how: str) -> None:
        """Start from the last commit: on the store, or on one that is made from the changelog."""
        if how == "restore" and self.store.cut is not None:
            rest = rows.index_changes((row, None, value) for row, value in self.changelog.items())
            cut, self.store = self.store.cut, MemoryStore()
            self.store.write(rest | self.changelog, cut)
        self.is_exact = how == "restore"
        self.pending = dict(self.committed)
        self.start()
        self.task.take_outputs()

    def turn(self, turn: Turn) -> None:
        self.take(turn)
        if not turn.fails and not turn.name:
            self.pending = {which: at for which, at in self.pending.items() if which[0] != turn.key}
        elif not turn.fails:
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
        return len(list(queue.entries()))


steps = st.one_of(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from("kkkl"),
        st.one_of(st.just("n:1"), st.sampled_from((*NAMES, ""))),
        st.one_of(st.none(), st.integers(-3, 12), st.just(6), st.just(40)),
        st.sampled_from((False, False, False, True)),
    ),
    st.sampled_from(("commit", "commit", "restart", "restore", "crash")),
)


def lived(some: list[Any], in_memory: int = 200_000) -> None:
    with patch.object(rows, "INSIDE", INSIDE):
        life, at = Life(in_memory), 100
        for step in some:
            if isinstance(step, str):
                if step != "crash":
                    life.commit()
                if step != "commit":
                    life.again(step)
            else:
                later, key, name, ahead_ms, fails = step
                at += later
                life.turn(Turn(key, at, name, ahead_ms, fails))
        life.finish()
        assert not life.pending
        life.commit()
        life.finish()
        assert not [row for row, _ in life.store.rows() if row[:1] == rows.INDEX and life.is_exact]


@given(st.lists(steps, max_size=60), st.sampled_from((1, 2, 3, 200_000)))
def test_a_timer_goes_off_when_it_was_last_set_for(some: list[Any], in_memory: int) -> None:
    lived(some, in_memory)


def step(later: int, name: str = "n:1", ahead_ms: int | None = None, key: str = "k") -> tuple[Any, ...]:
    return later, key, name, ahead_ms, False


SEVEN = [step(0, name, 50) for name in NAMES]
CASES: dict[str, tuple[int, list[Any]]] = {
    "moved and not committed since, and the end waits for it": (
        2,
        [step(0, ahead_ms=10), step(0, "n:1", 20, "l"), "commit", "restart", step(1, ahead_ms=5_000)],
    ),
    "moved later, its first time passes": (
        9,
        [step(0, ahead_ms=10), "commit", step(1, ahead_ms=50), "commit", step(19, key="l"), "restart"],
    ),
    "moved to and fro": (
        9,
        [
            step(0, ahead_ms=10),
            step(0, ahead_ms=40),
            "commit",
            step(1, ahead_ms=60),
            step(14, key="l"),
            "commit",
            step(85, key="l"),
        ],
    ),
    "set again after it has fired, behind the horizon": (
        2,
        [
            step(0, "n:1", 10),
            step(0, "n:2", 200),
            step(0, "n:3", 300),
            "commit",
            step(15, key="l"),
            step(1, "n:1", 334),
            "commit",
        ],
    ),
    "came up too early and was cancelled": (
        9,
        [step(0, ahead_ms=10), step(0, ahead_ms=100), step(15, key="l"), step(1)],
    ),
    "become few": (9, [*SEVEN, "commit", *(step(0, name) for name in NAMES[2:]), "restart"]),
    "moved earlier": (
        9,
        [step(0, ahead_ms=50), "commit", step(1, ahead_ms=10), "restart", step(11, key="l")],
    ),
    "as many as a row holds, and one more": (9, [*SEVEN[:INSIDE], "commit", SEVEN[INSIDE], "restart"]),
}


@pytest.mark.parametrize("case", CASES)
def test_so_does_one_that_was(case: str) -> None:
    in_memory, some = CASES[case]
    lived(some, in_memory)


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


def test_the_index_row_of_a_timer_that_was_moved_before_the_start_goes_when_it_comes_up() -> None:
    life = Life()
    life.turn(Turn("k", 100, "n:1", 10))
    life.commit()
    life.turn(Turn("k", 101, "n:1", 50))
    life.commit()
    life.again("restart")
    life.turn(Turn("l", 120, "n:1"))
    life.is_exact = True
    life.commit()
