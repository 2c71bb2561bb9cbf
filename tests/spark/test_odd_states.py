"""States that are odd, as tables and written again: keys of several fields, code that has changed, dates without a zone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan
from tailrace.core.declare.schema import encode_schemas
from tailrace.core.engine.evolution import evolve
from tailrace.core.errors import IncompatibleStateError, UsageError
from tailrace.core.values.partitioner import partition_of
from tailrace.core.values.type_schemas import ActorSchema
from tailrace.spark.columns import pa
from tailrace.spark.source import TailraceSource
from tailrace.state.snapshots import Snapshots
from tests.spark.reading import answer
from tests.state.snapshots.making import published


class Seen(msgspec.Struct):
    name: str
    number: int
    day: date
    place: UUID


def declared(by: Any = "name", by_type: Any = str, **fields: Any) -> tr.App:
    """An app whose actor has these fields: their types, with the default None or 0 or what it is made by."""
    app = tr.App("odd", partitions=2)
    topic = app.topic("seen", Seen, key=by)

    def saw(self: Any, event: Seen, ctx: Any) -> None: ...

    saw.__annotations__ = {"event": Seen, "ctx": tr.Context[by_type], "return": None}
    defaults = {name: 0 for name, one in fields.items() if one in (int, int | str)}
    body = {"__module__": __name__, "__annotations__": fields, "saw": tr.process(topic)(saw), **defaults}
    app.actor(type("Odd", (tr.Actor,), body))
    return app


@dataclass
class Odd:
    """Snapshots of such an app, made row by row."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def publish(
        self,
        actor: ActorPlan,
        fields: dict[Any, dict[str, Any]],
        *schemas: ActorSchema,
        keys: tuple[str, ...] = (),
    ) -> None:
        """``fields`` by key, as they are stored; a schema for each task, or one for all."""
        parts: list[dict[bytes, bytes]] = [{}, {}]
        for key, one in fields.items():
            encoded = actor.key_codec.encode(key)
            row = rows.actor_prefix("Odd") + rows.escaped(encoded)
            parts[partition_of(encoded, 2)][row] = bytes((rows.FORMAT,)) + msgspec.msgpack.encode(one)
        encoded_schemas = [encode_schemas({"Odd": one}) for one in schemas] or [encode_schemas({})]
        published(Snapshots(str(self.folder), "odd"), parts, schemas=encoded_schemas, keys=keys)

    def rows(self) -> dict[bytes, bytes]:
        snapshot = Snapshots(str(self.folder), "odd").open()
        return {row: value for number in range(2) for row, value in snapshot.rows(number)}

    def read(self) -> list[dict[str, Any]]:
        return answer(snapshot=self.folder, app="odd", actor="Odd").rows

    def batches(self) -> Iterator[Any]:
        source = TailraceSource({"snapshot": str(self.folder), "app": "odd", "actor": "Odd"})
        reader = source.reader(source.schema())
        for part in reader.partitions():
            yield from reader.read(part)

    def write(self, app: tr.App, batches: list[Any]) -> None:
        module = ModuleType("tailrace_odd_app")
        module.__dict__["app"] = app
        self.monkeypatch.setitem(sys.modules, "tailrace_odd_app", module)
        options = {"snapshot": str(self.folder), "app": "tailrace_odd_app:app", "actor": "Odd"}
        writer = TailraceSource(options).writer(from_arrow_schema(batches[0].schema), overwrite=False)
        writer.commit([writer.write(iter([one])) for one in batches])


@pytest.fixture
def odd(tmp_path, monkeypatch):
    return Odd(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("key", "type_", "found"),
    [
        ("name", str, "a"),
        ("number", int, -5),
        ("day", date, date(2013, 1, 1)),
        ("place", UUID, UUID(int=7)),
        (("name", "number"), tuple[str, int], ("a", 1)),
        (("day", "place"), tuple[date, UUID], (date(2013, 1, 1), UUID(int=7))),
    ],
)
def test_a_table_is_written_by_every_kind_of_key(odd, key, type_, found):
    app = declared(key, type_, miles=int)
    actor = app.plan().actors[0]
    odd.publish(actor, {found: {"miles": 3}}, actor.schema)
    before = odd.rows()
    odd.write(app, [*odd.batches()])
    assert odd.rows() == before


