"""Reads a snapshot: its rows for a store, its tables as Arrow batches, and a check that it is undamaged.

An incremental snapshot is read through its parents, oldest first: each level says which rows it has written
and which are gone. The merge goes by chunks of rows, so that what did not change costs next to nothing.

The sha256 of each file is compared before the first of its rows is given. The checksums of Parquet's pages do
not cover what stands between the pages: a single bit there was seen to turn a column into nulls.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from tailrace.core.errors import AlteredSnapshotError, SnapshotError
from tailrace.core.records import InputRecord
from tailrace.state.snapshots import tables
from tailrace.state.snapshots.arrow import dataset, pa, parquet
from tailrace.state.snapshots.manifest import HELD_BY, FileInfo, Manifest, TableName, TaskEntry
from tailrace.state.snapshots.places import Place

ROWS_IN_A_CHUNK = 50_000
_MOST_ROWS, _MOST_BYTES = 1_000_000, 256 << 20
"""Of a group of rows."""
_HASHED_AT_ONCE = 4 << 20
_HELD_IN_MEMORY = 64 << 20
"""Up to this size a file is fetched once, hashed and read from memory; a larger one is read twice."""

_USE_ANOTHER = "Use another snapshot, or rebuild one from the log. This one is left unchanged."
_IS_MISSING = "is missing"
_DIFFERS = "differs from the published one: its sha256 differs"

Changes: TypeAlias = tuple[list[bytes], "list[bytes | None]"]


class Problem(msgspec.Struct, frozen=True):
    """What ``verify`` found: in which snapshot of the chain, which file, and what is wrong with it."""

    snapshot: str
    file: str
    what: str


class Level(NamedTuple):
    """One snapshot of a chain, and its folder."""

    manifest: Manifest
    place: Place


class Snapshot:
    """A published snapshot. ``chain`` begins with the full one that it rests upon and ends with itself."""

    def __init__(self, chain: Sequence[Level]) -> None:
        self._chain = tuple(chain)

    def __reduce__(self) -> tuple[Any, ...]:
        return Snapshot, (self._chain,)

    @property
    def manifest(self) -> Manifest:
        """What is known about it."""
        return self._chain[-1].manifest

    @property
    def uri(self) -> str:
        """Where its folder is."""
        return self._chain[-1].place.uri

    @property
    def chain(self) -> tuple[Manifest, ...]:
        """The manifests that it rests upon, the full one first, its own last."""
        return tuple(level.manifest for level in self._chain)

    def hold(self, app: str) -> None:
        """Note that the history of an app begins with it: retention keeps it from then on."""
        (self._chain[-1].place / f"{HELD_BY}{app}").write(b"")

    # --- rows ---

    def rows(self, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """The state rows of a task and their values, ascending by bytes.

        Raises AlteredSnapshotError or SnapshotUnavailableError before the first row that is not sure, and
        KeyError for a partition that the app has not.
        """
        for keys, values in self.chunks(partition):
            yield from zip(keys, values, strict=True)

    def chunks(self, partition: int) -> Iterator[tables.Chunk]:
        """The same rows in lists of up to some ten thousand: (rows, values)."""
        merged: Iterator[Changes] = iter(())
        for number, level in enumerate(self._chain):
            changes = self._changes(level, level.manifest.task(partition))
            merged = overlaid(merged, changes) if number else changes
        for keys, values in merged:
            if None in values:  # a level may name rows as gone that its parent never had
                keys, values = _kept(dict(zip(keys, values, strict=True)), keep_deleted=False, is_sorted=True)
            yield keys, cast("list[bytes]", values)

    def changes_since(self, parent: str, partition: int) -> Iterator[Changes]:
        """The rows of a task that were written after the snapshot ``parent`` of the chain, in such lists; None: the row is gone.

        Raises what ``rows`` does.
        """
        merged: Iterator[Changes] = iter(())
        since = [level.manifest.id for level in self._chain].index(parent) + 1
        for level in self._chain[since:]:
            changes = self._changes(level, level.manifest.task(partition))
            merged = overlaid(merged, changes, keep_deleted=True)
        return merged

    def messages(self, partition: int) -> Iterator[InputRecord]:
        """The inbox records between the receiver's position and its end at the cut, in their order."""
        level = self._chain[-1]
        for batch in self._batches(level, level.manifest.task(partition), tables.MESSAGES):
            yield from tables.messages_of(batch)

    def _changes(self, level: Level, task: TaskEntry) -> Iterator[Changes]:
        """What one level says of a task: rows with their values, None for those that are gone."""
        found = self._rows_of(level, task, tables.STATE)
        if _files(task, tables.TIMERS):
            found = overlaid(found, self._rows_of(level, task, tables.TIMERS))
        if _files(task, tables.DELETED):
            found = overlaid(found, self._deleted(level, task), keep_deleted=True)
        return found

    def _rows_of(self, level: Level, task: TaskEntry, table: TableName) -> Iterator[Changes]:
        for batch in self._batches(level, task, table):
            keys, values = tables.CHUNKS[table](batch)
            if keys:
                yield keys, list[bytes | None](values)

    def _deleted(self, level: Level, task: TaskEntry) -> Iterator[Changes]:
        for batch in self._batches(level, task, tables.DELETED):
            keys: list[bytes] = batch.column("row").to_pylist()
            yield keys, [None] * len(keys)

    # --- columns ---

    def batches(
        self,
        table: TableName,
        partition: int | None = None,
        columns: Sequence[str] | None = None,
        filter: Any = None,
    ) -> Iterator[Any]:
        """A table as ``pyarrow.RecordBatch``es, of one task or of all by partition, in the order of its rows.

        ``filter`` is a ``pyarrow.compute.Expression``. Each file's sha256 is compared before it is read.

        Raises what ``rows`` does, and ``pyarrow.ArrowException`` for a filter or column that the table does
        not know.
        """
        level, is_merged = self._chain[-1], table in tables.CHUNKS and len(self._chain) > 1
        for task in level.manifest.tasks:
            if partition is not None and task.partition != partition:
                continue
            if is_merged:
                yield from narrowed(self._merged(table, task.partition), columns, filter)
            else:
                yield from self._scanned(level, task, table, columns, filter)

    def _merged(self, table: TableName, partition: int) -> Iterator[Any]:
        for keys, values in self.chunks(partition):
            state, timers = tables.state_tables(keys, values)
            batch = state if table == tables.STATE else timers
            if batch.num_rows:
                yield batch

    def _scanned(
        self, level: Level, task: TaskEntry, table: TableName, columns: Sequence[str] | None, filter: Any
    ) -> Iterator[Any]:
        wanted, schema = None if columns is None else list(columns), tables.schema_of(table)
        for file in _files(task, table):
            with self._reading(level, file), _proven(level, file) as source:
                _checked(level, file, source)
                found = dataset.ParquetFileFormat().make_fragment(source)
                for batch in found.to_batches(schema, wanted, filter, batch_size=ROWS_IN_A_CHUNK):
                    if batch.num_rows:
                        yield batch

    # --- what is in the files ---

    def _batches(self, level: Level, task: TaskEntry, table: TableName) -> Iterator[Any]:
        for file in _files(task, table):
            with self._reading(level, file), _proven(level, file) as source:
                reader = _checked(level, file, source)
                # One by one: all groups of a file would be fetched at once, and they are small on purpose.
                for group in range(reader.num_row_groups):
                    yield from reader.iter_batches(
                        batch_size=ROWS_IN_A_CHUNK, row_groups=[group], use_threads=False
                    )

    @contextmanager
    def _reading(self, level: Level, file: FileInfo) -> Generator[None]:
        place = level.place / file.name
        try:
            with place.failures("reading"):
                yield
        except FileNotFoundError as error:
            raise _altered(level, file, _IS_MISSING) from error

    # --- whole or not ---

    def check(self) -> None:
        """Check that every file of the chain is there and has its size. Raises the first problem."""
        for level in self._chain:
            sizes = {entry.name: entry.size for entry in level.place.entries() if not entry.is_folder}
            for file in (file for task in level.manifest.tasks for file in task.files):
                if file.name not in sizes:
                    raise _altered(level, file, _IS_MISSING)
                if sizes[file.name] != file.bytes:
                    what = (
                        f"differs from the published one: it has {sizes[file.name]} bytes, not {file.bytes}"
                    )
                    raise _altered(level, file, what)

    def verify(self) -> list[Problem]:
        """Read every byte of the chain, return what is missing or altered. Raises SnapshotUnavailableError."""
        problems = list[Problem]()
        for level in self._chain:
            for task in level.manifest.tasks:
                for file in task.files:
                    try:
                        for _ in self._batches(
                            level, msgspec.structs.replace(task, files=(file,)), file.table
                        ):
                            pass
                    except AlteredSnapshotError as error:
                        problems.append(Problem(level.manifest.id, file.name, error.what))
        return problems


