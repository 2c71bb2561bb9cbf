"""Drives a task without a log: it gets slices of decoded events, drops the outputs, and commits into a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from typing import Any

import tailrace as tr
from benchmarks.measure import clock
from tailrace.core.engine.merge import Merge
from tailrace.core.engine.task import Task, TaskSettings
from tailrace.core.records import Head, InputRecord
from tailrace.core.storage import Store
from tailrace.state import MemoryStore

SLICE = 10_000
"""Number of events read at once."""


class Drive:
    """One task on a store. ``tape_bytes`` is the size of the tape of all commits so far."""

    def __init__(self, app: tr.App, store: Store | None = None, settings: TaskSettings | None = None) -> None:
        self.store = MemoryStore() if store is None else store
        self.task = Task(app.plan(), 0, self.store, self.store.cut, lineage=b"bench", settings=settings)
        self.tape_bytes = 0
        self.commits = 0
        self.commit_s = 0.0
        self._offsets = [0] * len(self.task.plan.inputs)

    def feed(self, events: Iterable[Any], number: int = 0) -> None:
        """Feed events of one input to the task, in slices."""
        rest = iter(events)
        while slice_ := list(islice(rest, SLICE)):
            self.run(number, self.heads(slice_, number))

    def heads(self, events: Sequence[Any], number: int = 0) -> list[Head]:
        """The next events of an input, as heads for the task."""
        plan, first = self.task.plan.inputs[number], self._offsets[number]
        self._offsets[number] += len(events)
        keys = [None] * len(events) if plan.key_of is None else list(map(plan.key_of, events))
        assert plan.key_of is None or plan.key_codec.are_exact(keys), "a decoder looks at them, too"
        times = repeat(0) if plan.time_of is None else map(plan.time_of, events)
        return list(zip(range(first, first + len(events)), times, keys, events, repeat(None)))

    def run(self, number: int, heads: Sequence[Head]) -> None:
        """Feed heads of one input to the task, and drop the outputs."""
        self._take(number, heads)
        self.task.discard_outputs()

    def merge(self, inputs: Sequence[Sequence[Any]]) -> None:
        """Feed the events of several inputs, in the order of the merge."""
        merge = Merge(self.task.plan.inputs)
        at = [0] * len(inputs)
        for number, events in enumerate(inputs):
            merge.unread(number, bool(events))
        while True:
            for number, events in enumerate(inputs):
                if not merge.buffered(number) and at[number] < len(events):
                    merge.offer(number, self.heads(events[at[number] : at[number] + SLICE], number))
                    at[number] += SLICE
                    merge.unread(number, at[number] < len(events))
            found = merge.next_run()
            if found is None:
                break
            self.run(*found)

    def rejoin(self, inputs: Sequence[tuple[int, Sequence[Any]]], own: int) -> None:
        """Feed slices of the inputs in turn, and after each round the records that the task wrote to its ``own`` input.

        These records are encoded and decoded, and followed by the task's published watermark, as through a log. All other
        outputs are numbered and dropped.
        """
        task = self.task
        name = task.plan.inputs[own].name
        for at in range(0, max(len(events) for _, events in inputs), SLICE):
            for number, events in inputs:
                self._take(number, self.heads(events[at : at + SLICE], number))
            written = [one for one in task.take_outputs() if one.topic == name]
            records = [
                InputRecord(offset, one.timestamp_ms, one.key, one.value, one.headers)
                for offset, one in enumerate(written, self._offsets[own])
            ]
            self._offsets[own] += len(records)
            self.run(own, task.decode(own, records))
            reached_ms = task.publications()[name]
            if reached_ms is not None:
                task.upstream(own, reached_ms)
                self._drain()
            task.discard_outputs()

    def _take(self, number: int, heads: Sequence[Head]) -> None:
        taken = 0
        while taken < len(heads):
            taken = self.task.run(number, heads, taken)
            self._drain()

    def _drain(self) -> None:
        while self.task.draining:
            self.task.drain()

    def commit(self) -> None:
        """Write the changes to the store."""
        start = clock()
        batch = self.task.commit_batch()
        self.store.write({**batch.rows, **batch.index_rows}, batch.cut)
        self.task.committed()
        self.commits += 1
        self.commit_s += clock() - start
        self.tape_bytes += len(batch.tape)
