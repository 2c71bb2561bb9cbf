"""Outputs of a rebuild: as frames while a task is under way, then as Parquet files, which a manifest names that is written last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from tailrace.core.records import Output
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.request import PARQUET
from tailrace.history.rebuilding.results import OutputFile
from tailrace.state.snapshots import Place
from tailrace.state.snapshots.arrow import pa, parquet

_ROWS = 50_000
_READ_AT_ONCE = 20_000

MANIFEST = "outputs.json"


class Frame(NamedTuple):
    """The outputs of a commit: the number of the first output, and the outputs."""

    first: int
    outputs: list[Output]


class OutputsManifest(msgspec.Struct, frozen=True):
    """The files of a folder of outputs that count. The folder may also have files of failed attempts."""

    app: str
    snapshot: str
    """The snapshot of the same rebuild."""
    files: tuple[OutputFile, ...]


def outputs_folder(job: Job) -> Place:
    """The folder for the outputs of a job that writes them."""
    return Place.at(job.request.to.outputs.removeprefix(PARQUET)) / job.app / job.snapshot


def publish_outputs(job: Job, files: tuple[OutputFile, ...]) -> None:
    """Name the files that count."""
    folder = outputs_folder(job)
    folder.make()
    named = {one.name for one in files}
    # Files of failed units, and of a driver that was killed while it wrote the manifest.
    unfinished = ("outputs-", f".{MANIFEST}.")
    for entry in folder.entries():
        if entry.name.startswith(unfinished) and entry.name not in named:
            (folder / entry.name).remove()
    manifest = OutputsManifest(job.app, job.snapshot, files)
    (folder / MANIFEST).write(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")


def outputs_schema() -> Any:
    """Columns of a file of outputs. ``number`` is the running number of the output in its task."""
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            ("partition", pa.int32()),
            ("number", pa.int64()),
            ("topic", pa.dictionary(pa.int32(), pa.string())),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("headers", pa.list_(header)),
        ]
    )


def write_outputs(
    job: Job, partition: int, attempt: str, made: Iterable[Frame], stage: int = 0
) -> OutputFile:
    """Write the outputs of a task, or of one stage of it, to one Parquet file. The name carries the attempt."""
    folder, name = outputs_folder(job), f"outputs-{partition:05d}-{stage:03d}-{attempt}.parquet"
    place = folder / name
    schema, rows, first = outputs_schema(), 0, -1
    folder.make()
    with place.stream() as stream, parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
        held: list[tuple[int, Output]] = []
        for start, outputs in made:
            first = start if first < 0 else first
            held += enumerate(outputs, start)
            if len(held) >= _ROWS:
                rows += len(held)
                writer.write_table(_table(schema, partition, held))
                held = []
        rows += len(held)
        writer.write_table(_table(schema, partition, held))
    size = next((one.size for one in folder.entries() if one.name == name), 0)
    return OutputFile(name, partition, max(first, 0), rows, size)


def _table(schema: Any, partition: int, made: Sequence[tuple[int, Output]]) -> Any:
    columns = [
        [partition] * len(made),
        [number for number, _ in made],
        [one.topic for _, one in made],
        [one.key for _, one in made],
        [one.value for _, one in made],
        [one.timestamp_ms for _, one in made],
        [[{"key": key, "value": value} for key, value in one.headers] for _, one in made],
    ]
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def read_outputs(place: Place) -> Iterator[tuple[int, Output]]:
    """The outputs in a file with their running numbers."""
    with place.open() as stream:
        for batch in parquet.ParquetFile(stream).iter_batches(_READ_AT_ONCE):
            names = ("number", "topic", "key", "value", "timestamp", "headers")
            *columns, times, headers = (batch.column(name) for name in names)
            pairs = headers.flatten()  # each as a dict of Python would take longer than all else
            header = zip(*(pairs.field(name).to_pylist() for name in ("key", "value")), strict=True)
            counts = headers.value_lengths().to_pylist()
            rows = [one.to_pylist() for one in (*columns, times.cast("int64"))]
            for number, topic, key, value, time_ms, count in zip(*rows, counts, strict=True):
                yield number, Output(topic, key, value, time_ms, tuple(islice(header, count)))
