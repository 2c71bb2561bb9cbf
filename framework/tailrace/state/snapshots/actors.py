"""The stored state of an actor as columns: its fields and collections, by the stored schema.

The schema is in the snapshot, so a table does not need the app's code. A field that is missing in a row has
the value that the code would read: the default with which the field was added. It is null where the task does
not have the field yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, NamedTuple

import msgspec

from tailrace.core import rows
from tailrace.core.declare.schema import decode_schemas
from tailrace.core.engine.evolution import evolve
from tailrace.core.errors import CorruptStateError, IncompatibleStateError, UsageError
from tailrace.core.formats import check_format
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.keys import KeyCodec, key_codec_for
from tailrace.core.values.map_keys import map_key_codec_for
from tailrace.core.values.stored_types import stored_struct, stored_type
from tailrace.core.values.type_schemas import ActorSchema, FieldSchema
from tailrace.state.columns import Column, column, columns_of, plain
from tailrace.state.snapshots.arrow import pa
from tailrace.state.snapshots.manifest import Manifest

_HALF = 1 << 63
ENTRY = ("key", "kind", "entry", "value", "expiry_ms")
"""The columns of the state table that the entries of a collection are read from."""


class Entry(NamedTuple):
    """A row of the state table of a snapshot, as far as it is needed: key, kind, entry, value."""

    key: bytes
    kind: str
    entry: bytes | None
    value: bytes


@dataclass(frozen=True, slots=True)
class StoredActor:
    """An actor of a snapshot, by the schemas of all tasks, and of each task by number."""

    name: str
    schema: ActorSchema
    of_tasks: Mapping[int, ActorSchema] = field(default_factory=dict[int, ActorSchema])

    @property
    def key_codec(self) -> KeyCodec:
        """For its keys."""
        return key_codec_for(stored_type(self.schema.key))

    @property
    def key_name(self) -> str:
        """The name of the key's column: one that is no field."""
        names = {one.name for one in (*self.schema.fields, *self.schema.past)}
        name = "key"
        while name in names:
            name = f"_{name}"
        return name

    def key_column(self) -> Column:
        """The column of its keys."""
        return Column(self.key_name, *column("", self.schema.key)[1:])

    def plain_fields(self) -> list[FieldSchema]:
        """The fields that lie in one row together. One of the past that is declared again is that field."""
        # Of several of the past, the last is the widest.
        named = {one.name: one for one in (*self.schema.fields, *self.schema.past)}
        named.update((one.name, one) for one in self.schema.fields)
        return [one for one in named.values() if one.kind == "value"]

    def collection(self, name: str) -> FieldSchema:
        """A field whose entries are rows of their own. Raises UsageError."""
        found = [
            one
            for one in (*self.schema.fields, *self.schema.past)
            if one.name == name and one.kind != "value"
        ]
        if found:
            return found[0]
        known = [one.name for one in self.schema.fields if one.kind != "value"]
        raise UsageError(
            f"the actor {self.name!r} stores no MapState or ListState as {name!r}",
            hint=did_you_mean(
                name,
                known,
                f"Its collections are: {', '.join(known)}."
                if known
                else "Its fields are columns of its own table.",
            ),
        )

    def field_columns(self) -> list[Column]:
        """A column for each plain field."""
        return columns_of(self.plain_fields())

    def decoder(
        self, names: Sequence[str], number: int
    ) -> Callable[[Sequence[Entry]], list[Mapping[str, Any]]]:
        """Decodes a task's value rows: the fields of these names. One that is not known is left out."""
        fields = [self._in_task(one, number) for one in self.plain_fields() if one.name in names]
        decode = msgspec.msgpack.Decoder[Any](stored_struct(fields)).decode

        def decoded(entries: Sequence[Entry]) -> list[Mapping[str, Any]]:
            found: list[Any] = []
            for one in entries:
                if one.value[0] & 0xF0 != rows.FORMAT:
                    check_format(f"the state of {self.name} {one.key!r}", one.value[0] >> 4, rows.FORMAT >> 4)
                try:
                    found.append(decode(one.value[rows.start_of_fields(one.value) :]))
                except (msgspec.MsgspecError, ValueError) as error:
                    raise self._corrupt(one, error) from error
            shown: list[Mapping[str, Any]] = plain(found)
            return shown

        return decoded

    def instances(
        self, names: Sequence[str], number: int
    ) -> Callable[[Any], tuple[list[Any], dict[str, Any]]]:
        """Reads batches of a task's value rows: the keys, and the values of the fields of these names."""
        decode, key_of = self.decoder(names, number), self.key_codec.decode

        def read(found: Any) -> tuple[list[Any], dict[str, Any]]:
            keys: list[bytes] = found.column("key").to_pylist()
            shown: list[Mapping[str, Any]] = []
            if names:
                stored = zip(keys, found.column("value").to_pylist(), strict=True)
                shown = decode([Entry(key, "value", None, one) for key, one in stored])
            return list(map(key_of, keys)), {name: [one.get(name) for one in shown] for name in names}

        return read

    def entries(self, field: FieldSchema, number: int) -> Callable[[Any], list[tuple[Any, Any, Any, Any]]]:
        """Reads batches of a task's rows of a collection: for each entry key, place, value, and expiry in ms or None."""
        place_of, value_of = self.place_decoder(field), self.entry_decoder(field, number)
        key_of = self.key_codec.decode

        def read(found: Any) -> list[tuple[Any, Any, Any, Any]]:
            *columns, expiries = (found.column(name).to_pylist() for name in ENTRY)
            entries = [Entry(*one) for one in zip(*columns, strict=True)]
            places = [place_of(one) for one in entries]
            return [
                (key_of(one.key), place, value_of(one), expiry_ms)
                for one, place, expiry_ms in zip(entries, places, expiries, strict=True)
                if one.kind != "list"
            ]

        return read

    def _in_task(self, field: FieldSchema, number: int) -> FieldSchema:
        """A field as a task has it; without its default if the task does not have it."""
        of_task = self.of_tasks.get(number, self.schema).fields
        known = [one for one in of_task if one.name == field.name]
        return known[0] if known else msgspec.structs.replace(field, default=None)

    def entry_columns(self, field: FieldSchema) -> list[Column]:
        """The columns of a collection's entries: where it is, and what."""
        if field.kind == "map" and field.key is not None:
            return [column("entry", field.key), column("value", field.type)]
        return [Column("position", pa.int64()), column("value", field.type)]

    def collection_column(self, field: FieldSchema) -> Column:
        """The column of a whole collection: a list of its values, or a map."""
        place, value = self.entry_columns(field)
        type_ = pa.list_(value.type) if field.kind == "list" else pa.map_(place.type, value.type)
        return Column(field.name, type_)

    def entry_decoder(self, field: FieldSchema, number: int) -> Callable[[Entry], Any]:
        """What makes a plain value of an entry of a task."""
        decode = msgspec.msgpack.Decoder[Any](stored_type(self._in_task(field, number).type)).decode

        def decoded(one: Entry) -> Any:
            try:
                return plain(decode(rows.unpack_entry(one.value)[0]))
            except (msgspec.MsgspecError, ValueError) as error:
                raise self._corrupt(one, error) from error

        return decoded

    def place_decoder(self, field: FieldSchema) -> Callable[[Entry], Any]:
        """The place of an entry in its collection. The bounds of a list come before its items."""
        if field.kind == "map" and field.key is not None:
            codec = map_key_codec_for(stored_type(field.key))
            return lambda one: plain(codec.decode(one.entry or b""))
        bounds = msgspec.msgpack.Decoder(tuple[int, int]).decode
        first: dict[bytes, int] = {}

        def position(one: Entry) -> int:
            if one.kind == "list":
                first.clear()
                first[one.key] = bounds(rows.unpack_entry(one.value)[0])[0]
                return -1
            return int.from_bytes(one.entry or b"", "big") - _HALF - first[one.key]

        return position

    def _corrupt(self, one: Entry, error: Exception) -> CorruptStateError:
        return CorruptStateError(
            f"the stored state of {self.name} {one.key!r} cannot be read: {error}",
            hint="Verify the snapshot, and read another one.",
        )


