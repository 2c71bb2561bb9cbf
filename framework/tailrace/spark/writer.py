"""Writes a changed actor table as a new snapshot:
``df.write.format("tailrace").mode("append").options(...).save()``.

Theory. The new snapshot is an incremental one upon the one that is named (``id``), or that the table was read
from, or the latest one if the table comes from elsewhere. It is of source "edited": it has the cut of its
parent, so a service starts from it where it would have started from that. It holds the changed rows: each row of the table is the
instance of its key. The plain fields that are columns get these values; others, the key's maps, lists and timers, and all other keys stay
as they are. A key that was not there begins with defaults.

1. Every task of Spark checks and encodes its rows with the app's code, and leaves them in its own file.
2. When all have ended, the driver joins them with the rows of the parent, and writes the tables; then it
  publishes the manifest.

A failed, retried or repeated task leaves a file that nobody names. Nothing is a snapshot before the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
from pyspark.sql import types
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan
from tailrace.core.declare.schema import decode_schemas, encode_schemas
from tailrace.core.engine.evolution import evolve
from tailrace.core.engine.value_rows import carrying, joined, raw_fields
from tailrace.core.errors import BadRecordError, IncompatibleStateError, TailraceError, UsageError
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.partitioner import partition_of
from tailrace.core.values.type_schemas import TypeSchema
from tailrace.core.values.types import CODEC_ERRORS
from tailrace.processes.app_loading import find_app
from tailrace.spark.columns import Restore, arrow_schema, compute, pa, restorer
from tailrace.spark.cut import cut_of
from tailrace.spark.options import Options, reported
from tailrace.state.columns import plain
from tailrace.state.snapshots import (
    Draft,
    FileInfo,
    Manifest,
    Place,
    Snapshot,
    Snapshots,
    TaskEntry,
    write_task,
)
from tailrace.state.snapshots.actors import stored_actor

_BUILTIN = (bytes, datetime, date, timedelta)
_Edit = tuple[bytes, dict[str, bytes]]
_encode, _decode_edits = (
    msgspec.msgpack.Encoder().encode,
    msgspec.msgpack.Decoder(dict[int, list[_Edit]]).decode,
)


@dataclass
class Edited(WriterCommitMessage):
    """The file in the draft's folder that one task of Spark has written."""

    file: str


@dataclass(frozen=True)
class _Field:
    name: str
    attr: str
    type: Any
    restore: Restore
    is_open: bool
    """Whether it may hold datetimes with and without a zone, which look alike in a table."""


@dataclass(frozen=True)
class _Code:
    """What the app's code says of the actor and of the columns that are written."""

    actor: ActorPlan
    key_name: str
    fields: tuple[_Field, ...]
    carried: frozenset[str]
    """Plain fields that rows have and nothing declares any more."""


