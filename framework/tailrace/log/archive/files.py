"""Records as Parquet, and back: a chunk in a file for each day, read again in the order of offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from typing import Any

from tailrace.core.errors import ArchiveError
from tailrace.core.extras import ExtraModule
from tailrace.core.records import InputRecord
from tailrace.log.archive.layout import Chunk, ChunkContent, ChunkFile, folder_of
from tailrace.log.interface import EVERYTHING, RecordFilter, TopicPartition
from tailrace.state.snapshots.places import Place

pa: Any = ExtraModule("pyarrow", "archives", "parquet")  # it has no types
compute: Any = ExtraModule("pyarrow.compute", "archives", "parquet")
parquet: Any = ExtraModule("pyarrow.parquet", "archives", "parquet")

ROWS_IN_A_GROUP = 50_000
_DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_DAY = "__HIVE_DEFAULT_PARTITION__"
"""For an instant beyond the calendar: what Hive calls a partition without a value."""
_HINT = "Restore the file from a copy of the archive; the log itself may still have the records."


@cache
def schema() -> Any:
    """The ``pyarrow.Schema`` of a file."""
    return pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", "UTC"), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ]
    )


def write_chunk(
    root: Place, place: TopicPartition, start: int, stop: int, records: Sequence[InputRecord]
) -> tuple[ChunkFile, ...]:
    """Write the files of a chunk, a file for each day of its records."""
    found: list[ChunkFile] = []
    by_day: dict[int, list[InputRecord]] = {}
    for record in records:
        by_day.setdefault(record.timestamp_ms // _DAY_MS, []).append(record)
    for day, some in sorted(by_day.items()):
        path = f"{folder_of(place)}/date={_date(day)}/{start:020d}-{stop:020d}.parquet"
        data = _encoded(some)
        (root / path).write(data)
        times = [one.timestamp_ms for one in some]
        found.append(ChunkFile(path, len(some), min(times), max(times), len(data), sha256(data).hexdigest()))
    return tuple(found)


def _encoded(records: Sequence[InputRecord]) -> bytes:
    offsets, times, keys, values, headers = zip(*records, strict=True)
    named = [[{"name": name, "value": value} for name, value in each] for each in headers]
    columns = (offsets, times, keys, values, named)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema(), strict=True)]
    sink = pa.BufferOutputStream()
    parquet.write_table(
        pa.Table.from_arrays(arrays, schema=schema()),
        sink,
        row_group_size=ROWS_IN_A_GROUP,
        compression="zstd",
        compression_level=3,
        use_dictionary=["key"],
        write_statistics=["offset", "timestamp", "key"],
        write_page_checksum=True,
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _date(day: int) -> str:
    try:
        return (_EPOCH + timedelta(days=day)).date().isoformat()
    except OverflowError:
        return _NO_DAY


class ChunkRecords:
    """The records of a chunk in memory, as Arrow has them; those that are taken become Python's.
    Raises ArchiveError: a file is missing, damaged, or does not hold what its chunk says.
    """

    def __init__(
        self, root: Place, content: ChunkContent, chunk: Chunk, wanted: RecordFilter = EVERYTHING
    ) -> None:
        self.chunk, self.published = chunk, content.published
        names = [name for name in ("key", "value", "headers") if name in wanted.columns]
        tables = [
            self._read(root / one.path, one, ["offset", "timestamp", *names])
            for one in content.files
            if wanted.takes(one.first_ms, one.last_ms)
        ]
        self._table: Any = pa.concat_tables(tables) if tables else schema().empty_table()
        if len(tables) > 1:
            self._table = self._table.sort_by("offset").combine_chunks()

    def _read(self, place: Place, one: ChunkFile, columns: Collection[str]) -> Any:
        try:
            data = place.read()
            if len(data) != one.bytes or sha256(data).hexdigest() != one.sha256:
                raise ArchiveError(
                    "a file of the archive is damaged: its content differs from what was archived",
                    path=place.shown,
                    hint=_HINT,
                )
            return parquet.ParquetFile(pa.BufferReader(data)).read(columns=[*columns], use_threads=False)
        except FileNotFoundError:
            raise ArchiveError("a file of the archive is missing", path=place.shown, hint=_HINT) from None

    def records(self, position: int, most: int) -> list[InputRecord]:
        """Up to so many records from an offset on."""
        begin = 0
        if position > self.chunk.start:
            begin = compute.sum(compute.less(self._table.column("offset"), position), min_count=0).as_py()
        found = self._table.slice(begin, most)
        times = found.column("timestamp").cast(pa.int64())
        offsets, keys, values = (_column(found, name) for name in ("offset", "key", "value"))
        return list(map(InputRecord, offsets, times.to_pylist(), keys, values, _headers(found)))


def _column(found: Any, name: str) -> list[Any]:
    return found.column(name).to_pylist() if name in found.column_names else [None] * found.num_rows


def _headers(found: Any) -> Iterator[tuple[tuple[str, bytes], ...]]:
    column = found.column("headers") if "headers" in found.column_names else None
    if column is None or not compute.sum(compute.list_value_length(column), min_count=0).as_py():
        return iter([()] * found.num_rows)
    return (tuple((one["name"], one["value"]) for one in each) for each in column.to_pylist())
