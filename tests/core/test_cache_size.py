"""The live instances of a task take no more memory than its setting allows. The rows of a run's keys are read at once where many are not live."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

import tailrace as tr
from tailrace.core.rows import PLAIN
from tailrace.state import MemoryStore
from tests.core.driven import Driven, heads_of

LIMIT = 1 << 20
LEAST = 460
"""Bytes that are reckoned for an instance, whatever it holds."""
AT_ONCE = 300
"""Keys between two commits: what they need is allowed beyond the limit."""


class Event(msgspec.Struct, frozen=True):
    key: str
    text: str = ""


app = tr.App("sized", partitions=1)
events = app.topic("events", Event, key="key")


@app.actor
class Count(tr.Actor):
    count: int = 0
    text: str = ""

    @tr.process(events)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.text += event.text


class Run(Driven):
    """A task whose cache is small. It commits after each batch."""

    def __init__(self) -> None:
        super().__init__(app.plan(), cache_bytes=LIMIT)

    def batch(self, found: Sequence[Event]) -> None:
        self.take(*found)
        self.commit()

    def held(self) -> list[Count]:
        """The instances that are held."""
        table = self.table("Count")
        return [*table.live.values(), *table.old.values()]


@pytest.mark.parametrize("keys", [1_000, 2_000, 3_000, 4_000, 6_000, 10_000])
def test_keys_that_come_back_again_and_again_do_not_all_stay(keys: int) -> None:
    dice = random.Random(keys)
    run, counted = Run(), Counter[str]()
    for _ in range(60):
        drawn = [f"key-{dice.randrange(keys)}" for _ in range(AT_ONCE)]
        run.batch([Event(key) for key in drawn])
        counted.update(drawn)
        assert len(run.held()) * LEAST < LIMIT + AT_ONCE * LEAST
    table = run.table("Count")
    assert {key: table.load(key).count for key in counted} == counted


def test_instances_that_grow_count_as_what_they_have_become() -> None:
    run, drawn = Run(), 0
    for _ in range(70):
        run.batch([Event(f"key-{at % 1_000}", "x" * 100) for at in range(drawn, drawn + AT_ONCE)])
        drawn += AT_ONCE
    assert sum(len(one.text) for one in run.held()) < LIMIT
    table = run.table("Count")
    assert {len(table.load(f"key-{at}").text) for at in range(1_000)} == {2_100}


# --- reading ahead


class Store(MemoryStore):
    """Notes how it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.single = 0
        self.many: list[int] = []

    def get(self, row: bytes, /) -> bytes | None:
        self.single += 1
        return super().get(row)

    def get_many(self, rows: Sequence[bytes], /) -> list[bytes | None]:
        self.many.append(len(rows))
        return super().get_many(rows)


class Reading(Driven):
    """A task that caches nothing, on a store that notes how it is read."""

    store: Store

    def __init__(self, store: Store) -> None:
        super().__init__(app.plan(), store, cache_bytes=0)

    def read(self, keys: Sequence[str]) -> None:
        self.take(*map(Event, keys))


def test_rows_of_keys_that_are_not_live_are_read_in_one_call() -> None:
    store = Store()
    task = Reading(store)
    sets = [[f"{name}{number}" for number in range(100)] for name in "ab"]
    for turn in range(6):
        store.single = 0
        keys = sets[turn % 2]  # those of the other set push them out of the cache
        task.read(keys + keys)
        # In the first run nothing is known yet of how many are live.
        assert (store.many, store.single) == (([], 100) if turn == 0 else ([100], 0))
        task.commit()
        store.many.clear()
    again = Reading(store).table("Count")
    assert {again.load(key).count for keys in sets for key in keys} == {6}


def test_nothing_is_read_ahead_where_the_keys_are_live() -> None:
    store = Store()
    task, keys = Reading(store), [f"k{number}" for number in range(100)]
    for _ in range(3):
        task.read(keys)
    assert len(store.many) <= 1
    assert sum(store.many) == 0


def test_what_is_read_ahead_is_forgotten_when_the_store_changes() -> None:
    store = Store()
    task, keys = Reading(store), [f"k{number}" for number in range(50)]
    table = task.table("Count")
    task.read(keys)
    table.prefetch(heads_of(task.task, [Event("new")], 0), 0)
    cut = task.commit().cut
    row = table.prefix + b"new\0\0"
    store.write({row: PLAIN + msgspec.msgpack.encode({"count": 7})}, cut)
    assert table.load("new").count == 7
