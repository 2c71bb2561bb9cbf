"""Point-in-time rows: the state of a key as of a time, for each row of a file of keys and times.

The result has the rows of the file in their order, with all their columns, and then the fields of the actor; a map or
list is one column. A key that had no state at its time has nulls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from tailrace.core.declare.event_time import YEAR_2200_MS
from tailrace.core.declare.plan import ActorPlan
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.value_rows import KeyRows
from tailrace.core.errors import TailraceError, UsageError
from tailrace.core.values.partitioner import partition_of
from tailrace.core.values.type_schemas import FieldSchema
from tailrace.lab.passes import Point
from tailrace.lab.state_tables import Values, free_name, key_columns
from tailrace.state.columns import Column
from tailrace.state.snapshots.actors import Entry, StoredActor
from tailrace.state.snapshots.arrow import compute, pa, parquet

TIME = "time"
_AT_ONCE = 20_000
_SECONDS = range(1_000_000_000, 2_100_000_000)
"""From 2001 to 2036. In milliseconds, these are some days of January 1970."""


def read_points(path: Path, actor: ActorPlan, partitions: int) -> tuple[Any, dict[int, list[Point]]]:
    """Read a Parquet file with the columns of the key and ``time``: a timestamp, or milliseconds since 1970. Returns its
    ``pyarrow.Table``, and the points by partition.

    Raises UsageError: the file cannot be read, lacks a column, or has a row without a key or a time.
    """
    names = [one.name for one in key_columns("key", actor.schema.key)]
    try:
        table = parquet.read_table(path)
        times = table.column(TIME)
        if not ((is_number := pa.types.is_integer(times.type)) or pa.types.is_timestamp(times.type)):
            raise ValueError(
                f"the column {TIME} is of {times.type}, neither timestamps nor integers in milliseconds"
            )
        columns = [table.column(name).to_pylist() for name in names]
        if pa.types.is_timestamp(times.type):
            times = compute.floor_temporal(times, unit="millisecond").cast(
                pa.timestamp("ms", times.type.tz), safe=False
            )
        times_ms = times.cast(pa.int64()).to_pylist()
        rows = zip(times_ms, *columns, strict=True)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise UsageError(
            f"{str(path)!r} cannot be read as points: {error}",
            hint=f"It must be a Parquet file with {', '.join(names)} (the key of {actor.name}) and {TIME} (a timestamp).",
        ) from error
    given = [one for one in times_ms if one is not None]
    most = max(given, default=0)
    if is_number and given and (most > YEAR_2200_MS or all(one in _SECONDS for one in given)):
        is_large = most > YEAR_2200_MS
        one = most if is_large else given[0]
        after = "after the year 2200" if is_large else instant(one)
        raise UsageError(
            f"the column {TIME} of {str(path)!r} holds integers such as {one}, which is {after} in milliseconds: "
            f"is it in {'microseconds or nanoseconds' if is_large else 'seconds'}?",
            hint=f"{'Divide' if is_large else 'Multiply'} it, so that it is in milliseconds, or write timestamps.",
        )
    found: dict[int, list[Point]] = defaultdict(list)
    for number, (time_ms, *values) in enumerate(rows):
        if time_ms is None:
            raise UsageError(
                f"row {number + 1} of {str(path)!r} has no {TIME}: it is null or NaT",
                hint="Remove or correct the row.",
            )
        given = values if actor.schema.key.kind == "tuple" else values[0]
        try:
            key = msgspec.convert(given, actor.key_codec.type, builtin_types=(bytes, date))
            place = partition_of(actor.key_codec.encode(key), partitions)
            found[place].append(Point(time_ms, number, key))
        except (msgspec.ValidationError, TailraceError) as error:
            raise UsageError(
                f"row {number + 1} of {str(path)!r} has no key of {actor.name}: {error}",
                hint="Remove or correct the row.",
            ) from error
    return table, found


def point_columns(points: Any, actor: StoredActor) -> list[Column]:
    """The columns of the result: those of the points, the plain fields, and the maps and lists."""
    found = [Column(one.name, one.type) for one in points.schema]
    fields = [*actor.field_columns(), *map(actor.collection_column, _collections(actor))]
    given, all_names = {one.name for one in found}, [one.name for one in (*found, *fields)]
    return found + [
        one._replace(name=free_name(one.name, all_names)) if one.name in given else one for one in fields
    ]


def point_values(points: Any, actor: StoredActor, rows_of: Sequence[tuple[int, KeyRows]]) -> Iterator[Values]:
    """The values of the result, some thousand rows at a time. ``rows_of``: by point, the partition and the rows."""
    names = [one.name for one in point_columns(points, actor)]
    fields = [one.name for one in actor.field_columns()]
    tasks = {number for number, _ in rows_of}
    decoders = {number: actor.decoder(fields, number) for number in tasks}
    readers = {
        number: [_entries_reader(actor, one, number) for one in _collections(actor)] for number in tasks
    }
    for start in range(0, len(rows_of), _AT_ONCE):
        here = points.slice(start, _AT_ONCE).combine_chunks()
        columns: list[Any] = [one.combine_chunks() for one in here.columns]
        some = rows_of[start : start + _AT_ONCE]
        instances: list[Mapping[str, Any]] = [
            decoders[number]([Entry(b"", "value", None, found[b""])])[0] if found else {}
            for number, found in some
        ]
        columns += [[one.get(name) for one in instances] for name in fields]
        columns += [
            [readers[number][at](found) if found else None for number, found in some]
            for at in range(len(_collections(actor)))
        ]
        yield dict(zip(names, columns, strict=True))


def _collections(actor: StoredActor) -> list[FieldSchema]:
    return [one for one in actor.schema.fields if one.kind != "value"]


def _entries_reader(actor: StoredActor, field: FieldSchema, number: int) -> Callable[[KeyRows], list[Any]]:
    """Reads a collection from the rows of a key: values, or pairs of a key and a value."""
    place_of, value_of = actor.place_decoder(field), actor.entry_decoder(field, number)
    place, value = actor.entry_columns(field)
    is_map = field.kind == "map"
    prefix = (b"m" if is_map else b"l") + field.name.encode() + b"\0"

    def read(found: KeyRows) -> list[Any]:
        # The bounds of a list are the first of its rows.
        rests = sorted(rest for rest in found if rest.startswith(prefix) and (is_map or rest != prefix))
        entries = [Entry(b"", "entry", rest[len(prefix) :], found[rest]) for rest in rests]
        values = value.values([value_of(one) for one in entries])
        if not is_map:
            return list(values)
        return list(zip(place.values([place_of(one) for one in entries]), values, strict=True))

    return read
