"""A task that starts after a commit within a drain finishes the drain before it takes a record."""

from __future__ import annotations

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine import tape
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.engine.task import Task
from tailrace.core.records import InputRecord
from tailrace.state import MemoryStore


class Seen(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]


@pytest.mark.parametrize("order", ["event-time", "arrival"])
def test_a_task_begins_with_the_drain_that_the_last_commit_was_in(order: str) -> None:
    app = tr.App("draining", partitions=1)
    seen = app.topic("seen", Seen)

    class Alarm(tr.Actor, order="event-time" if order == "event-time" else "arrival"):
        rung: int = 0

        @tr.process(seen)
        def came(self, event: Seen, ctx: tr.Context[str]) -> None:
            if event.at == 10:
                for at in (20, 30, 40):
                    ctx.set_timer(at)

        @tr.on_timer
        def rings(self, ctx: tr.Context[str]) -> None:
            self.rung += 1

    app.actor(Alarm)
    log = [InputRecord(n, at, b"k", msgspec.json.encode(Seen("k", at))) for n, at in enumerate((10, 11, 100))]
    store, settings = MemoryStore(), TaskSettings(firing_budget=1)
    task = Task(app.plan(), 0, store, lineage=b"draining", settings=settings)
    heads, taken = task.decode(0, log), 0
    while taken < len(heads):
        taken = task.run(0, heads, taken)
        while task.draining and taken < len(heads):
            task.drain(1)
    assert task.draining
    batch = task.commit_batch()
    assert tape.decode_tape(batch.tape).within_drain
    store.write(batch.rows | batch.index_rows, batch.cut)
    again = Task(app.plan(), 0, store, batch.cut, lineage=b"draining", settings=settings)
    assert again.draining
    while again.draining:
        again.drain()
    assert again.totals.fired == 3
    assert not tape.decode_tape(again.commit_batch().tape).within_drain