def test_an_option_that_names_what_can_be_no_key_is_refused(odd):
    app = declared("place", UUID, miles=int)
    actor = app.plan().actors[0]
    odd.publish(actor, {UUID(int=7): {"miles": 3}}, actor.schema)
    options = {"snapshot": odd.folder, "app": "odd", "actor": "Odd"}
    assert [row["miles"] for row in answer(**options, keys=f'["{UUID(int=7)}"]').rows] == [3]
    with pytest.raises(UsageError, match="'nowhere' is not one of these keys"):
        answer(**options, keys='["nowhere"]')


def test_a_key_of_several_fields_that_is_none_is_refused(odd):
    app = declared(("name", "number"), tuple[str, int], miles=int)
    actor = app.plan().actors[0]
    odd.publish(actor, {("a", 1): {"miles": 3}}, actor.schema)
    for key in (["a"], [{"_1": "a", "_2": None}], [None]):
        with pytest.raises(UsageError, match="not a key of Odd"):
            odd.write(app, [pa.RecordBatch.from_pydict({"key": key, "miles": [1]})])


def test_a_value_that_is_written_as_it_was_read_keeps_having_no_zone(odd):
    app = declared(at=datetime | None, days=dict[str, list[datetime]] | None)
    actor = app.plan().actors[0]
    zoned = datetime(2013, 1, 1, tzinfo=UTC)
    naive = zoned.replace(tzinfo=None)
    odd.publish(actor, {"a": {"at": naive, "days": {"x": [zoned, naive]}}}, actor.schema)
    before = odd.rows()
    odd.write(app, [*odd.batches()])
    assert odd.rows() == before
    odd.write(app, [pa.RecordBatch.from_pydict({"key": ["a"], "at": [datetime(2014, 1, 1, tzinfo=UTC)]})])
    (row,) = odd.read()
    assert row["at"] == datetime(2014, 1, 1, tzinfo=UTC)
    assert odd.rows() != before


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_the_first_and_the_last_instant_are_written_in_a_session_of_any_zone(odd, zone):
    app = declared(at=datetime | None, days=dict[str, list[datetime]] | None)
    actor = app.plan().actors[0]
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    odd.publish(actor, {"a": {"at": last, "days": {"x": [first, last]}}}, actor.schema)
    before = odd.rows()
    instant = pa.timestamp("us", zone)
    types = {"at": instant, "days": pa.map_(pa.string(), pa.list_(instant)), "key": pa.string()}
    (batch,) = odd.batches()
    there = [batch.column(name).cast(type_) for name, type_ in types.items()]
    odd.write(app, [pa.RecordBatch.from_arrays(there, names=[*types])])
    assert odd.rows() == before


KEYS = {f"k{number}": {"miles": number, "hops": number} for number in range(8)}


@pytest.mark.parametrize("again", [False, True], ids=["removed", "declared again"])
def test_a_field_of_the_past_stays_readable_and_the_actor_writable(odd, again):
    first, second = declared(miles=int, hops=int), declared(miles=int)
    now = first if again else second
    schema = first.plan().actors[0].schema
    for app in (second, first) if again else (second,):
        schema, _ = evolve(schema, app.plan().actors[0].schema)
    odd.publish(now.plan().actors[0], KEYS, schema)
    assert sorted(odd.read(), key=lambda row: row["miles"]) == [
        {"key": key, **one} for key, one in KEYS.items()
    ]
    odd.write(now, [pa.RecordBatch.from_pydict({"key": ["k3"], "miles": [99]})])
    found = {row["key"]: (row["miles"], row["hops"]) for row in odd.read()}
    assert found == {key: (99 if key == "k3" else one["miles"], one["hops"]) for key, one in KEYS.items()}


