"""Corrections of tables: the last value of each key under the new version, where the log has another.

Only keys count whose last record is of this app. A correction has no origin, as no task has emitted it; a header tells whose it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import OptionError
from tailrace.core.records import InputRecord, Output
from tailrace.history.reading.app_history import origin_of
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding.output_files import read_outputs
from tailrace.log.interface import Log
from tailrace.log.opening import open_log
from tailrace.state.snapshots import Place

CORRECTED = "tailrace-corrected-by"


class Correction(NamedTuple):
    """The value of a key in a table; None: it is deleted."""

    topic: str
    key: bytes
    value: bytes | None
    timestamp_ms: int

    def output(self, app: str) -> Output:
        """The record to write."""
        return Output(self.topic, self.key, self.value, self.timestamp_ms, ((CORRECTED, app.encode()),))


def corrections(
    plan: Plan, log: str, outputs: str, snapshots: list[str], tables: list[str]
) -> list[Correction]:
    """The corrections of tables, by the outputs of the rounds of a rebuild. Raises OptionError: tasks share a key."""
    wanted, found = _made(plan.app, outputs, snapshots, tables), list[Correction]()
    with closing(open_log(log)) as opened:
        there = {name: _last(opened, name) for name in tables}
    for (topic, key), (_, value, timestamp_ms) in wanted.items():
        record = there[topic].pop(key, None)
        if (None if record is None else record.value) != value and _may_correct(record, plan.app):
            found.append(Correction(topic, key, value, timestamp_ms))
    for topic, records in there.items():
        for key, record in records.items():
            if record.value is not None and _may_correct(record, plan.app):
                found.append(Correction(topic, key, None, record.timestamp_ms))
    return found


def _made(
    app: str, outputs: str, snapshots: Sequence[str], tables: Sequence[str]
) -> dict[tuple[str, bytes], tuple[str, bytes | None, int]]:
    """By table and key: the task, the value and the time of the last output."""
    found: dict[tuple[str, bytes], tuple[str, bytes | None, int]] = {}
    for snapshot in snapshots:
        folder = Place.at(outputs) / app / snapshot
        for name in sorted(one.name for one in folder.entries() if one.name.startswith("outputs-")):
            task = name.split("-")[1]
            for _, one in read_outputs(folder / name):
                if one.topic not in tables:
                    continue
                place = one.topic, one.key or b""
                if found.get(place, (task,))[0] != task:
                    raise OptionError(
                        f"tasks {int(found[place][0])} and {int(task)} both write the key {place[1]!r} of {one.topic!r}, so no "
                        "rebuild can tell which of the two is last",
                        hint="Upgrade with --outputs keep.",
                    )
                found[place] = task, one.value, one.timestamp_ms
    return found


def _last(log: Log, topic: str) -> dict[bytes, InputRecord]:
    return {
        one.key or b"": one for number in range(log.partitions(topic)) for one in scan(log, topic, number)
    }


def _may_correct(record: InputRecord | None, app: str) -> bool:
    """Whether the last record of a key is of this app, or an earlier correction."""
    return (
        record is None
        or origin_of(record, app.encode()) is not None
        or (CORRECTED, app.encode()) in (record.headers or ())
    )
