"""Two apps and a table: one writes it, the other keeps a copy of it. The oracle is a dict."""

from __future__ import annotations

import msgspec

import tailrace as tr
from tailrace.core import rows
from tailrace.core.storage import Store
from tailrace.history.reading.stretches import scan
from tailrace.log import Log

PARTITIONS = 2


class Change(msgspec.Struct, frozen=True):
    """The stock of an item, or None where it is not sold any more."""

    item: tr.Key[str]
    at: tr.EventTime[int]
    left: int | None


class Stock(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A value of the table."""

    item: tr.Key[str]
    left: int


class Seen(msgspec.Struct, frozen=True):
    """What the copy has seen: None for a deletion."""

    item: tr.Key[str]
    left: int | None


writer = tr.App("writer", partitions=PARTITIONS)
changes = writer.topic("changes", Change, out_of_order="1h")
stocks = writer.table("stocks", Stock)


@writer.actor
class Item(tr.Actor):
    """Sets the value of its key, or deletes it."""

    count: int = 0

    @tr.process(changes)
    def change(self, event: Change, ctx: tr.Context[str]) -> None:
        """Write to the table."""
        self.count += 1
        if event.left is None:
            ctx.delete(stocks, ctx.key)
        else:
            ctx.emit(stocks, Stock(event.item, event.left))


reader = tr.App("reader", partitions=PARTITIONS)
taken = reader.table("stocks", Stock)
seen = reader.topic("seen", Seen)


@reader.actor
class Copy(tr.Actor):
    """The newest value of its key. Its state is that of no key where the key is deleted."""

    left: int

    @tr.process(taken)
    def set(self, event: Stock, ctx: tr.Context[str]) -> None:
        """Take a value."""
        self.left = event.left
        ctx.emit(seen, Seen(event.item, event.left))

    @tr.on_delete(taken)
    def gone(self, ctx: tr.Context[str]) -> None:
        """Take a deletion."""
        ctx.clear()
        ctx.emit(seen, Seen(ctx.key, None))


late = reader.renamed("late")
"""A reader that comes later."""


refusing = tr.App("refusing", partitions=PARTITIONS, on_error="dead-letter")
values = refusing.table("stocks", Stock)


@refusing.actor
class Positive(tr.Actor):
    """Takes no negative stock."""

    left: int = 0

    @tr.process(values)
    def set(self, event: Stock, ctx: tr.Context[str]) -> None:
        """Take a value."""
        if event.left < 0:
            raise ValueError(event.left)
        self.left = event.left


def oracle(events: list[Change]) -> dict[str, int]:
    """The table after these changes."""
    found: dict[str, int] = {}
    for one in events:
        if one.left is None:
            found.pop(one.item, None)
        else:
            found[one.item] = one.left
    return found


def table_in(log: Log) -> dict[str, int]:
    """The table as the log has it."""
    found: dict[str, int] = {}
    for number in range(PARTITIONS):
        for record in scan(log, "stocks", number):
            key = (record.key or b"").decode()
            if record.value is None:
                found.pop(key, None)
            else:
                found[key] = stocks.decode(record.value).left
    return found


def copy_in(store: Store) -> dict[str, int]:
    """The copy in the state of a task."""
    found: dict[str, int] = {}
    for row, value in store.scan(rows.STATE, rows.prefix_end(rows.STATE)):
        parts = rows.read_state_row(row)
        if not parts.rest:
            found[parts.key.decode()] = msgspec.msgpack.decode(value[rows.start_of_fields(value) :])["left"]
    return found
