"""Services that have lived, and what their rebuilt snapshots have to equal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.records import InputRecord, Output
from tailrace.history.dead_letters.letters import DeadLetter
from tailrace.history.dead_letters.redriving import How, close_letters
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.request import Destination, Request, Source
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.state.snapshots import Manifest, Snapshot, Snapshots
from tailrace.state.snapshots.arrow import parquet
from tests.runtime.tallies import ticks

TALLY = "tests.runtime.served:app"


class TaskState(NamedTuple):
    """What a task's state is, byte for byte."""

    cut: bytes | None
    position: int
    schema: bytes | None
    rows: list[tuple[bytes, bytes]]


def live(folder: Path, plan: Plan) -> list[TaskState]:
    """What the changelog says of every task."""
    log = EmbeddedLog(folder / "log", create=False)
    try:
        history = AppHistory(plan, log)
        found: list[TaskState] = []
        for number in range(plan.partitions):
            one = history.committed(number, with_rows=True)
            assert one.rows is not None
            kept = [(row, value) for row, value in one.rows.rows() if row[:1] == rows.STATE]
            found.append(TaskState(one.cut, one.position, one.rows.get(rows.SCHEMA_ROW), kept))
        return found
    finally:
        log.close()


def fields(states: list[TaskState]) -> dict[tuple[str, str], dict[str, Any]]:
    """The fields of each actor and key."""
    pairs = [(rows.read_state_row(row), value) for one in states for row, value in one.rows]
    return {
        (one.actor, one.key.decode()): msgspec.msgpack.decode(value[rows.start_of_fields(value) :])
        for one, value in pairs
        if not one.rest
    }


def rebuilt(snapshot: Snapshot) -> list[TaskState]:
    """What a snapshot says of every task."""
    return [
        TaskState(
            one.cut or None,
            one.changelog_position if one.changelog_position is not None else -1,
            one.schema or None,
            list(snapshot.rows(one.partition)),
        )
        for one in snapshot.manifest.tasks
    ]


def request(folder: Path, app: str = TALLY, **options: Any) -> Request:
    source, to = Source(log=str(folder / "log")), Destination(uri=str(folder / "snapshots"))
    return changed(Request(app=app, source=source, to=to), **options)


def changed(asked: Request, **options: Any) -> Request:
    """A request with other options, by the names of their fields, whichever group they are in."""
    for name in ("source", "to", "failures", "execution"):
        group = getattr(asked, name)
        own = {field: options.pop(field) for field in group.__struct_fields__ if field in options}
        asked = replace(asked, **{name: replace(group, **own)})
    return replace(asked, **options)


def done(
    folder: Path, app: str = TALLY, processes: int = 1, **options: Any
) -> tuple[RebuildReport, Snapshot]:
    """Rebuild, and open what was made."""
    asked = request(folder, app, **options)
    report = rebuild(asked, LocalEngine(processes))
    return report, opened(asked, report)


def opened(asked: Request, report: RebuildReport) -> Snapshot:
    return Snapshots(asked.to.uri, find_app(asked.app).name).open(report.snapshot)


def serve_tallies(folder: Path, keys: int = 20, rounds: int = 3, *, first_round: int = 0) -> None:
    """The service of ``tests.runtime.served`` lives, or goes on living, to the end of its input."""
    append(folder, ticks(keys, rounds, first_round), {"ticks": 4})
    live_on(folder, TALLY)


def append(folder: Path, outputs: list[Output], topics: dict[str, int]) -> None:
    log = EmbeddedLog(folder / "log")
    for name, partitions in topics.items():
        log.create_topic(name, TopicSettings(partitions))
    writer = log.writer("loader")
    writer.append(outputs)
    writer.commit()
    log.close()


def live_on(
    folder: Path,
    app: str,
    from_snapshot: str = "",
    replace: str = "",
    *,
    ends: bool = True,
    state: str = "state",
    **more: Any,
) -> None:
    """Run a service to the end of its input; ``replace`` is a snapshot that takes the place of its state."""
    how: Any = {"end_of_input": True, "after_end": True} if ends else {"until_end": True}
    options = ServiceOptions(
        app, folder / "log", folder / state, commit_interval_ms=20, create_topics=True, log_format="json",
        from_snapshot=from_snapshot or replace, replace_state=bool(replace), **how, **more,
    )  # fmt: skip
    Host(options, find_app(app).plan()).run()


def close(folder: Path, app: str, how: How, wanted: Callable[[DeadLetter], bool] = lambda _: True) -> int:
    """Redrive or drop the open dead letters that are wanted; how many these are."""
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        return len(close_letters(log, app, how, wanted, now_ms=0).done)


def totals(manifest: Manifest) -> list[tape.Totals]:
    return [tape.decode_cut(one.cut).totals for one in manifest.tasks if one.cut]


def read(folder: Path, topic: str) -> list[InputRecord]:
    """All records of a topic."""
    log = EmbeddedLog(folder / "log", create=False)
    try:
        return [record for number in range(log.partitions(topic)) for record in scan(log, topic, number)]
    finally:
        log.close()


def outputs(place: Path, snapshot: Snapshot, topic: str) -> list[Output]:
    """What a rebuild has written to Parquet files of the outputs to a topic."""
    found: list[Output] = []
    for file in sorted((place / snapshot.manifest.app / snapshot.manifest.id).glob("*.parquet")):
        table = parquet.read_table(str(file))
        times = table.column("timestamp").cast("int64").to_pylist()
        for row, time_ms in zip(table.to_pylist(), times, strict=True):
            if row["topic"] == topic:
                headers = tuple((one["key"], one["value"]) for one in row["headers"])
                found.append(Output(topic, row["key"], row["value"], time_ms, headers))
    return found
