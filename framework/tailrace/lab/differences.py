"""The differences of two rebuilds: keys by field, and outputs; as tables in files.

Outputs are matched by topic, key and event time, and among several of these by their order. The same outputs in
another order at one time are no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.as_read import defaults_apart
from tailrace.core.engine.task import ORIGIN_HEADER
from tailrace.core.errors import TailraceError
from tailrace.core.names import FORWARDED, inbox_of
from tailrace.core.values.keys import KeyCodec
from tailrace.history.comparing.matched_rows import MatchedKey, matched_keys, readers_of
from tailrace.lab.database import connected, quoted
from tailrace.state.snapshots import Snapshot, Snapshots
from tailrace.state.snapshots.arrow import pa, parquet

_AT_ONCE = 50_000


class Made(msgspec.Struct, frozen=True):
    """What a version has made of history."""

    uri: str
    """Where its snapshot is."""
    snapshot: str
    outputs: str
    """The folder of its outputs."""


class Counts(msgspec.Struct):
    """How much there is, and how much differs."""

    keys: int = 0
    keys_differ: int = 0
    outputs: tuple[int, int] = (0, 0)
    outputs_differ: int = 0
    notes: list[str] = []


def compare(plan: Plan, one: Made, other: Made, folder: str) -> Counts:
    """Compare two rebuilds, and write ``states.parquet`` and ``outputs.parquet``. ``plan``: to decode what differs."""
    found, place = Counts(), Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    _compare_states(plan, one, other, place / "states.parquet", found)
    _compare_outputs(plan, one, other, place / "outputs", found)
    return found


# --- states


def _compare_states(plan: Plan, one: Made, other: Made, file: Path, found: Counts) -> None:
    sides = [Snapshots(each.uri, plan.app).open(each.snapshot) for each in (one, other)]
    names = ["actor", "key", "key_bytes", "partition", "field", "a", "b"]
    types = [pa.string(), pa.string(), pa.binary(), pa.int32(), *[pa.string()] * 3]
    schema = pa.schema(list(zip(names, types, strict=True)))
    waiting: list[tuple[Any, ...]] = []
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for number in range(plan.partitions):
            for row in _apart(plan, number, sides[0], sides[1], found):
                waiting.append(row)
                if len(waiting) == _AT_ONCE:
                    writer.write_table(_table(schema, waiting))
                    waiting.clear()
        writer.write_table(_table(schema, waiting))


def _table(schema: Any, rows: list[tuple[Any, ...]]) -> Any:
    columns = [[row[at] for row in rows] for at in range(len(schema))]
    arrays = [pa.array(one, type=field.type) for one, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _apart(
    plan: Plan, number: int, one: Snapshot, other: Snapshot, found: Counts
) -> Iterator[tuple[Any, ...]]:
    readers = readers_of(one.manifest.task(number).schema, other.manifest.task(number).schema)
    actors = {actor.name: actor for actor in plan.actors}
    for name, both in readers.items():
        for attr, was, now in defaults_apart(*both):
            note = f"{name}.{attr} of a key of which nothing is stored: {was} in A, {now} in B"
            found.notes += [] if note in found.notes else [note]
    each: MatchedKey
    for each in matched_keys(one.rows(number), other.rows(number)):
        found.keys += 1
        if not each.differs(readers):
            continue
        found.keys_differ += 1
        actor = actors.get(each.actor)
        key = text_of(None if actor is None else actor.key_codec, each.key)
        for label, was, now in each.describe(actor, readers):
            yield each.actor, key, each.key, number, label.replace("(not declared)", "(only in B)"), was, now


def text_of(codec: KeyCodec | None, key: bytes) -> str:
    """A key as text; in hex if it cannot be decoded."""
    try:
        return str(key.decode() if codec is None else codec.decode(key))
    except (TailraceError, ValueError):
        return key.hex()


# --- outputs

_VIEW = """
create view {name} as select topic::varchar as topic, key, timestamp as time, partition, number, value,
    hash(value, list_filter(headers, lambda one: one.key <> '{origin}')) as content
from read_parquet({files}) where not {internal}
"""
_GROUPS = """
create table apart as
with one as (select topic, key, time, count(*) as n, sum(content::hugeint) as digest from a group by all),
     two as (select topic, key, time, count(*) as n, sum(content::hugeint) as digest from b group by all)
select coalesce(one.topic, two.topic) as topic, coalesce(one.key, two.key) as key, coalesce(one.time, two.time) as time
from one full join two on one.topic = two.topic and one.time = two.time and one.key is not distinct from two.key
where one.n is distinct from two.n or one.digest is distinct from two.digest
"""
_ROWS = """
create table rows as
with one as (select *, row_number() over (partition by topic, key, time order by partition, number) as place
             from a where exists (select 1 from apart where apart.topic = a.topic and apart.time = a.time
                                  and apart.key is not distinct from a.key)),
     two as (select *, row_number() over (partition by topic, key, time order by partition, number) as place
             from b where exists (select 1 from apart where apart.topic = b.topic and apart.time = b.time
                                  and apart.key is not distinct from b.key))
select coalesce(one.topic, two.topic) as topic, coalesce(one.key, two.key) as key_bytes,
    coalesce(one.time, two.time) as time, one.number as number_a, two.number as number_b,
    coalesce(try(decode(one.value)), hex(one.value)) as a, coalesce(try(decode(two.value)), hex(two.value)) as b,
    case when one.topic is null then 'only-b' when two.topic is null then 'only-a' else 'changed' end as kind
from one full join two on one.topic = two.topic and one.time = two.time and one.place = two.place
    and one.key is not distinct from two.key
where one.topic is null or two.topic is null or one.content <> two.content
"""


def _compare_outputs(plan: Plan, one: Made, other: Made, file: Path, found: Counts) -> None:
    database = connected(temp_directory=str(file.with_name("spilled")))
    ends = " or ".join(f"ends_with(topic, '{one}')" for one in FORWARDED)
    internal = f"(topic = '{inbox_of(plan.app)}' or (starts_with(topic, '{plan.app}.') and ({ends})))"
    counts: list[int] = []
    for name, side in (("a", one), ("b", other)):
        files = quoted(Path(side.outputs) / "*")
        database.execute(_VIEW.format(name=name, origin=ORIGIN_HEADER, files=files, internal=internal))
        counts.append(database.execute(f"select count(*) from {name}").fetchall()[0][0])  # noqa: S608
    found.outputs = counts[0], counts[1]
    database.execute(_GROUPS)
    database.execute(_ROWS)
    codecs = {name: topic.key_codec for name, topic in plan.topics.items() if topic.key_of is not None}
    keys: list[tuple[str, bytes | None]] = database.execute(
        "select distinct topic, key_bytes from rows"
    ).fetchall()
    texts = pa.table(
        {
            "topic": [topic for topic, _ in keys],
            "key_bytes": pa.array([key for _, key in keys], pa.binary()),
            "key": pa.array(
                [None if key is None else text_of(codecs.get(topic), key) for topic, key in keys], pa.string()
            ),
        }
    )
    database.register("texts", texts)
    database.execute(
        "copy (select rows.topic, texts.key, rows.* exclude (topic) from rows join texts on rows.topic = texts.topic "  # noqa: S608
        f"and rows.key_bytes is not distinct from texts.key_bytes order by time, topic, key) to {quoted(file)}"
    )
    found.outputs_differ = database.execute("select count(*) from rows").fetchall()[0][0]
