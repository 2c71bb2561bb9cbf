"""The timer queue: its memory is bounded, and it reads no timers of other actors. What it names is a law of the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.engine.at_work import AtWork
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.timers import FOREVER, TimerQueue
from tests.core.driven import Driven


class Index:
    """A store that holds index rows only, and counts those that are scanned."""

    def __init__(self) -> None:
        self.rows: set[bytes] = set()
        self.read = 0

    def get(self, row: bytes) -> bytes | None:
        return b"" if row in self.rows else None

    def get_many(self, wanted: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(row) for row in wanted]

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for row in sorted(self.rows, reverse=reverse):
            if start <= row < stop:
                self.read += 1
                yield row, b""


def queue_over(index: Index, *, stored: bool) -> TimerQueue:
    return TimerQueue(rows.EVENT_TIME, index, "a", 0, 10, stored=stored)


def test_memory_is_bounded_by_the_limit_once_committed() -> None:
    index = Index()
    queue = queue_over(index, stored=False)
    for time_ms in range(1000):
        queue.push(time_ms, b"k", b"nx")
        index.rows.add(rows.index_row(rows.EVENT_TIME, time_ms, b"a", b"k", b"nx"))
    queue.committed()
    assert len(queue._heap) <= 10
    fired = []
    while queue.due_ms < FOREVER:
        fired.append(queue.pop()[0])
        assert len(queue._heap) <= 10
    assert fired == list(range(1000))


def test_timers_of_another_actor_are_not_looked_at() -> None:
    """Not even read: its queue may have millions of them, and this one none."""
    index = Index()
    index.rows = {rows.index_row(rows.EVENT_TIME, at, b"aa", b"k", b"nx") for at in range(100)}
    index.rows |= {rows.index_row(rows.PROCESSING_TIME, at, b"a", b"k", b"nx") for at in range(100)}
    assert queue_over(index, stored=True).due_ms == FOREVER
    assert (len(index.rows), index.read) == (200, 0)


class Ring(msgspec.Struct, frozen=True):
    key: str
    at: int


def test_another_thread_may_ask_what_is_at_work_between_two_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    app = tr.App("rings", partitions=1)
    rings = app.topic("rings", Ring, key="key", event_time="at", out_of_order=0)

    @app.actor
    class Clock(tr.Actor):
        @tr.process(rings)
        def ring(self, event: Ring, ctx: tr.Context[str]) -> None:
            ctx.set_timer(event.at + 1)
            ctx.set_timer(event.at + 2)

        @tr.on_timer
        def rung(self, ctx: tr.Context[str]) -> None:
            found.append(driven.task.at_work)

    found, driven = list[AtWork | None](), Driven(app.plan())
    begin = InstanceCache.begin

    def begun(cells: InstanceCache) -> None:
        found.append(driven.task.at_work)
        begin(cells)

    monkeypatch.setattr(InstanceCache, "begin", begun)
    driven.take(Ring("a", 1_000), Ring("b", 2_000))
    timers = [one.timer for one in found if one is not None and one.timer]
    assert timers == ["unnamed at 1001 ms", "unnamed at 1002 ms"]
    assert None in found