@pytest.mark.parametrize("newer", [0, 1])
def test_a_task_that_has_not_committed_since_the_code_changed_hides_nothing(odd, newer):
    first, second = declared(miles=int), declared(miles=int | str, hops=int)
    old = first.plan().actors[0].schema
    new, _ = evolve(old, second.plan().actors[0].schema)
    actor = second.plan().actors[0]
    stored = {
        key: {"miles": f"{one['miles']}", "hops": 1}
        if partition_of(key.encode(), 2) == newer
        else {"miles": 7}
        for key, one in KEYS.items()
    }
    odd.publish(actor, stored, *((new, old) if newer == 0 else (old, new)))
    shown = {row["key"]: (row["miles"], row["hops"]) for row in odd.read()}
    assert shown == {
        key: (msgspec.json.encode(one["miles"]).decode(), one.get("hops")) for key, one in stored.items()
    }
    keys = [*KEYS]
    odd.write(second, [pa.RecordBatch.from_pydict({"key": keys, "hops": [5] * len(keys)})])
    assert {row["hops"] for row in odd.read()} == {5}
    tasks = Snapshots(str(odd.folder), "odd").open().manifest.tasks
    assert {task.schema for task in tasks} == {encode_schemas({"Odd": new})}
    with pytest.raises(IncompatibleStateError, match="not the one that the snapshot was written with"):
        odd.write(first, [pa.RecordBatch.from_pydict({"key": keys[:1], "miles": [1]})])


def test_an_actor_that_the_snapshot_does_not_have_and_a_column_of_json_are_not_written(odd):
    app = declared(miles=int, union=dict[str, int] | int | None)
    actor = app.plan().actors[0]
    rows = [pa.RecordBatch.from_pydict({"key": ["a"], "union": ["1"]})]
    odd.publish(actor, {})
    with pytest.raises(UsageError, match="has no actor 'Odd'"):
        odd.write(app, rows)
    odd.publish(actor, {}, actor.schema)
    with pytest.raises(UsageError, match=r"are JSON in their column.*Drop the column"):
        odd.write(app, rows)


def test_the_column_of_the_key_has_a_name_that_no_field_has_or_had(odd):
    app = declared(miles=int)
    was = declared(miles=int, key=int, _key=int)
    actor = app.plan().actors[0]
    schema, _ = evolve(was.plan().actors[0].schema, actor.schema)
    odd.publish(actor, {"a": {"miles": 1, "key": 2, "_key": 3}}, schema)
    assert odd.read() == [{"__key": "a", "miles": 1, "key": 2, "_key": 3}]
    odd.write(app, [pa.RecordBatch.from_pydict({"__key": ["a"], "miles": [5]})])
    assert [(row["__key"], row["miles"]) for row in odd.read()] == [("a", 5)]


def test_a_value_that_its_column_cannot_hold_is_named_and_can_be_left_out(odd):
    app = declared(miles=int, hops=int)
    actor = app.plan().actors[0]
    odd.publish(actor, {"a": {"miles": 1 << 63, "hops": 1}}, actor.schema)
    with pytest.raises(UsageError, match=r"value of 'miles' does not fit a column of type bigint.*columns"):
        odd.read()
    found = answer(snapshot=odd.folder, app="odd", actor="Odd", columns="key,hops").rows
    assert found == [{"key": "a", "hops": 1}]


def test_what_is_written_upon_a_snapshot_of_some_keys_is_one_of_some_keys(odd):
    app = declared(miles=int)
    actor = app.plan().actors[0]
    odd.publish(actor, {"a": {"miles": 1}}, actor.schema, keys=("a",))
    odd.write(app, [pa.RecordBatch.from_pydict({"key": ["a"], "miles": [2]})])
    assert Snapshots(str(odd.folder), "odd").open().manifest.keys == ("a",)
