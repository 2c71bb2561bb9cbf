"""Outputs of a task: as frames while it is under way, and as Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tailrace.core.records import Output
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.output_watermarks import Mark
from tailrace.history.rebuilding.results import OutputFile
from tailrace.state.snapshots import Place
from tailrace.state.snapshots.arrow import pa, parquet

_ROWS = 50_000
_READ_AT_ONCE = 20_000


class Frame(NamedTuple):
    """The outputs of a commit: the number of the first output, the outputs, and the commit's mark, if any."""

    first: int
    outputs: list[Output]
    mark: Mark | None = None


class Marked:
    """Iterates over frames, and collects their marks, each with the number of outputs up to it."""

    def __init__(self, made: Iterable[Frame]) -> None:
        self._made = made
        self.marks: list[Mark] = []

    def __iter__(self) -> Iterator[Frame]:
        rows = 0
        for one in self._made:
            rows += len(one.outputs)
            if one.mark is not None:
                self.marks.append(msgspec.structs.replace(one.mark, rows=rows))
            yield one


# --- as Parquet
# ------------------------------------------------------------------------------------------------------


PARQUET = "parquet:"


def outputs_folder(job: Job) -> str:
    """The folder for Parquet files of outputs: the requested place, or the work folder if topics get them."""
    asked = job.request.to.outputs
    if not asked.startswith(PARQUET):
        return str(Path(job.work) / "outputs")
    return (Place.at(asked.removeprefix(PARQUET)) / job.app / job.snapshot).uri


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


def write_outputs(folder: str, partition: int, attempt: str, made: Iterable[Frame]) -> OutputFile:
    """Write the outputs of a task to one Parquet file in a folder. The name carries the attempt."""
    name = f"outputs-{partition:05d}-{attempt}.parquet"
    place = Place.at(folder) / name
    schema, rows, first = outputs_schema(), 0, -1
    Place.at(folder).make()
    with place.stream() as stream, parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
        held: list[tuple[int, Output]] = []
        for start, outputs, _ in made:
            first = start if first < 0 else first
            held += enumerate(outputs, start)
            if len(held) >= _ROWS:
                rows += len(held)
                writer.write_table(_table(schema, partition, held))
                held = []
        rows += len(held)
        writer.write_table(_table(schema, partition, held))
    size = next((one.size for one in Place.at(folder).entries() if one.name == name), 0)
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


def read_outputs(place: Place, first: int = 0) -> Iterator[tuple[int, Output]]:
    """The outputs in a file with their running numbers, without the first ``first`` ones."""
    with place.open() as stream:
        passed = 0
        for batch in parquet.ParquetFile(stream).iter_batches(_READ_AT_ONCE):
            passed += batch.num_rows
            if passed <= first:
                continue
            left = min(batch.num_rows, passed - first)
            found = batch.slice(batch.num_rows - left)
            names = ("number", "topic", "key", "value", "timestamp", "headers")
            *columns, times, headers = (found.column(name) for name in names)
            pairs = headers.flatten()  # each as a dict of Python would take longer than all else
            header = zip(*(pairs.field(name).to_pylist() for name in ("key", "value")), strict=True)
            counts = headers.value_lengths().to_pylist()
            rows = [one.to_pylist() for one in (*columns, times.cast("int64"))]
            for number, topic, key, value, time_ms, count in zip(*rows, counts, strict=True):
                yield number, Output(topic, key, value, time_ms, tuple(islice(header, count)))
