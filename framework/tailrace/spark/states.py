"""A snapshot as tables.

============================  ===================================================================================
``actor``                     a row for each key: ``key`` and the actor's plain fields
``actor``, ``field``          a row for each entry: ``key``, ``entry`` (of a map) or ``position`` (of a list), ``value``,
                              ``expires``
``table=timers``              pending timers: ``actor``, ``key``, ``domain``, ``name``, ``time``, ``depth``; with an
                              ``actor``, its own, and the key by its type. ``time`` is
                              null where it is beyond the timestamps that Spark has
``table=state``               every row of state as it is stored
============================  ===================================================================================

Of a full snapshot, only the needed Parquet columns and row groups are read. For a key, only its task is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import datasource as ds
from pyspark.sql import types

from tailrace.core.errors import UsageError
from tailrace.core.values.keys import key_codec_for
from tailrace.core.values.partitioner import partition_of
from tailrace.processes.app_loading import find_app
from tailrace.spark.columns import MisfitError, arrow_schema, batch, compute, in_spark, pa, struct_type
from tailrace.spark.options import OF_TOPICS, Options, reported
from tailrace.spark.topics import chosen
from tailrace.state.columns import Column, micros, plain
from tailrace.state.snapshots import Snapshot, Snapshots
from tailrace.state.snapshots.actors import ENTRY, StoredActor, stored_actor, timers_of

_BINARY, _STRING, _INSTANT = types.BinaryType(), types.StringType(), types.TimestampType()
_STORED = (
    Column("partition", types.IntegerType()),
    Column("actor", _STRING),
    Column("key", _BINARY),
    Column("kind", _STRING),
    Column("field", _STRING),
    Column("entry", _BINARY),
    Column("value", _BINARY),
    Column("expires", _INSTANT),
)


@dataclass(frozen=True)
class TaskPart(ds.InputPartition):
    """The slice of one task of Spark: a task of the snapshot."""

    partition: int


class StateTable:
    """One table of a snapshot, by the options.
    Raises TailraceError: an option is wrong, or names something that does not exist.
    """

    def __init__(self, options: Options, snapshot: Snapshot | None = None) -> None:
        options.refuse(*OF_TOPICS, because="it belongs to a log, but this is a snapshot")
        self.options = options
        self.snapshot = opened(options) if snapshot is None else snapshot
        self.kind = options.one_of("table", "actor", "timers", "state")
        self.actor: StoredActor | None = None
        if self.kind == "actor" or (self.kind == "timers" and "actor" in options):
            self.actor = stored_actor(self.snapshot.manifest, options.required("actor"))
        else:
            options.refuse("actor", because=f"the table {self.kind} has all actors")
        self.field = None
        if "field" in options:
            if self.kind != "actor" or self.actor is None:
                options.refuse("field", because="it goes with an actor's own table")
            else:
                self.field = self.actor.collection(options.required("field"))
        self.columns = chosen(self._all_columns(), options.names("columns"))

    def __reduce__(self) -> tuple[Any, ...]:
        return StateTable, (self.options, self.snapshot)

    def cut(self) -> dict[str, str]:
        """Which snapshot is read: see ``cut``."""
        return {"app": self.snapshot.manifest.app, "id": self.snapshot.manifest.id}

    def _all_columns(self) -> list[Column]:
        if self.kind == "timers":
            key = Column("key", _BINARY)
            if self.actor is not None:
                key = in_spark(self.actor.key_column())._replace(name="key")
            return [
                Column("actor", _STRING),
                key,
                Column("domain", _STRING),
                Column("name", _STRING),
                Column("time", _INSTANT),
                Column("depth", types.IntegerType()),
            ]
        if self.actor is None:
            return list(_STORED)
        key = in_spark(self.actor.key_column())
        if self.field is not None:
            return [key, *map(in_spark, self.actor.entry_columns(self.field)), Column("expires", _INSTANT)]
        return [key, *map(in_spark, self.actor.field_columns())]

    def keys(self) -> frozenset[bytes] | None:
        """The keys to read, encoded; None for all."""
        return self.options.keys(key_codec_for(bytes) if self.actor is None else self.actor.key_codec)


def opened(options: Options) -> Snapshot:
    """The snapshot that the options name. ``app`` is the app's name, or where it is declared."""
    name = options.required("app")
    app = find_app(name).plan().app if ":" in name else name
    return Snapshots(options.required("snapshot"), app).open(options.get("id") or "latest")


