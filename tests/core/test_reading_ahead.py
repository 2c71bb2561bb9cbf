"""The rows of a run's keys are read at once where many are not live, which changes nothing but the time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

import tailrace as tr
from tailrace.core.rows import PLAIN
from tailrace.state import MemoryStore
from tests.core.driven import Driven, heads_of


class Event(msgspec.Struct, frozen=True):
    key: str


app = tr.App("reading", partitions=1)
events = app.topic("events", Event, key="key")


@app.actor
class Counter(tr.Actor):
    count: int = 0

    @tr.process(events)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        self.count += 1


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
    again = Reading(store).table("Counter")
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
    table = task.table("Counter")
    task.read(keys)
    table.prefetch(heads_of(task.task, [Event("new")], 0), 0)
    cut = task.commit().cut
    row = table.prefix + b"new\0\0"
    store.write({row: PLAIN + msgspec.msgpack.encode({"count": 7})}, cut)
    assert table.load("new").count == 7