def timers_of(found: Any, *names: str) -> list[list[Any]]:
    """Columns of a batch of timers, without expiries. A name is a text; None for one that is named by its time."""
    timers: list[bytes] = found.column("name").to_pylist()
    kept = [at for at, name in enumerate(timers) if name[:1] != rows.EXPIRY]
    found = found.take(pa.array(kept, pa.int64()))
    texts = [None if timers[at][:1] == b"u" else timers[at][1:].decode() for at in kept]
    return [texts if name == "name" else found.column(name).to_pylist() for name in names]


def stored_actor(manifest: Manifest, name: str) -> StoredActor:
    """An actor of a snapshot. Raises what ``actor_of`` raises."""
    schemas = {task.partition: task.schema for task in manifest.tasks}
    return actor_of(schemas, name, f"the snapshot {manifest.id!r} of app {manifest.app!r}")


def actor_of(stored: Mapping[int, bytes], name: str, where: str) -> StoredActor:
    """An actor by the schemas of all tasks, as they store them: a task that has seen nothing yet has none.

    A task that has not committed since the code changed has the schema from before: the rows of both can be
    read. ``where`` names the state in messages.

    Raises:
        UsageError: No task has such an actor.
        IncompatibleStateError: Two tasks have stored it in incompatible ways.
    """
    schemas = {number: decode_schemas(one) for number, one in stored.items() if one}
    of_tasks = {number: one[name] for number, one in schemas.items() if name in one}
    if not of_tasks:
        known = sorted({one for some in schemas.values() for one in some})
        raise UsageError(
            f"{where} has no actor {name!r}",
            hint=did_you_mean(name, known, f"Its actors are: {', '.join(known) or 'none'}."),
        )
    return StoredActor(name, reduce(partial(_joined, name), of_tasks.values()), of_tasks)


def _joined(name: str, one: ActorSchema, other: ActorSchema) -> ActorSchema:
    """The schema that reads the rows of two versions of an actor, with as many fields as possible."""
    if one == other:
        return one
    ways = [(after, *evolve(before, after)) for before, after in ((one, other), (other, one))]
    kinds = [[change.kind for change in changes] for _, _, changes in ways]
    fit = [at for at in range(len(ways)) if "incompatible" not in kinds[at]]
    if not fit:
        raise IncompatibleStateError(
            "two tasks have stored it in incompatible ways",
            actor=name,
            hint="In Spark, read the table as it is stored (table=state). Otherwise run the app once, so that all tasks have its present form.",
        )
    after, schema, _ = ways[min(fit, key=lambda at: kinds[at].count("removed"))]
    known = {each.name for each in (*schema.fields, *schema.past)}
    more = tuple(each for each in after.past if each.name not in known)
    return ActorSchema(schema.key, schema.fields, (*schema.past, *more))
