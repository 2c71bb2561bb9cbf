"""What is stored of each actor of a task, and what is open in it: counted in the folded changelog."""

from __future__ import annotations

from itertools import groupby

import msgspec

from tailrace.core import rows
from tailrace.core.declare.actor import declaration_of
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.query import QueryReader
from tailrace.core.engine.watermarks import Watermarks
from tailrace.history.reading.app_history import AppHistory
from tailrace.log.interface import Log


class Stored(msgspec.Struct):
    """What one task has stored of an actor."""

    keys: int = 0
    rows: int = 0
    bytes: int = 0
    """Of the names and values of the rows, before any compression."""
    timers: int = 0
    """Without those of values that expire."""
    open: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """In operators and fields of the library: how many windows, sessions and cases are open, or events of each input kept."""


def stored(plan: Plan, log: Log, partition: int) -> dict[str, Stored]:
    """By actor, at the last commit of a task. Takes the memory and time of folding its partition of the changelog."""
    found = {one.name: Stored() for one in plan.actors}
    committed = AppHistory(plan, log).committed(partition, with_rows=True)
    if committed.cut is None or committed.rows is None:
        return found
    marks, reader = Watermarks(plan), QueryReader(plan, partition, committed.rows)
    marks.resume(tape.decode_cut(committed.cut))
    actors = {one.name: one for one in plan.actors}
    state = committed.rows.scan(rows.STATE, rows.prefix_end(rows.STATE))
    for prefix, some in groupby(state, lambda one: rows.key_prefix(one[0])):
        of_key, at = dict(some), rows.read_state_row(prefix)
        if (actor := actors.get(at.actor)) is None:
            continue  # it is declared no more
        one, spread = found[actor.name], rows.spread({row[len(prefix) :]: of_key[row] for row in of_key})
        timers = {row: rows.decode_timer(value) for row, value in spread.items() if row[:1] == b"t"}
        one.keys += 1
        one.rows += len(of_key)
        one.bytes += sum(len(row) + len(value) for row, value in of_key.items())
        one.timers += sum(row[2:3] != rows.EXPIRY for row in timers)
        if actor.schema.meaning:
            due = (timer.time_ms - 1 for row, timer in timers.items() if row[1] == rows.EVENT_TIME)
            fired_ms = min([marks.of_operator[actor.index], *due])
            instance = reader.instance(actor.cls, actor.key_codec.decode(at.key))
            for name, count in declaration_of(actor.cls).opened(instance, fired_ms).items():
                one.open[name] = one.open.get(name, 0) + count
    return found