@dataclass
class StateWriter(DataSourceArrowWriter):
    """Writes one actor's table. Made on the driver, and taken to the tasks of Spark."""

    options: Options
    schema: types.StructType
    draft: Draft = field(init=False)
    parent: Snapshot = field(init=False)

    def __post_init__(self) -> None:
        self._check_options()
        snapshots = self._snapshots()
        self.parent = snapshots.open(self.options.get("id") or self._read_from(snapshots.app) or "latest")
        self._code()
        self.draft = snapshots.begin()

    # --- what is written to

    def _check_options(self) -> None:
        self.options.refuse(
            *("field", "table", "log", "topic", "columns", "keys"),
            because="an actor's own table is written, as a whole row",
        )
        if ":" not in self.options.required("app"):
            raise UsageError(
                f"app is {self.options.required('app')!r}: the app's code has to check what is written",
                hint="Write the module and the app in it: package.module:app.",
            )

    def _read_from(self, app: str) -> str | None:
        """The snapshot that the table was read from: the service may have taken others since."""
        read = cut_of(self.schema) or {}
        return read.get("id") if read.get("app") == app else None

    def _snapshots(self) -> Snapshots:
        app = find_app(self.options.required("app")).plan().app
        return Snapshots(self.options.required("snapshot"), app)

    def _actor(self) -> ActorPlan:
        plan, name = find_app(self.options.required("app")).plan(), self.options.required("actor")
        actors = {one.name: one for one in plan.actors}
        if name not in actors:
            raise UsageError(
                f"the app {plan.app!r} has no actor {name!r}",
                hint=did_you_mean(name, actors, f"It has {', '.join(actors)}."),
            )
        return actors[name]

    def _code(self) -> _Code:
        """The code, loaded in each process. Its declaration of the actor must equal the snapshot's schema."""
        actor = self._actor()
        shown = stored_actor(self.parent.manifest, actor.name)
        # The schema of rows that this code has written stays as it is under it. A task may not have committed
        # since.
        ways = [(one, *evolve(one, actor.schema)) for one in shown.of_tasks.values()]
        can_be_read = all(change.kind != "incompatible" for *_, changes in ways for change in changes)
        if not can_be_read or not any(one == now for one, now, _ in ways):
            raise IncompatibleStateError(
                "the declaration of the actor is not the one that the snapshot was written with",
                actor=actor.name,
                hint="Write with that version of the code, or first take a snapshot with this version.",
            )
        key_name = shown.key_name
        if key_name not in self.schema.names:
            raise UsageError(
                f"the table has no column {key_name!r}", hint="Add the column: it has the key of each row."
            )
        names = [name for name in self.schema.names if name != key_name]
        carried = {one.name for one in shown.plain_fields()} - {one.name for one in actor.schema.fields}
        return _Code(actor, key_name, tuple(_field(actor, name) for name in names), frozenset(carried))

    # --- on the workers

    def write(self, iterator: Iterator[Any]) -> Edited:
        """Check and encode the rows of one task."""
        code, count = self._code(), self.parent.manifest.partitions
        # In the session's own zone the last instants there are would be none.
        in_utc = arrow_schema(self.schema)
        edits: dict[int, list[_Edit]] = {}
        with reported():
            for batch in iterator:
                for key, values in _edits(code, batch, in_utc):
                    edits.setdefault(partition_of(key, count), []).append((key, values))
        name = f"edits-{uuid4().hex}"
        (Place.at(self.draft.folder_uri) / name).write(_encode(edits))
        return Edited(name)

    # --- on the driver

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Join the files of the tasks with the parent's rows, and publish."""
        try:
            self._publish([one.file for one in messages if isinstance(one, Edited)])
        except TailraceError:
            self._discard()
            raise

    def _publish(self, names: Sequence[str]) -> None:
        folder, code = Place.at(self.draft.folder_uri), self._code()
        edits: dict[int, dict[bytes, dict[str, bytes]]] = {}
        for name in names:
            for number, some in _decode_edits((folder / name).read()).items():
                found = edits.setdefault(number, {})
                for key, values in some:
                    if key in found:
                        raise UsageError(
                            f"the key {code.actor.key_codec.decode(key)!r} is in two rows of the table",
                            hint="Give each key one row.",
                        )
                    found[key] = values
        before = self.parent.manifest
        tasks = tuple(self._task(code, one, edits.get(one.partition, {})) for one in before.tasks)
        for name in names:
            (folder / name).remove()
        manifest = Manifest(
            id=self.draft.id,
            app=before.app,
            version=before.version,
            partitions=before.partitions,
            created_ms=self.draft.created_ms,
            kind="incremental",
            parent=before.id,
            name=self.options.get("name"),
            source="edited",
            environment=before.environment,
            ends=before.ends,
            keys=before.keys,
            tasks=tasks,
            notes=(
                *before.notes,
                f"{code.actor.name} was edited: {sum(map(len, edits.values()))} rows were written",
            ),
        )
        self._snapshots().publish(manifest)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 (all of it goes)
        """Take away what there is."""
        self._discard()

    def _discard(self) -> None:
        Place.at(self.draft.folder_uri).remove_folder()

    def _task(self, code: _Code, task: TaskEntry, edits: Mapping[bytes, dict[str, bytes]]) -> TaskEntry:
        name = code.actor.name
        before = _as_read(code.actor, self._before(name, task.partition, [*edits]))
        if edits and not task.cut:
            raise UsageError(
                f"partition {task.partition} has seen no event yet: nothing can be written to it",
                hint="Let the service see an event of such a key first.",
            )
        prefix = rows.actor_prefix(name)
        changed = sorted(
            (prefix + rows.escaped(key), _row(code, before.get(key), values)) for key, values in edits.items()
        )
        files: tuple[FileInfo, ...] = ()
        messages = [*self.parent.messages(task.partition)]  # they are not looked for in parents
        if changed or messages:
            files = write_task(self.draft.folder_uri, task.partition, "edited", changed, messages=messages)
        schema = _with(code.actor, task.schema) if edits else task.schema
        return msgspec.structs.replace(task, schema=schema, files=files)

    def _before(self, actor: str, number: int, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The value rows of some keys in the parent."""
        wanted: Any = (compute.field("actor") == actor) & (compute.field("kind") == "value")
        wanted &= compute.field("key").isin(pa.array(sorted(keys), pa.binary()))
        found: dict[bytes, bytes] = {}
        for batch in self.parent.batches("state", number, ["key", "value"], wanted):
            found.update(zip(*(batch.column(name).to_pylist() for name in ("key", "value")), strict=True))
        return found


def _as_read(actor: ActorPlan, found: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Value rows with every field that the code reads from them."""
    defaults = {one.name: one.default for one in actor.schema.fields if one.kind == "value" and one.default}
    read: dict[bytes, bytes] = {}
    for key, row in found.items():
        start = rows.start_of_fields(row)
        known = raw_fields(row[start:])
        absent = {name: default for name, default in defaults.items() if name not in known}
        read[key] = row[:start] + joined(known | absent)
    return read


def _with(actor: ActorPlan, schema: bytes) -> bytes:
    """The schema row of a task that has rows of an actor as it is declared now."""
    known = decode_schemas(schema) if schema else {}
    there = known.get(actor.name)
    now = actor.schema if there is None else evolve(there, actor.schema)[0]
    return schema if there == now else encode_schemas({**known, actor.name: now})


def _field(actor: ActorPlan, name: str) -> _Field:
    """A plain field by its column. Raises UsageError."""
    stored = {one.name: one for one in actor.schema.fields}
    cls: Any = actor.cls
    declared = {one.encode_name: one for one in msgspec.structs.fields(cls)}
    if name not in declared:
        kind = ", but a MapState or ListState" if name in stored else ""
        raise UsageError(
            f"the column {name!r} is not a plain field of {actor.name}{kind}",
            hint=did_you_mean(name, declared, f"Its fields are {', '.join(declared)}. Drop the column."),
        )
    if stored[name].ttl_ms is not None:
        raise UsageError(
            f"the field {name!r} of {actor.name} expires: when, is not in the table", hint="Drop the column."
        )
    schema = stored[name].type
    return _Field(name, declared[name].name, declared[name].type, restorer(schema), _is_open(schema))


def _is_open(schema: TypeSchema) -> bool:
    if schema.kind == "datetime":
        return "tz" not in schema.limits
    return any(map(_is_open, (*schema.of, *(one.type for one in schema.fields))))


def _edits(code: _Code, batch: Any, schema: Any) -> Iterator[_Edit]:
    """The rows of a batch: keys, and the encoded values of fields, by the columns of the schema."""
    actor, key_type = code.actor, code.actor.key_codec.type
    restore = restorer(actor.schema.key)
    columns: dict[str, list[Any]] = {
        one.name: batch.column(one.name).cast(one.type).to_pylist() for one in schema
    }
    for at, shown in enumerate(columns[code.key_name]):
        try:
            restored = None if shown is None else restore(shown)
            key = actor.key_codec.encode(msgspec.convert(restored, key_type, builtin_types=_BUILTIN))
        except (msgspec.ValidationError, BadRecordError, TypeError, KeyError) as error:
            reason = error.what if isinstance(error, BadRecordError) else str(error)
            raise UsageError(f"{shown!r} is not a key of {actor.name}: {reason}") from None
        yield key, {one.name: _encoded(actor, one, columns[one.name][at], shown) for one in code.fields}


def _encoded(actor: ActorPlan, one: _Field, value: Any, key: Any) -> bytes:
    """The value of a field, checked. Raises UsageError."""
    try:
        restored = None if value is None else one.restore(value)
        return _encode(msgspec.convert(restored, one.type, builtin_types=_BUILTIN))
    except (*CODEC_ERRORS, KeyError) as error:
        raise UsageError(
            f"{actor.name} {key!r}: {value!r} is not a value for the field {one.name!r}: {error}",
            hint="Cast the column to the field's type.",
        ) from None


def _row(code: _Code, before: bytes | None, values: Mapping[str, bytes]) -> bytes:
    """The value row of a key: its flags and timers, and its fields as the actor's own codec writes them, settled."""
    actor = code.actor
    encode, encode_unsettled, decode = (
        carrying(actor, code.carried)
        if code.carried
        else (actor.encode, actor.encode_unsettled, actor.decode)
    )
    start = 0 if before is None else rows.start_of_fields(before)
    instance = actor.new() if before is None else decode(before[start:])
    for one in code.fields:
        value = msgspec.msgpack.decode(values[one.name], type=one.type)
        if one.is_open and before is not None and hasattr(instance, one.attr):
            old = getattr(instance, one.attr)
            if _encode(_zoned(plain(old))) == _encode(_zoned(plain(value))):
                continue  # as it was read
        setattr(instance, one.attr, value)
    missing = [name for name in actor.required if not hasattr(instance, name)]
    if missing:
        raise UsageError(
            f"a new instance of {actor.name} needs a value for {', '.join(missing)}",
            hint="Give the table that column.",
        )
    if actor.seal is not None:
        actor.seal(instance)
    settled = decode(encode_unsettled(instance))
    return (rows.PLAIN if before is None else before[:start]) + encode(settled)


def _zoned(value: Any) -> Any:
    """A plain value with the zone that a table shows where there is none."""
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if value.__class__ is dict:
        return [[_zoned(key), _zoned(one)] for key, one in value.items()]
    if value.__class__ in (list, tuple):
        return [_zoned(one) for one in value]
    return value
