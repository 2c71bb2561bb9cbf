"""The states of keys, each as of a time of its own: ``tailrace export --at``.

The app is rebuilt once, in stages, as of the latest of the times. On the way the state of a key is noted: right before its actor
handles, in the key's partition, the first event, timer or expiry that is later than the key's time. Reference data is read ahead: it is no such event.

The result has the rows of the file in their order, with all their columns, and then the fields of the actor. A map or list is one
column, and a key that had no state at its time has nulls.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from tailrace.core.counting import counted
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.observer import Watch, stored_now
from tailrace.core.engine.stages import Stages
from tailrace.core.engine.value_rows import KeyRows
from tailrace.core.errors import TailraceError, UsageError
from tailrace.core.values.partitioner import partition_of
from tailrace.core.values.type_schemas import FieldSchema
from tailrace.history.rebuilding.engines import LocalEngine, OnProgress
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.results import UnitResult
from tailrace.history.rebuilding.units import run_unit
from tailrace.lab.export import Destination, ExportReport, History, exporting
from tailrace.lab.files import TableReport, TableWriter
from tailrace.lab.state_tables import View, chosen_actors, free_name, key_columns, stored_actors
from tailrace.state.columns import Column
from tailrace.state.snapshots.actors import Entry, StoredActor
from tailrace.state.snapshots.arrow import compute, pa, parquet

TIME = "time"
_AT_ONCE = 20_000
Point: TypeAlias = tuple[int, int, Any]
"""A time, the number of the row, and the key."""


def export_points(
    plan: Plan, history: History, to: Destination, actors: Sequence[str], path: Path
) -> ExportReport:
    """Export the state of an actor for each row of a file of keys and times: see the head of this file.

    Raises UsageError: no actor is named and there are several, or the file makes no sense. And what ``rebuild`` raises.
    """
    chosen = chosen_actors(plan, actors)
    if len(chosen) != 1:
        known = ", ".join(one.name for one in plan.actors)
        raise UsageError("points are of one actor", hint=f"Name it (--actor): {known}.")
    inputs = [one for one in plan.inputs if chosen[0].index in one.touches and not one.is_reference]
    if all(one.is_inbox and not chosen[0].messages for one in inputs):
        raise UsageError(
            f"{chosen[0].name} takes nothing but reference data, which is read ahead of the events",
            hint="Export its state as of one time (--as-of).",
        )
    table, points = _read(path, chosen[0], plan.partitions)
    engine = _Noting(Stages(plan).of[chosen[0].index], chosen[0].name, points, history.workers)
    last_ms = max((at for some in points.values() for at, *_ in some), default=0)
    with exporting(plan, "points", to) as (report, folder):
        snapshot = msgspec.structs.replace(history, as_of_ms=last_ms).rebuilt(plan, folder, engine)
        (actor,) = stored_actors(plan, View.of_snapshot(snapshot), [chosen[0].name])
        found = [engine.found[number] for number in range(table.num_rows)]
        report.tables, report.notes = [_write(folder, table, actor, found)], [*snapshot.manifest.notes]
        if without := sum(not some for some in found):
            report.notes.append(f"{counted(without, 'row')} without state at the time: nulls")
    return report


class _Noting(LocalEngine):
    """Runs the stage of an actor in this process, and notes the state of each point. ``found``: the rows of its key, by number."""

    def __init__(
        self, stage: int, actor: str, points: Mapping[int, list[Point]], workers: int | None
    ) -> None:
        super().__init__(workers)
        self._stage, self._actor, self._points = stage, actor, points
        self.found: dict[int, KeyRows] = {}

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        """See ``Engine.run``."""
        if units[0].stage != self._stage:
            yield from super().run(units, on_progress)
            return
        for unit in units:
            left = deque(sorted(self._points.get(unit.partition, ())))
            yield run_unit(unit, Watch(on_time=partial(self._note, left)))
            on_progress()

    def _note(self, left: deque[Point], cells: InstanceCache, actor: ActorPlan, time_ms: int) -> None:
        while left and left[0][0] < time_ms and actor.name == self._actor:
            _, number, key = left.popleft()
            self.found[number] = stored_now(cells, actor, key)


def _read(path: Path, actor: ActorPlan, partitions: int) -> tuple[Any, dict[int, list[Point]]]:
    """Read a Parquet file with the columns of the key and ``time``. Returns its ``pyarrow.Table``, and the points by partition."""
    names = [one.name for one in key_columns("key", actor.schema.key)]
    found, row = defaultdict[int, list[Point]](list), ""
    try:
        table = parquet.read_table(path)
        times = table.column(TIME)
        if not pa.types.is_timestamp(times.type):
            raise ValueError(f"the column {TIME} is of {times.type}, and not of timestamps")
        in_ms = pa.timestamp("ms", times.type.tz)
        times = compute.floor_temporal(times, unit="millisecond").cast(in_ms, safe=False).cast(pa.int64())
        columns = [one.to_pylist() for one in (times, *map(table.column, names))]
        for number, (time_ms, *values) in enumerate(zip(*columns, strict=True)):
            row = f", row {number + 1}"
            given = values if actor.schema.key.kind == "tuple" else values[0]
            key = msgspec.convert(given, actor.key_codec.type, builtin_types=(bytes, date))
            place = partition_of(actor.key_codec.encode(key), partitions)
            found[place].append((msgspec.convert(time_ms, int), number, key))
    except (OSError, ValueError, KeyError, NotImplementedError, TailraceError) as error:
        raise UsageError(
            f"{str(path)!r} cannot be read as points{row}: {error}",
            hint=f"It must be a Parquet file with {', '.join(names)} (the key of {actor.name}) and {TIME} (a timestamp) in each row.",
        ) from error
    return table, found


def _write(folder: Path, table: Any, actor: StoredActor, found: Sequence[KeyRows]) -> TableReport:
    """Write the rows of the file, each with the state that was found. All of it was stored by this code: in one form."""
    plain, columns = actor.field_columns(), [Column(one.name, one.type) for one in table.schema]
    collections = [one for one in actor.schema.fields if one.kind != "value"]
    fields = [*plain, *map(actor.collection_column, collections)]
    taken = [*table.column_names, *(one.name for one in fields)]
    for one in fields:
        name = free_name(one.name, taken) if one.name in table.column_names else one.name
        columns.append(one._replace(name=name))
        taken.append(name)
    decode = actor.decoder([one.name for one in plain], 0)
    readers = [_entries_reader(actor, one) for one in collections]

    def state(some: KeyRows) -> list[Any]:
        if not some:
            return [None] * len(fields)
        (values,) = decode([Entry(b"", "value", None, some[b""])])
        return [*(values.get(one.name) for one in plain), *(read(some) for read in readers)]

    writer = TableWriter(folder, actor.name, columns)
    for start in range(0, len(found), _AT_ONCE):
        given = [one.combine_chunks() for one in table.slice(start, _AT_ONCE).combine_chunks().columns]
        states = map(list, zip(*map(state, found[start : start + _AT_ONCE]), strict=True))
        names = (one.name for one in columns)
        writer.write(dict(zip(names, [*given, *states], strict=True)), actor.name)
    return writer.close()


def _entries_reader(actor: StoredActor, field: FieldSchema) -> Callable[[KeyRows], list[Any]]:
    """Reads a collection from the rows of a key: values, or pairs of a key and a value."""
    place_of, value_of = actor.place_decoder(field), actor.entry_decoder(field, 0)
    place, value = actor.entry_columns(field)
    prefix = field.kind[:1].encode() + field.name.encode() + b"\0"

    def read(found: KeyRows) -> list[Any]:
        rests = sorted(rest for rest in found if rest.startswith(prefix))
        entries = [Entry(b"", "entry", rest[len(prefix) :], found[rest]) for rest in rests]
        if field.kind == "list":
            return list(value.values([value_of(one) for one in entries[1:]]))  # after the bounds of the list
        values = value.values([value_of(one) for one in entries])
        return list(zip(place.values([place_of(one) for one in entries]), values, strict=True))

    return read
