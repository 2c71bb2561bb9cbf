"""How far a file was appended to a topic, noted in the transactions of its rows: an append that was killed can be repeated.

The topic ``tailrace.appended`` has a note for each topic and path of a file: the last row that was read, a digest of
all rows up to it, and whether the file ended there.

=================================================  ============================================================
if the file is appended again, and
=================================================  ============================================================
its rows up to the note are the same               the rows after it are appended; there may be none
they are others, and the file had ended there      it is another file under this path: all rows are appended
they are others, and the append had been stopped   it is refused: it is not known which of its rows are there
=================================================  ============================================================

The transactional id is that of the topic and the path. So an append first aborts what an earlier one of the same file
has left open, and fences one that still runs. Only then does it read the note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

import click
import msgspec

from tailrace.cli.row_files import Row
from tailrace.core.counting import offsets
from tailrace.core.errors import ForeignLogError, LogUnavailableError, TopicReplacedError
from tailrace.core.records import Output
from tailrace.history.reading.handed_over import APPENDED
from tailrace.history.reading.stretches import scan
from tailrace.log.interface import StoredLog, TopicPartition, TopicSettings


class Note(msgspec.Struct, frozen=True):
    """How far a file was appended."""

    row: int
    digest: bytes
    is_end: bool
    topic: bytes
    """What the log notes of the topic: one that was created again has none of the rows."""


class Source(NamedTuple):
    """What the rows to append come from: a file, standard input, a table of another system."""

    name: str
    """For messages."""
    identity: str
    """What its note is kept under, beside the topic. Empty: nothing is noted, as it cannot be read twice."""
    rows: Callable[[], Iterator[Row]]
    """Reads all of its rows, the same in the same order each time."""
    unit: str
    """What a row is called: a line, a row."""
    if_invalid: str
    """What to do about an invalid row. ``{row}`` is its number."""
    if_changed: str
    """What to do if the rows that were appended by a stopped command have changed."""
    again: str = ""
    """How to append rows that were appended before, if that is possible."""


class FileNotes:
    """Appends the rows of a source with a note. The caller must close it."""

    def __init__(self, log: StoredLog, topic: str, source: Source) -> None:
        self._log, self._source, self._begin = log, source, {TopicPartition(topic, 0): 0}
        self._key = note_key(topic, source.identity)
        log.create_topic(APPENDED, TopicSettings(1, compacted=True))
        self._writer = log.writer(f"append-{blake2b(self._key, digest_size=16).hexdigest()}")
        self._digest = blake2b(digest_size=16)
        self._row = 0
        self._of = log.note(self._begin)
        self._noted: tuple[int, bool] | None = None
        self.close = self._writer.close

    def appended(self, from_row: int | None) -> int:
        """The last row that was appended before; 0 if there is none. Raises ClickException: see above."""
        note = self._read()
        if note is None:
            return 0
        digest = blake2b(digest_size=16)
        for row in self._source.rows():
            if row.number > note.row:
                break
            digest.update(_encoded(row))
        if digest.digest() == note.digest:
            self._noted = note.row, note.is_end
            return note.row
        if not note.is_end and from_row is None:
            raise click.ClickException(
                f"an append of {self._source.name} was stopped after its row {note.row:,}, and these rows have changed since. "
                f"Nothing was appended now. {self._source.if_changed}"
            )
        return 0

    def add(self, row: Row) -> None:
        """Count a row as read."""
        self._digest.update(_encoded(row))
        self._row = row.number

    def commit(self, batch: Sequence[Output], now_ms: int, *, is_end: bool) -> None:
        """Commit records, and the note of the rows read."""
        if not batch and self._noted is not None and (self._row, is_end) <= self._noted:
            return
        note = Note(self._row, self._digest.digest(), is_end, self._of)
        self._writer.append(batch)
        self._writer.append([Output(APPENDED, self._key, msgspec.json.encode(note), now_ms)])
        self._writer.commit()
        self._noted = self._row, is_end

    def _read(self) -> Note | None:
        found = None
        for record in scan(self._log, APPENDED, 0, on_hidden=_refuse_hidden):
            found = record if record.key == self._key else found
        if found is None:
            return None
        try:
            note = msgspec.json.decode(found.value or b"", type=Note)
        except msgspec.MsgspecError as error:
            raise ForeignLogError(
                f"the topic {APPENDED!r} has a record at offset {found.offset} which is no note of an append: {error}",
                hint="Find the program that writes to it.",
            ) from error
        with suppress(TopicReplacedError):
            self._log.resume(note.topic, self._begin)
            return note
        return None


def note_key(topic: str, identity: str) -> bytes:
    """The key of the notes of a source, for a topic."""
    return f"{topic} {identity}".encode(errors="surrogateescape")


def _refuse_hidden(_place: TopicPartition, first: int, stop: int) -> None:
    raise LogUnavailableError(
        f"a transaction that is open hides {offsets(first, stop)} of {APPENDED!r}, so it is not known which rows were appended",
        hint="Nothing was appended now. Run the command again when the transaction has ended.",
    )


def _encoded(row: Row) -> bytes:
    content = row.content if isinstance(row.content, bytes) else repr(row.content).encode()
    return b"%d %b\n" % (row.number, content)
