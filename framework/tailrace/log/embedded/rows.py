"""Reads and writes the rows of the log.

``Rows`` reads, inside a transaction of its connection; ``Changes`` also writes. Both keep the small rows that
they have seen, as long as nobody else has changed the log. A block of records has a checksum, which is compared
whenever its records are read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tailrace.core.errors import CorruptLogError, UnknownTopicError
from tailrace.core.records import InputRecord
from tailrace.log.embedded import blocks as blocks_
from tailrace.log.embedded.database import LOW_BITS, OFFSETS, PARTITIONS, TOPICS, Connection, Table
from tailrace.log.embedded.failures import DAMAGED
from tailrace.log.interface import TopicPartition, TopicSettings
from tailrace.log.topic_rules import unknown_topic

_MOST_KEPT = 20_000
"""Number of small rows that are kept in memory."""
_LOW = (1 << LOW_BITS) - 1


class State(NamedTuple):
    """The row of the table ``log``."""

    identity: bytes
    commits: int


class Topic(NamedTuple):
    """A row of the table ``topics``."""

    first_place: int
    partitions: int
    compacted: int
    retention_ms: int | None
    retention_bytes: int | None

    @property
    def places(self) -> range:
        """The places of its partitions."""
        return range(self.first_place, self.first_place + self.partitions)

    @property
    def settings(self) -> TopicSettings:
        """As the interface has them."""
        return TopicSettings(self.partitions, bool(self.compacted), self.retention_ms, self.retention_bytes)


class Bounds(NamedTuple):
    """A row of the table ``partitions``."""

    start: int = 0
    end: int = 0
    highest_ms: int = -(1 << 63)
    """The highest timestamp that was ever appended."""
    bytes: int = 0
    """Length of its blocks."""


class Block(NamedTuple):
    """A row of the table ``blocks``, without its records.

    A block stands for the offsets from ``first`` up to, but not including, ``end``: each begins where the one before ends. Its
    records are from ``base`` to ``last``. Compaction leaves gaps, also at both sides.
    """

    place: int
    first: int
    end: int
    base: int
    last: int
    """``base - 1`` if no record is left."""
    max_ms: int
    highest_ms: int
    """The highest timestamp in the partition up to here. It never falls from one block to the next."""
    length: int
    checksum: int
    """CRC-32 of its records, followed by the other columns."""

    @property
    def id(self) -> int:
        """The id of its row."""
        return self.place << LOW_BITS | self.first

    @classmethod
    def sealed(cls, *columns: int, of_records: int) -> Block:
        """A block with its checksum. ``columns``: all others; ``of_records``: CRC-32 of its records."""
        return cls._make((*columns, zlib.crc32(_SEALED.pack(*columns), of_records)))


class Published(NamedTuple):
    """A row of the table ``publications``: valid for readers that have read partition p up to ``ends[p]``."""

    number: int
    publisher: str
    watermark_ms: int | None
    ends: Sequence[int]


_SEALED = struct.Struct("<8q")
_BLOCK_COLUMNS = "id, end_offset, base, last, max_ms, highest_ms, length, checksum"
_AT_OR_BEFORE = f"SELECT {_BLOCK_COLUMNS} FROM blocks WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"
_AT_OR_BEFORE_WITH_DATA = _AT_OR_BEFORE.replace("checksum FROM", "checksum, data FROM")
_FROM = f"SELECT {_BLOCK_COLUMNS} FROM blocks WHERE id BETWEEN ? AND ? ORDER BY id"
_INSERT_BLOCK = f"INSERT INTO blocks VALUES ({', '.join('?' * 9)})"
_PUBLISHED = "SELECT id, publisher, watermark_ms, ends FROM publications "
_LAST_PUBLISHED = f"""
    WITH RECURSIVE names(name) AS (  -- SQLite has no skip scan of an index
        SELECT min(publisher) FROM publications
        UNION ALL SELECT (SELECT min(publisher) FROM publications WHERE publisher > name) FROM names WHERE name NOT NULL
    )
    {_PUBLISHED} WHERE id IN (
        SELECT (SELECT max(id) FROM publications WHERE publisher = name AND id >= ?1 AND id < ?2) FROM names
        UNION SELECT (
            SELECT max(id) FROM publications WHERE publisher = name AND id >= ?1 AND id < ?2 AND watermark_ms NOT NULL
        ) FROM names
    ) ORDER BY id"""
_ends = msgspec.msgpack.Decoder(list[int])
_encoder = msgspec.msgpack.Encoder()


class Rows:
    """Reads rows through a connection. ``path`` is the file's, for errors."""

    def __init__(self, connection: Connection, path: Path) -> None:
        self.connection = connection
        self.path = path
        self._kept: dict[tuple[object, ...], tuple[Any, ...] | None] = {}

    def forget(self) -> None:
        """Forget the rows that are kept: somebody else may have changed them."""
        self._kept.clear()

    # --- small tables

    def state(self) -> State:
        """The state of the log."""
        row = self._one("SELECT identity, commits FROM log WHERE id = 1")
        if row is None:
            raise self.damage("the row with the state of the log")
        return State(*row)

    def get(self, table: Table, *key: object) -> tuple[Any, ...] | None:
        """The values of a row; None if there is no such row."""
        place = (table.name, *key)
        try:
            return self._kept[place]
        except KeyError:
            pass
        row = self._one(table.select, key)
        found = None if row is None else row[len(key) :]
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[place] = found
        return found

    def all(self, table: Table) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Key and values of each row of a table."""
        for row in list(self.connection.execute(table.select_all)):
            yield row[: table.keys], row[table.keys :]

    def topic(self, name: str) -> Topic:
        """The settings of a topic, and where it is."""
        values = self.get(TOPICS, name)
        if values is None:
            raise unknown_topic(name, [key[0] for key, _ in self.all(TOPICS)])
        return Topic(*values)

    def topics(self) -> dict[str, Topic]:
        """All topics by name, in the order of their creation."""
        found = {key[0]: Topic(*values) for key, values in self.all(TOPICS)}
        return dict(sorted(found.items(), key=lambda one: one[1].first_place))

    def place(self, topic: str, partition: int) -> int:
        """The place of a partition that exists."""
        found = self.topic(topic)
        if not 0 <= partition < found.partitions:
            raise UnknownTopicError(
                f"the topic has {found.partitions} partitions", topic=topic, partition=partition
            )
        return found.first_place + partition

    def bounds(self, place: int) -> Bounds:
        """Start and end of a partition."""
        values = self.get(PARTITIONS, place)
        if values is None:
            raise self.damage("the row of a partition")
        return Bounds(*values)

    def ends(self, topic: str) -> list[int]:
        """The end of each partition of a topic."""
        return [self.bounds(place).end for place in self.topic(topic).places]

    def committed(self, group: str, place: TopicPartition) -> int | None:
        """The offset that was committed last for a group."""
        values = self.get(OFFSETS, group, *place)
        return None if values is None else values[0]

    # --- blocks

    def block_at(self, place: int, offset: int) -> Block | None:
        """The block that stands for an offset; None at the end of the partition."""
        row = self._one(_AT_OR_BEFORE, (place << LOW_BITS, place << LOW_BITS | offset))
        return self._covering(row, place, offset)

    def records_at(self, place: int, offset: int) -> tuple[Block, list[InputRecord]] | None:
        """The block that stands for an offset, with all its records; None at the end of the partition."""
        row = self._one(_AT_OR_BEFORE_WITH_DATA, (place << LOW_BITS, place << LOW_BITS | offset))
        block = self._covering(None if row is None else row[:-1], place, offset)
        if block is None or row is None:
            return None
        return block, self._decoded(block, row[-1])

    def blocks(self, place: int, first: int = 0, before: int = _LOW) -> Iterator[Block]:
        """The blocks of a partition that begin at ``first`` or after it, and before another offset."""
        low = place << LOW_BITS
        for row in self.connection.execute(_FROM, (low | first, low | max(0, before - 1))):
            yield _block(row)

    def records(self, block: Block) -> list[InputRecord]:
        """The records of a block."""
        row = self._one("SELECT data FROM blocks WHERE id = ?", (block.id,))
        return self._decoded(block, None if row is None else row[0])

    def next_record(self, place: int, offset: int) -> Block | None:
        """The block with the next record at or after an offset; None if there is none."""
        while (block := self.block_at(place, offset)) is not None and block.last < offset:
            offset = block.end
        return block

    def first_at(self, place: int, timestamp_ms: int) -> int:
        """The first offset of the first block up to whose end there was a record of this time or later.

        The end of the partition if there is none. Bisects: the highest timestamps rise from block to block.
        """
        bounds = self.bounds(place)
        low, high = bounds.start, bounds.end
        while low < high:
            block = self.block_at(place, (low + high) // 2)
            assert block is not None
            if block.highest_ms >= timestamp_ms:
                high = max(low, block.first)
            else:
                low = block.end
        return low

    # --- publications

    def published(self, topic: int, number: int) -> Iterator[Published]:
        """The publications of a topic from a running number on."""
        low = topic << LOW_BITS
        for row in self.connection.execute(
            _PUBLISHED + "WHERE id BETWEEN ? AND ? ORDER BY id", (low | number, low | _LOW)
        ):
            yield _published(row)

    def published_before(self, topic: int, number: int) -> Published | None:
        """The last publication of a topic below a running number."""
        low = topic << LOW_BITS
        row = self._one(
            _PUBLISHED + "WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT 1", (low, low | min(number, _LOW))
        )
        return None if row is None else _published(row)

    def last_published(self, topic: int, number: int = _LOW) -> list[Published]:
        """Of each publisher its last publication below a running number, and its last watermark, in order."""
        low = topic << LOW_BITS
        rows = self.connection.execute(_LAST_PUBLISHED, (low, low | min(number, _LOW)))
        return [_published(row) for row in rows]

    def damage(self, what: str, place: int | None = None, offset: int | None = None) -> CorruptLogError:
        """The error for a row that is missing, or a block that does not match its checksum."""
        where = "" if place is None else f" of {self.name_of(place)}"
        where += "" if offset is None else f" from offset {offset} on"
        return CorruptLogError(
            f"{what}{where} is missing or does not have its checksum", path=str(self.path), hint=DAMAGED
        )

    def name_of(self, place: int) -> str:
        """Topic and partition, in words."""
        for name, topic in self.topics().items():
            if place in topic.places:
                return f"{name!r} partition {place - topic.first_place}"
        return f"partition {place} of the log"

    def _one(self, statement: str, bindings: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
        return next(self.connection.execute(statement, bindings), None)

    def _covering(self, row: tuple[Any, ...] | None, place: int, offset: int) -> Block | None:
        block = None if row is None else _block(row)
        if block is not None and offset < block.end:
            return block
        bounds = self.bounds(place)
        if bounds.start <= offset < bounds.end:
            raise self.damage("a block", place, offset)
        return None

    def _decoded(self, block: Block, data: Any) -> list[InputRecord]:
        try:
            checksum = zlib.crc32(_SEALED.pack(*block[:-1]), zlib.crc32(data))
        except (TypeError, struct.error):  # no row, or a value of another type
            checksum = None
        if checksum is None or checksum != block.checksum:
            raise self.damage("a block", block.place, block.first)
        return blocks_.decode(data, block.base) if block.last >= block.base else []


def _block(row: tuple[Any, ...]) -> Block:
    return Block(row[0] >> LOW_BITS, row[0] & _LOW, *row[1:])


def _published(row: tuple[Any, ...]) -> Published:
    identity, publisher, watermark_ms, ends = row
    return Published(identity & _LOW, publisher, watermark_ms, _ends.decode(ends))


class Changes(Rows):
    """Writes rows, inside a write transaction of the connection."""

    def begin(self) -> None:
        """Begin to change the log."""
        self.before = state = self.state()
        if self._seen != state:
            self.forget()
        self.changed = False

    _seen: State | None = None

    def end(self) -> State:
        """Count a commit. Returns the new state, which takes effect with COMMIT."""
        self._seen = state = self.before._replace(commits=self.before.commits + 1)
        self.connection.execute("UPDATE log SET commits = ? WHERE id = 1", (state.commits,))
        return state

    def forget(self) -> None:
        """Forget the rows that are kept: they were not committed, or somebody else may have changed them."""
        super().forget()
        self._seen = None

    def put(self, table: Table, key: tuple[object, ...], values: tuple[Any, ...]) -> None:
        """Insert or replace a row."""
        if self.get(table, *key) == values:
            return
        self.connection.execute(table.replace, (*key, *values))
        self._kept[table.name, *key] = tuple(values)
        self.changed = True

    def append(
        self, place: int, data: bytes, *, base: int, last: int, end: int, max_ms: int, checksum: int
    ) -> int:
        """Append a block to a partition, up to the offset ``end``. ``checksum``: CRC-32 of the data. Returns the new end."""
        start, first, highest_ms, size = self.bounds(place)
        highest_ms = max(highest_ms, max_ms)
        columns = place, first, end, base, last, max_ms, highest_ms, len(data)
        self.add_block(Block.sealed(*columns, of_records=checksum), data)
        self.put(PARTITIONS, (place,), (start, end, highest_ms, size + len(data)))
        return end

    def add_block(self, block: Block, data: bytes) -> None:
        """Insert a block."""
        self.connection.execute(_INSERT_BLOCK, (block.id, *block[2:], data))
        self.changed = True

    def drop_block(self, block: Block) -> None:
        """Delete a block."""
        self.connection.execute("DELETE FROM blocks WHERE id = ?", (block.id,))
        self.changed = True

    def publish(self, topic: int, publisher: str, watermark_ms: int | None, ends: Sequence[int]) -> None:
        """Insert a publication, after all others of the topic."""
        last = self.published_before(topic, _LOW)
        number = last.number + 1 if last else 1
        row = (topic << LOW_BITS | number, publisher, watermark_ms, _encoder.encode(ends))
        self.connection.execute("INSERT INTO publications VALUES (?, ?, ?, ?)", row)
        self.changed = True

    def drop_published(self, topic: int, number: int) -> None:
        """Delete a publication."""
        self.connection.execute("DELETE FROM publications WHERE id = ?", (topic << LOW_BITS | number,))
        self.changed = True
