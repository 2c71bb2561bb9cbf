"""The tables of a state: one for each actor, one for each of its maps and lists, and the timers.

=================  =====================================================================================
``Ship``           the key, ``as_of``, the plain fields
``Ship_calls``     of a map: the key, ``as_of``, ``entry``, ``value``, ``expires``
``Ship_last``      of a list: the key, ``as_of``, ``position``, ``value``
``timers``         ``actor``, ``key`` (as JSON), ``as_of``, ``domain``, ``name``, ``time``
=================  =====================================================================================

A key is the column ``key``, a key of several values ``key_1``, ``key_2`` and so on, as is the key of a map.
``as_of`` is the event time that the state stands for: the watermark of its task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from msgspec import structs

from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.declare.schema import decode_schemas
from tailrace.core.durations import is_instant
from tailrace.core.engine import tape
from tailrace.core.errors import UsageError
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.type_schemas import FieldSchema, TypeSchema
from tailrace.lab.files import TableReport, TableWriter
from tailrace.state.columns import Column, as_json, column, micros, plain
from tailrace.state.snapshots import STATE, TIMERS, Snapshot
from tailrace.state.snapshots.actors import ENTRY, StoredActor, actor_of, timers_of
from tailrace.state.snapshots.arrow import compute, pa

TIMERS_TABLE = "timers"
INSTANT = TypeSchema("datetime", limits={"tz": True})
AS_OF, EXPIRES = "as_of", "expires"
Values = dict[str, Any]

Batches: TypeAlias = Callable[[Any, int, Sequence[str] | None, Any], Iterator[Any]]
"""The batches of a table of stored rows of one task; see ``Snapshot.batches``."""


class View(NamedTuple):
    """The state of an app at a moment."""

    stored: Batches
    schemas: Mapping[int, bytes]
    """By task, the schemas of its actors as they are stored."""
    as_of_ms: Mapping[int, int | None]
    """By task, the event time that the state stands for."""

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot) -> View:
        """The state in a snapshot."""
        tasks = snapshot.manifest.tasks
        marks = {one.partition: tape.decode_cut(one.cut).watermark if one.cut else None for one in tasks}
        return cls(snapshot.batches, {one.partition: one.schema for one in tasks}, marks)


class StateTable(NamedTuple):
    """A table with its columns, those that its rows are sorted by, and its rows of a task."""

    name: str
    columns: Sequence[Column]
    order: Sequence[str]
    values: Callable[[int], Iterator[Values]]


def write_state(
    plan: Plan, view: View, folder: Path, names: Sequence[str] = (), *, timers: bool = False
) -> list[TableReport]:
    """Write the tables of these actors, or of all if none is named, into a folder. Raises UsageError: two have one name."""
    actors, tables, found = stored_actors(plan, view, names), list[StateTable](), list[TableReport]()
    for actor in actors:
        tables.append(_of_instances(view, actor))
        collections = (one for one in (*actor.schema.fields, *actor.schema.past) if one.kind != "value")
        tables += (_of_entries(view, actor, one) for one in collections)
    if timers:
        tables.append(_of_timers(view, {one.name: one for one in actors}))
    all_names = [one.name for one in tables]
    if twice := [one for one in all_names if all_names.count(one) > 1]:
        raise UsageError(
            f"two tables would have the name {min(twice)!r}",
            hint="Rename one, or export the actors one by one (tailrace export --actor).",
        )
    for table in tables:
        writer = TableWriter(folder, table.name, table.columns, table.order)
        for number in sorted(view.schemas):
            for values in table.values(number):
                writer.write(values, table.name)
        found.append(writer.close())
    return found


def chosen_actors(plan: Plan, names: Sequence[str]) -> list[ActorPlan]:
    """The actors of these names, or all if none is named. Raises UsageError: the app has no such actor."""
    declared = [one.name for one in plan.actors]
    for name in names:
        if name not in declared:
            known = f"Its actors are: {', '.join(sorted(declared)) or 'none'}."
            raise UsageError(
                f"the app {plan.app!r} has no actor {name!r}", hint=did_you_mean(name, declared, known)
            )
    return [one for one in plan.actors if not names or one.name in names]


def stored_actors(plan: Plan, view: View, names: Sequence[str]) -> list[StoredActor]:
    """Actors by their stored schemas, one that no task has stored yet by its declaration; fields in the order of the class."""
    declared = {one.name: one for one in plan.actors}
    stored = {name for one in view.schemas.values() if one for name in decode_schemas(one)}
    found: list[StoredActor] = []
    for name in names or declared:
        actor = StoredActor(name, declared[name].schema)
        if name in stored:
            actor = actor_of(view.schemas, name, f"the app {plan.app!r}")
        order: tuple[str, ...] = getattr(declared[name].cls, "__struct_encode_fields__")  # noqa: B009  # unknown to type checkers
        places = {field: at for at, field in enumerate(order)}
        fields = sorted(actor.schema.fields, key=lambda one: places.get(one.name, len(order)))
        found.append(replace(actor, schema=structs.replace(actor.schema, fields=tuple(fields))))
    return found


def _of_instances(view: View, actor: StoredActor) -> StateTable:
    fields = actor.field_columns()
    names = [one.name for one in fields]
    keys = [
        one._replace(name=free_name(one.name, names)) for one in key_columns(actor.key_name, actor.schema.key)
    ]
    as_of = column(free_name(AS_OF, names), INSTANT)

    def values(number: int) -> Iterator[Values]:
        read = actor.instances(names, number)
        for found in view.stored(STATE, number, ["key", "value"], _rows_of(actor.name, ["value"])):
            of_key, fields_ = read(found)
            yield {**key_values(keys, of_key), as_of.name: as_of_values(view, number, len(of_key)), **fields_}

    return StateTable(actor.name, [*keys, as_of, *fields], [one.name for one in keys], values)


def _of_entries(view: View, actor: StoredActor, field: FieldSchema) -> StateTable:
    place, value = actor.entry_columns(field)
    is_map = field.kind == "map" and field.key is not None
    places = key_columns("entry", field.key) if is_map and field.key is not None else [place]
    keys = key_columns("key", actor.schema.key)
    kinds, more = (["entry"], [column(EXPIRES, INSTANT)]) if is_map else (["list", "item"], [])

    def values(number: int) -> Iterator[Values]:
        read = actor.entries(field, number)
        wanted = _rows_of(actor.name, kinds) & (compute.field("field") == field.name)
        for found in view.stored(STATE, number, ENTRY, wanted):
            if entries := read(found):
                of_key, at, items, expiries = zip(*entries, strict=True)
                yield {
                    **key_values(keys, of_key),
                    AS_OF: as_of_values(view, number, len(entries)),
                    **key_values(places, at),
                    "value": items,
                    EXPIRES: [*map(micros, expiries)],
                }

    order = [one.name for one in (*keys, *places)]
    return StateTable(
        f"{actor.name}_{field.name}", [*keys, column(AS_OF, INSTANT), *places, value, *more], order, values
    )


def _of_timers(view: View, actors: Mapping[str, StoredActor]) -> StateTable:
    columns = [column(name, TypeSchema("str")) for name in ("actor", "key", "domain", "name")]
    decode = {name: one.key_codec.decode for name, one in actors.items()}

    def values(number: int) -> Iterator[Values]:
        names = ("actor", "key", "domain", "name", "time_ms")
        wanted = compute.field("actor").isin(list(actors))
        for found in view.stored(TIMERS, number, names, wanted):
            actor, key, domain, name, time_ms = timers_of(found, *names)
            shown = plain([decode[one](data) for one, data in zip(actor, key, strict=True)])
            yield {
                "actor": actor,
                "key": [one if type(one) is str else as_json(one) for one in shown],
                AS_OF: as_of_values(view, number, len(actor)),
                "domain": domain,
                "name": name,
                "time": [*map(micros, time_ms)],
            }

    time = column("time", INSTANT)
    return StateTable(
        TIMERS_TABLE,
        [*columns[:2], column(AS_OF, INSTANT), *columns[2:], time],
        ["actor", "key", "time"],
        values,
    )


def _rows_of(actor: str, kinds: Sequence[str]) -> Any:
    return (compute.field("actor") == actor) & compute.field("kind").isin(list(kinds))


def key_columns(name: str, schema: TypeSchema) -> list[Column]:
    """The columns of a key: one for each of its values."""
    if schema.kind != "tuple":
        return [column(name, schema)]
    return [column(f"{name}_{at}", one) for at, one in enumerate(schema.of, 1)]


def key_values(columns: Sequence[Column], keys: Sequence[Any]) -> Values:
    """The values of keys by column."""
    found = plain(keys)
    if not isinstance(next((one for one in keys if one is not None), None), tuple):
        return {one.name: found for one in columns}  # of several only if all keys are None
    return {one.name: [None if key is None else key[at] for key in found] for at, one in enumerate(columns)}


def free_name(name: str, taken: Sequence[str]) -> str:
    """The name of a column that no field has."""
    while name in taken:
        name = f"_{name}"
    return name


def as_of_values(view: View, number: int, count: int) -> Any:
    """The column ``as_of`` of rows of a task."""
    mark = view.as_of_ms[number]
    time = micros(mark) if mark is not None and is_instant(mark) else None
    return pa.repeat(pa.scalar(time, pa.timestamp("us", "UTC")), count)
