"""The results of a run, key by key, in a form in which runs can be compared.

Correct runs may differ in the running numbers of outputs, in the offsets of what the app writes itself, and
in the seeds of timers, which follow from those. So these are left out. The timestamp of an output is that of
the event which caused it. If the last of several events is the cause, the timestamp depends on their order,
so timestamps are left out as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.storage import Store
from tailrace.history.reading.app_history import origin_of
from tailrace.testing.emitted import dead_letter
from tailrace.testing.inputs import written_topics
from tailrace.testing.memory_log import MemoryLog

Kind: TypeAlias = Literal["output", "state", "dead letter"]
Item: TypeAlias = tuple[bytes, bytes]
"""An output: its value, and nothing. A row of state: the part of its name after the key, and its value."""


class Where(NamedTuple):
    """A key of a topic or of an actor; None for a topic without keys."""

    kind: Kind
    name: str
    key: bytes | None


Outcome: TypeAlias = Mapping[Where, Sequence[Item]]
"""By key, the outputs of a run in order, and its final state."""


def outcome_of(plan: Plan, log: MemoryLog, stores: Sequence[Store]) -> Outcome:
    """Read the results of a run."""
    found: dict[Where, list[Item]] = {}
    app = plan.app.encode()
    copies = {
        one.name for one in plan.inputs if one.broadcast
    }  # how often an end is marked depends on the schedule
    for topic in sorted(written_topics(plan) - copies):
        for record in log.read(topic):
            if origin_of(record, app) is not None:
                found.setdefault(Where("output", topic, record.key), []).append((record.value or b"", b""))
    for record in log.read(plan.dead_letters_topic):
        letter = dead_letter(record)
        content = letter.value or letter.headers.get("tailrace-timer", b"")
        where = Where("dead letter", letter.topic or "", record.key or letter.headers.get("tailrace-key"))
        found.setdefault(where, []).append((content + b" " + letter.reason.encode(), b""))
    for store in stores:
        for name, value in store.scan(rows.STATE, rows.prefix_end(rows.STATE)):
            row = rows.read_state_row(name)
            found.setdefault(Where("state", row.actor, row.key), []).extend(
                (rest, plain(rest, one)) for rest, one in rows.spread({row.rest: value}).items()
            )
    return found


def plain(rest: bytes, value: bytes) -> bytes:
    """The value of a row without how it was set, if it is a timer: its cause, and how deep in a chain."""
    if rest[:1] != b"t":
        return value
    timer = rows.decode_timer(value)
    return rows.encode_timer(rows.Timer(timer.time_ms, b"", 0, timer.payload))


def differing(plan: Plan, one: Outcome, other: Outcome, unordered: Collection[str]) -> list[Where]:
    """The keys that differ between two runs, sorted.

    The order of outputs is ignored in the topics ``unordered``, in topics without keys, and in topics that
    the app reads itself: for those the results of their readers are compared.
    """
    free = {*unordered, *(inner.name for inner in plan.inputs)}

    def differs(where: Where) -> bool:
        was, now = one.get(where, ()), other.get(where, ())
        in_order = where.kind == "state" or (
            where.kind == "output" and where.name not in free and where.key is not None
        )
        return was != now and (in_order or sorted(was) != sorted(now))

    return sorted(filter(differs, one.keys() | other.keys()), key=_place)


def _place(where: Where) -> tuple[str, str, bytes]:
    return where.kind, where.name, where.key or b""


def is_order_only(one: Outcome, other: Outcome, where: Where) -> bool:
    """Whether both runs emitted the same outputs for a key, in a different order."""
    return where.kind == "output" and sorted(one.get(where, ())) == sorted(other.get(where, ()))