def linked(chain: Sequence[Level], app: str) -> Snapshot:
    """The snapshot at the end of a chain, if its members fit together. Raises SnapshotError."""
    for level in chain:
        if level.manifest.app != app:
            raise SnapshotError(
                f"the snapshot is of app {level.manifest.app!r}, not of app {app!r}",
                snapshot=level.manifest.id,
                path=level.place.shown,
                hint="Give the name of that app, or the location of this app's snapshots.",
            )
    return Snapshot(chain)


def overlaid(
    base: Iterable[Changes], changes: Iterable[Changes], *, keep_deleted: bool = False
) -> Iterator[Changes]:
    """Two ascending streams as one: ``changes`` replace, None deletes (``keep_deleted``: stays, as None)."""
    coming = iter(changes)
    pending = next(coming, None)
    for keys, values in base:
        if pending is None or not keys or pending[0][0] > keys[-1]:
            yield keys, values
            continue
        merged = dict(zip(keys, values, strict=True))
        last, size = keys[-1], len(keys)
        while pending is not None and pending[0][0] <= last:
            here, pending = _split(pending, last)
            merged.update(zip(*here, strict=True))
            if not pending[0]:
                pending = next(coming, None)
        yield _kept(merged, keep_deleted, is_sorted=len(merged) == size)
    rest = coming if pending is None else chain((pending,), coming)
    for keys, values in rest:
        yield _kept(dict(zip(keys, values, strict=True)), keep_deleted, is_sorted=True)


