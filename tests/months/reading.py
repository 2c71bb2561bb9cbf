"""What there really is: the state by the framework's own reader of committed instances, outputs by a scan of the topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.query import QueryReader
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.stretches import scan
from tailrace.log.embedded import EmbeddedLog
from tailrace.state import MemoryStore
from tailrace.state.snapshots import Snapshots, which_where
from tests.months.apps import Closed, Part, Total, Version
from tests.months.oracle import Key, State, fields_of

ATTRIBUTES = {"total": "sold"}
"""What stored names are called in the code of a version that has them renamed."""


def state_of(plan: Plan, version: Version, rows_of: Callable[[int], Iterator[tuple[bytes, bytes]]]) -> State:
    """The state that some rows hold, as the oracle writes it."""
    declared = fields_of(version)
    found: State = {}
    for number in range(plan.partitions):
        store = MemoryStore()
        store.write(dict(rows_of(number)), b"")
        reader = QueryReader(plan, number, store)
        keys: set[Key] = set()
        for row, _ in store.scan(rows.STATE, rows.STATE + b"\xff"):
            parts = rows.read_state_row(row)
            keys.add((parts.actor, parts.key.decode()))
        for actor, key in sorted(keys):
            cls = next((one.cls for one in plan.actors if one.name == actor), None)
            instance = None if cls is None else reader.instance(cls, key)
            if instance is None:
                continue
            fields = {name: _value(instance, actor, name, version) for name in declared[actor]}
            if fields != declared[actor]:
                found[actor, key] = fields
    return found


def _value(instance: Any, actor: str, name: str, version: Version) -> Any:
    if actor == "Shop" and version.renamed:
        name = ATTRIBUTES.get(name, name)
    value = getattr(instance, name)
    return dict(value.items()) if name == "open" else value


def committed(log: EmbeddedLog, plan: Plan, version: Version) -> State:
    """The state of the service, by its changelog."""
    history = AppHistory(plan, log)

    def rows_of(number: int) -> Iterator[tuple[bytes, bytes]]:
        kept = history.committed(number, with_rows=True).rows
        assert kept is not None
        return kept.rows()

    return state_of(plan, version, rows_of)


def rebuilt(uri: str, plan: Plan, version: Version) -> State:
    """The state in a snapshot."""
    place, which = which_where(uri)
    return state_of(plan, version, Snapshots(place, plan.app).open(which).rows)


def outputs(log: EmbeddedLog) -> Counter[Part | Total | Closed]:
    """All that was emitted and sent."""
    found: Counter[Part | Total | Closed] = Counter()
    types: tuple[tuple[str, type[Part | Total]], ...] = (("parts", Part), ("totals", Total))
    for topic, type_ in types:
        for record in _records(log, topic):
            found[msgspec.json.decode(record, type=type_)] += 1
    if "months.inbox" in log.topics():
        for record in _records(log, "months.inbox"):
            found[_message(record)] += 1
    return found


def _message(value: bytes) -> Closed:
    _, _, message = msgspec.msgpack.decode(value, type=tuple[str, str, bytes])
    return msgspec.msgpack.decode(message, type=Closed)


def _records(log: EmbeddedLog, topic: str) -> Iterator[bytes]:
    for number in range(log.partitions(topic)):
        for record in scan(log, topic, number):
            yield record.value or b""


def letters(log: EmbeddedLog) -> int:
    """How many dead letters there are."""
    topic = "months.dead-letters"
    return (
        sum(log.end_offset(topic, number) for number in range(log.partitions(topic)))
        if topic in log.topics()
        else 0
    )


def open_log(folder: Path) -> EmbeddedLog:
    """The log in a folder, which is there."""
    return EmbeddedLog(folder, create=False)
