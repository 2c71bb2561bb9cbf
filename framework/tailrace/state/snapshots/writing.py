"""Writes the tables of one task, in any process, in any number of attempts.

Each attempt writes files with names of its own, so two attempts at one task (a retry, a slow duplicate) never
change each other's files. Only the manifest determines which of them belong to the snapshot.
"""

from __future__ import annotations

import hashlib
import operator
import re
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import IO, Any, TypeVar

from tailrace.core import rows as core_rows
from tailrace.core.errors import CorruptStateError, UsageError
from tailrace.core.records import InputRecord
from tailrace.state.snapshots import tables
from tailrace.state.snapshots.arrow import pa, parquet
from tailrace.state.snapshots.manifest import FORMAT, FileInfo, TableName
from tailrace.state.snapshots.places import Place

ROWS_IN_A_GROUP = 100_000
BYTES_IN_A_GROUP = 64 << 20
_PULLED = 256  # rows between two looks at how many bytes there are
_SEARCHED = (
    "actor",
    "key",
    "kind",
    "field",
    "expiry_ms",
    "domain",
    "time_ms",
    "offset",
    "timestamp_ms",
    "row",
)
_END_OF_STATE = core_rows.prefix_end(core_rows.STATE)
_ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,80}")

Item = TypeVar("Item")


def write_task(
    folder_uri: str,
    partition: int,
    attempt: str,
    rows: Iterable[tuple[bytes, bytes]],
    *,
    messages: Iterable[InputRecord] = (),
    deleted: Iterable[bytes] | None = None,
    rows_in_a_group: int = ROWS_IN_A_GROUP,
    bytes_in_a_group: int = BYTES_IN_A_GROUP,
) -> tuple[FileInfo, ...]:
    """Write the files of one task into the folder of a draft. Returns those of tables with rows.

    ``rows`` are strictly ascending by their bytes; index rows and the task's own rows are left out.
    ``messages`` are those of the inbox between the receiver's position and its end at the cut. ``deleted``,
    strictly ascending, are the rows that the parent of an incremental snapshot has and this one has not.
    A row group ends when it has ``rows_in_a_group`` rows, or ``bytes_in_a_group`` bytes.

    Raises UsageError (not ascending), CorruptStateError (a row of no known form), SnapshotUnavailableError.
    The files of a failed attempt are taken away where that is possible; nobody looks at them.
    """
    if not _ATTEMPT.fullmatch(attempt):
        raise UsageError(f"an attempt is named by letters, digits, - and _; not {attempt!r}")
    folder = Place.at(folder_uri)
    folder.make()
    with ExitStack() as open_files:
        files = _Files(folder, partition, attempt, open_files)
        size = rows_in_a_group, bytes_in_a_group
        for keys, values in _state_chunks(rows, size):
            state, timers = tables.state_tables(keys, values)
            files.write(tables.STATE, state)
            files.write(tables.TIMERS, timers)
        for records in _groups(messages, _message_size, size):
            files.write(tables.MESSAGES, tables.messages_table(records))
        last: bytes | None = None
        for gone in _groups(deleted or (), len, size):
            _must_ascend(last, gone)
            last = gone[-1]
            files.write(tables.DELETED, tables.deleted_table(gone))
    return files.written


def _state_chunks(rows: Iterable[tuple[bytes, bytes]], size: tuple[int, int]) -> Iterator[tables.Chunk]:
    """The state rows in chunks of at most a row group; other rows are checked and left out."""
    last: bytes | None = None
    for pairs in _groups(rows, lambda pair: len(pair[0]) + len(pair[1]), size):
        keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        _must_ascend(last, keys)
        last = keys[-1]
        first, stop = bisect_left(keys, core_rows.STATE), bisect_left(keys, _END_OF_STATE)
        for row in (*keys[:first], *keys[stop:]):
            if row[:1] not in (core_rows.INDEX, core_rows.KEEP):
                raise CorruptStateError(f"a row with an unknown prefix: {row!r}")
        if first < stop:
            yield keys[first:stop], values[first:stop]


def _groups(
    items: Iterable[Item], bytes_of: Callable[[Item], int], size: tuple[int, int]
) -> Iterator[list[Item]]:
    source, group, weight = iter(items), list[Item](), 0
    while some := list(islice(source, _PULLED)):
        group += some
        weight += sum(map(bytes_of, some))
        if len(group) >= size[0] or weight >= size[1]:
            yield group
            group, weight = [], 0
    if group:
        yield group


def _message_size(message: InputRecord) -> int:
    return len(message.key or b"") + len(message.value or b"") + 64 * len(message.headers)


def _must_ascend(last: bytes | None, keys: Sequence[bytes]) -> None:
    ascending = all(map(operator.lt, keys, islice(keys, 1, None)))
    if not ascending or (last is not None and last >= keys[0]):
        raise UsageError(
            "the rows of a snapshot must come in strictly ascending order", hint="Sort them by their bytes."
        )


class _Files:
    """The files of one attempt: each is begun with its first batch, and described when it is closed."""

    def __init__(self, folder: Place, partition: int, attempt: str, open_files: ExitStack) -> None:
        self._folder, self._partition, self._attempt = folder, partition, attempt
        self._open_files = open_files
        self._writers: dict[TableName, Callable[[Any], None]] = {}
        self._closed: dict[TableName, FileInfo] = {}

    @property
    def written(self) -> tuple[FileInfo, ...]:
        """The files, once they are closed."""
        return tuple(self._closed[table] for table in self._writers)

    def write(self, table: TableName, batch: Any) -> None:
        """Append a batch to a table, as a row group of its own."""
        if not batch.num_rows:
            return
        if table not in self._writers:
            self._writers[table] = self._open_files.enter_context(self._file(table))
        self._writers[table](batch)

    @contextmanager
    def _file(self, table: TableName) -> Generator[Callable[[Any], None]]:
        name, rows = f"{self._partition:05d}-{table}-{self._attempt}.parquet", 0
        with (self._folder / name).stream() as stream:
            sink = _Hashing(stream)
            writer = self._writer(table, sink)

            def write(batch: Any) -> None:
                nonlocal rows
                rows += batch.num_rows
                writer.write_batch(batch, row_group_size=batch.num_rows)

            try:
                yield write
                writer.close()
            except BaseException:
                sink.abandoned = True  # the writer still writes its end when it is deleted
                raise
        self._closed[table] = FileInfo(name, table, rows, sink.size, sink.digest.hexdigest())

    def _writer(self, table: TableName, sink: _Hashing) -> Any:
        about = {
            "tailrace.format": str(FORMAT),
            "tailrace.table": table,
            "tailrace.partition": str(self._partition),
        }
        schema = tables.schema_of(table)
        return parquet.ParquetWriter(
            pa.PythonFile(sink, mode="w"),
            schema.with_metadata(about),
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in schema.names if name in tables.NAMES],
            write_statistics=[name for name in schema.names if name in _SEARCHED],
            write_page_checksum=True,
            write_page_index=True,
        )


class _Hashing:
    """What pyarrow writes into: passes it on, counted and hashed."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self.digest = hashlib.sha256()
        self.size = 0
        self.closed = False
        self.abandoned = False

    def write(self, data: bytes) -> int:
        """Take some bytes."""
        if self.abandoned:
            return len(data)
        self.digest.update(data)
        self._target.write(data)
        self.size += len(data)
        return len(data)

    def report(self) -> int:
        """How many there were."""
        return self.size

    def flush(self) -> None:
        """Does nothing: the code that opened the target flushes it."""

    def close(self) -> None:
        """Does nothing: the code that opened the target closes it."""