class StateTableReader(ds.DataSourceReader):
    """Reads a table of a snapshot."""

    def __init__(self, table: StateTable) -> None:
        self.table = table
        self.keys = table.keys()

    def partitions(self) -> list[ds.InputPartition]:
        """The tasks that can have a row that is asked for."""
        count = self.table.snapshot.manifest.partitions
        numbers = range(count) if self.keys is None else {partition_of(key, count) for key in self.keys}
        return [TaskPart(number) for number in sorted(numbers)]

    def read(self, partition: ds.InputPartition) -> Iterator[Any]:
        """The record batches of a task."""
        if not isinstance(partition, TaskPart):
            return  # nothing is left to read: Spark makes one partition of its own
        with reported():
            yield from self._batches(partition)

    def _batches(self, partition: TaskPart) -> Iterator[Any]:
        columns = self.table.columns
        schema = arrow_schema(struct_type(columns))
        names = [one.name for one in columns]
        for values, count in self._values(partition.partition, names):
            if count:
                try:
                    yield batch(schema, columns, [values[name] for name in names])
                except MisfitError as error:
                    hint = "Leave the column out (option columns), or read the stored rows (table=state)."
                    raise UsageError(str(error), hint=hint) from error

    def _values(self, number: int, names: Sequence[str]) -> Iterator[tuple[dict[str, Any], int]]:
        table = self.table
        if table.kind == "timers":
            return self._timers(number)
        if table.actor is None:
            return self._stored(number, names)
        if table.field is None:
            return self._instances(number, table.actor, names)
        return self._entries(number, table.actor)

    def _filter(self, actor: str | None, **equal: Sequence[str]) -> Any:
        found: list[Any] = [] if actor is None else [compute.field("actor") == actor]
        for name, values in equal.items():
            found.append(compute.field(name).isin(list(values)))
        if self.keys is not None:
            found.append(compute.field("key").isin(pa.array(sorted(self.keys), pa.binary())))
        whole = None
        for one in found:
            whole = one if whole is None else whole & one
        return whole

    def _instances(
        self, number: int, actor: StoredActor, names: Sequence[str]
    ) -> Iterator[tuple[dict[str, Any], int]]:
        fields = [name for name in names if name != actor.key_name]
        read = actor.instances(fields, number)
        columns = ["key", "value"] if fields else ["key"]
        filter_ = self._filter(actor.name, kind=("value",))
        for found in self.table.snapshot.batches("state", number, columns, filter_):
            keys, values = read(found)
            yield {actor.key_name: plain(keys), **values}, len(keys)

    def _entries(self, number: int, actor: StoredActor) -> Iterator[tuple[dict[str, Any], int]]:
        field = self.table.field
        assert field is not None
        read = actor.entries(field, number)
        where = "entry" if field.kind == "map" else "position"
        kinds = ("entry",) if field.kind == "map" else ("list", "item")
        filter_ = self._filter(actor.name, kind=kinds, field=(field.name,))
        for found in self.table.snapshot.batches("state", number, ENTRY, filter_):
            if entries := read(found):
                keys, places, values, expiries = zip(*entries, strict=True)
                yield (
                    {
                        actor.key_name: plain(keys),
                        where: places,
                        "value": values,
                        "expires": [*map(micros, expiries)],
                    },
                    len(entries),
                )

    def _timers(self, number: int) -> Iterator[tuple[dict[str, Any], int]]:
        actor = self.table.actor
        filter_ = self._filter(None if actor is None else actor.name)
        for found in self.table.snapshot.batches("timers", number, None, filter_):
            names = ("actor", "key", "domain", "name", "time_ms", "depth")
            values: dict[str, Any] = dict(zip(names, timers_of(found, *names), strict=True))
            values["time"] = [*map(micros, values["time_ms"])]
            if actor is not None:
                decode = actor.key_codec.decode
                values["key"] = plain([decode(key) for key in values["key"]])
            yield values, len(values["key"])

    def _stored(self, number: int, names: Sequence[str]) -> Iterator[tuple[dict[str, Any], int]]:
        columns = ["expiry_ms" if name == "expires" else name for name in names if name != "partition"]
        for found in self.table.snapshot.batches("state", number, columns or ["key"], self._filter(None)):
            values = {name: _plain(found, name) for name in columns}
            if "expiry_ms" in values:
                values["expires"] = [*map(micros, values["expiry_ms"])]
            yield {**values, "partition": [number] * found.num_rows}, found.num_rows


def _plain(found: Any, name: str) -> list[Any]:
    values: list[Any] = found.column(name).to_pylist()
    return values