def _split(changes: Changes, last: bytes) -> tuple[Changes, Changes]:
    keys, values = changes
    place = bisect_right(keys, last)
    return (keys[:place], values[:place]), (keys[place:], values[place:])


def _kept(merged: dict[bytes, bytes | None], keep_deleted: bool, *, is_sorted: bool) -> Changes:
    found = merged if keep_deleted else {key: value for key, value in merged.items() if value is not None}
    keys = list(found) if is_sorted else sorted(found)
    return keys, [found[key] for key in keys]


def narrowed(batches: Iterable[Any], columns: Sequence[str] | None, filter: Any) -> Iterator[Any]:
    """Batches without the rows that a filter leaves out, and with some columns; no empty one."""
    for batch in batches:
        found = pa.Table.from_batches([batch])
        if filter is not None:
            found = found.filter(filter)
        if columns is not None:
            found = found.select(list(columns))
        if found.num_rows:
            yield from found.to_batches()


def _files(task: TaskEntry, table: TableName) -> list[FileInfo]:
    return [file for file in task.files if file.table == table]


def _checksum(place: Place) -> str:
    digest = hashlib.sha256()
    with place.open() as stream:
        while data := stream.read(_HASHED_AT_ONCE):
            digest.update(data)
    return digest.hexdigest()


@contextmanager
def _proven(level: Level, file: FileInfo) -> Generator[Any]:
    """A file whose content has just been seen to be what was published."""
    place = level.place / file.name
    if file.bytes <= _HELD_IN_MEMORY:
        data = place.read()
        found = hashlib.sha256(data).hexdigest()
    else:
        data = None
        found = _checksum(place)
    if found != file.sha256:
        raise _altered(level, file, _DIFFERS)
    if data is not None:
        yield pa.BufferReader(data)
        return
    with place.open() as stream:
        yield stream


def _checked(level: Level, file: FileInfo, source: Any) -> Any:
    """A file opened as Parquet, if it is as we write them: what a few bytes can stand for is bounded before it is read."""
    try:
        reader = parquet.ParquetFile(source)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and not isinstance(source, pa.BufferReader):
            raise  # of the disk
        raise _altered(level, file, f"cannot be read: {error}") from None
    about, names = reader.metadata, tables.schema_of(file.table).names
    if reader.schema_arrow.names != names or about.num_rows != file.rows:
        raise _altered(level, file, "has other columns, or another number of rows, than the manifest says")
    for group in map(about.row_group, range(about.num_row_groups)):
        columns = map(group.column, range(group.num_columns))
        repeated = any(one.has_dictionary_page and one.path_in_schema not in tables.NAMES for one in columns)
        if repeated or group.num_rows > _MOST_ROWS or group.total_byte_size > _MOST_BYTES:
            raise _altered(level, file, "has a part that is larger than any that is written")
    return reader


def _altered(level: Level, file: FileInfo, what: str) -> AlteredSnapshotError:
    return AlteredSnapshotError(
        f"the file {file.name} {what}", snapshot=level.manifest.id, path=level.place.shown, hint=_USE_ANOTHER
    )
