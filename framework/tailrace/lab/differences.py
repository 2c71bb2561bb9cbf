"""The differences of two rebuilds: keys by field, and outputs; as tables in files.

Outputs are matched by topic, key and event time, and among several of these by their order. The same outputs in
another order at one time are no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import TailraceError
from tailrace.core.names import FORWARDED, inbox_of
from tailrace.core.unit_ids import ORIGIN_HEADER
from tailrace.core.values.keys import KeyCodec
from tailrace.history.comparing.matched_rows import ComparedKey, Comparison, Side, compared_keys
from tailrace.lab.database import connected, quoted
from tailrace.state.snapshots import Snapshots
from tailrace.state.snapshots.arrow import pa, parquet

_AT_ONCE = 50_000


class Made(msgspec.Struct, frozen=True):
    """What a version has made of history."""

    uri: str
    """Where its snapshot is."""
    snapshot: str
    outputs: tuple[str, ...]
    """The folders of its outputs."""

    def output_files(self) -> list[Path]:
        """The files of its outputs, by partition."""
        files = [file for folder in self.outputs for file in sorted(Path(folder).glob("*.parquet"))]
        return sorted(files, key=partition_of_outputs)


class Counts(msgspec.Struct):
    """How much there is, and how much differs."""

    keys: int = 0
    keys_differ: int = 0
    outputs: tuple[int, int] = (0, 0)
    outputs_differ: int = 0
    notes: list[str] = []


def partition_of_outputs(file: Path) -> int:
    """The partition in the name of a file of outputs."""
    return int(file.name.split("-")[1])


def compare(plan: Plan, one: Made, other: Made, folder: str) -> Counts:
    """Compare two rebuilds, and write ``states.parquet`` and ``outputs.parquet``. ``plan``: to decode what differs."""
    found, place = Counts(), Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    _compare_states(plan, one, other, place / "states", found)
    _compare_outputs(plan, one, other, place / "outputs", found)
    return found


def _compare_states(plan: Plan, one: Made, other: Made, file: Path, found: Counts) -> None:
    sides = _side("A", plan, one), _side("B", plan, other)
    compared = Comparison()
    keys = (each for number in range(plan.partitions) for each in compared_keys(number, *sides, compared))
    fields, texts = _fields(plan, keys), ("actor", "key", "field", "a", "b")
    schema = pa.schema({**dict.fromkeys(texts, pa.string()), "key_bytes": pa.binary()})
    with parquet.ParquetWriter(f"{file}.parquet", schema, compression="zstd") as writer:
        writer.write_table(schema.empty_table())
        while some := list(islice(fields, _AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(some, schema))
    found.keys, found.keys_differ, found.notes = compared.keys, compared.count, compared.defaults


def _side(name: str, plan: Plan, made: Made) -> Side:
    found = Snapshots(made.uri, plan.app).open(made.snapshot)
    return Side(name, found.rows, lambda number: found.manifest.task(number).schema or None)


def _fields(plan: Plan, keys: Iterable[ComparedKey]) -> Iterator[dict[str, Any]]:
    """The fields that differ."""
    actors = {actor.name: actor for actor in plan.actors}
    for each, readers, differs in keys:
        if differs:
            actor = actors.get(each.actor)
            key = text_of(None if actor is None else actor.key_codec, each.key)
            of_key = {"actor": each.actor, "key_bytes": each.key, "key": key}
            for label, was, now in each.describe(actor, readers):
                field = label.replace("(not declared)", "(only in B)")
                yield {**of_key, "field": field, "a": was, "b": now}


def text_of(codec: KeyCodec | None, key: bytes) -> str:
    """A key as text; in hex if it cannot be decoded."""
    try:
        return str(key.decode() if codec is None else codec.decode(key))
    except (TailraceError, ValueError):
        return key.hex()


_SIDE = """
select '{side}' as side, topic::varchar as topic, key, timestamp as time, partition, number, value, headers,
    hash(value, list_filter(headers, lambda one: one.key <> '{origin}')) as content
from read_parquet([{files}]) where not {internal}
"""
_COUNTS = "select count(*) filter (side = 'a'), count(*) filter (side = 'b') from both_sides"
_GROUPS = """
create table apart as select topic, key, time from both_sides group by all
having sum(case side when 'a' then 1 else -1 end) <> 0
    or sum(case side when 'a' then content::hugeint else -content::hugeint end) <> 0
"""
_APART = """
create table apart_rows as from both_sides where exists (select 1 from apart where apart.topic = both_sides.topic
    and apart.time = both_sides.time and apart.key is not distinct from both_sides.key)
"""
_ROWS = """
create table rows as
with placed as (
    select *, row_number() over (partition by side, topic, key, time order by partition, number) as place
    from apart_rows
), one as (from placed where side = 'a'), two as (from placed where side = 'b')
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
    sides = [
        _SIDE.format(
            side=side,
            origin=ORIGIN_HEADER,
            files=", ".join(quoted(Path(folder) / "*") for folder in each.outputs),
            internal=internal,
        )
        for side, each in (("a", one), ("b", other))
    ]
    database.execute(f"create view both_sides as {' union all '.join(sides)}")
    (found.outputs,) = database.execute(_COUNTS).fetchall()
    database.execute(_GROUPS)
    database.execute(_APART)
    database.execute(_ROWS)
    codecs = {name: topic.key_codec for name, topic in plan.topics.items() if topic.key_of is not None}
    keys: list[tuple[str, bytes | None]] = database.execute(
        "select distinct topic, key_bytes from rows"
    ).fetchall()
    texts = [
        {"topic": topic, "key_bytes": key, "key": None if key is None else text_of(codecs.get(topic), key)}
        for topic, key in keys
    ]
    schema = pa.schema({"topic": pa.string(), "key_bytes": pa.binary(), "key": pa.string()})
    database.register("texts", pa.Table.from_pylist(texts, schema))
    database.execute(
        "copy (select rows.topic, texts.key, rows.* exclude (topic) from rows join texts on rows.topic = texts.topic "  # noqa: S608
        f"and rows.key_bytes is not distinct from texts.key_bytes order by time, topic, key) to {quoted(file)}"
    )
    found.outputs_differ = database.execute("select count(*) from rows").fetchall()[0][0]
