"""Dead letters: records that a task could not handle. They can be redriven after the cause is fixed.

Theory. Redriving appends the original record to the topic it came from, with a header that names its dead
letter. The topic ``<app>.redriven`` has a *note* for each redriven letter, written in the same transaction as
the record, both or neither. A redrive first takes over a transactional id, which resolves a transaction that
an earlier redrive left open, and fences a redrive that is still running. Only then does it read the notes. So
each letter is redriven once, even if processes are killed or the redrive is repeated. A record that fails
again makes another letter, which can be redriven.

"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from functools import cache, partial
from typing import NamedTuple, get_args

import msgspec

from tailrace.core.counting import offsets
from tailrace.core.engine.redriven import OPERATORS_HEADER, redriven_header
from tailrace.core.errors import (
    HANDLER_FAILED,
    BadReason,
    ForeignLogError,
    LogUnavailableError,
    TopicReplacedError,
    UnknownTopicError,
)
from tailrace.core.names import apps_in, dead_letters_of, redrive_transactional_id, redriven_of
from tailrace.core.records import Headers, InputRecord, Output
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.residence import check_lives_here
from tailrace.history.reading.stretches import OnHidden, scan
from tailrace.log.interface import Log, TopicPartition, TopicSettings, Writer

REASONS = (HANDLER_FAILED, *get_args(BadReason))
"""All reasons."""
_FIRST_HEADER = "tailrace-reason"
FOREIGN = "foreign"
"""The reason of a record that no task has written."""
_BY_ANOTHER = "no task has written this record: another program writes to the dead letters"
_ID = re.compile(r"(\d+)-(\d+)")
_AT_ONCE = 5_000


class DeadLetter(NamedTuple):
    """A record or timer that was not handled. Of a timer ``topic``, ``record.key`` and ``value`` are None."""

    partition: int
    record: InputRecord
    """It has the key, value, timestamp and headers of the original, and the offset of the dead letter."""
    reason: str
    error: str
    topic: str | None
    origin_partition: int | None
    origin_offset: int | None
    handler: str | None
    actor: str | None
    timer: str | None
    key: str | None
    """The key that the handler had, as text."""
    operators: str | None
    """The operators of the unit, if others have handled the record in units of their own."""
    traceback: str | None

    @property
    def can_redrive(self) -> bool:
        """Whether there is a record to redrive."""
        return self.topic is not None

    @property
    def id(self) -> str:
        """The position of the letter itself: ``<partition>-<offset>``."""
        return f"{self.partition}-{self.record.offset}"


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """A letter that was redriven or settled: the position of its new record, and of the original."""

    topic: str
    partition: int = -1
    start: int = 0
    """The record is at this offset or after it: its own offset is not known before the commit."""
    origin: tuple[int, int] | None = None
    """Partition and offset of the original."""
    snapshot: str = ""
    """It was not redriven: the app was started from this snapshot, in which it is handled."""
    at_ms: int = 0
    """The time of the redrive: the timestamp of the note's record, which is not stored in the note itself."""
    letters: bytes = b""
    """What the log notes of the letter's topic: a topic created again has other letters."""


def is_before(note: Note, topic: str | None, partition: int | None, offset: int) -> bool:
    """Whether a record was there before the redrive of a note. If its header names the letter all the same,
    it was redriven for another letter with this id, in a topic of dead letters that was deleted since.
    """
    return (topic, partition) == (note.topic, note.partition) and offset < note.start


class Redriven(NamedTuple):
    """The result of a redrive: letters redriven now, redriven before, and without a record to redrive."""

    sent: list[str]
    before: list[str]
    without_record: list[str]
    rebuilt: list[str]
    """Handled by a rebuild that the app was started from."""
    foreign: list[str]
    """Written by another program."""
    of_tables: list[str]
    """From a table, of which an old value would become the newest one."""


def parse_id(text: str) -> tuple[int, int] | None:
    """Partition and offset of an id; None if the text is no id."""
    found = _ID.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))


def dead_letters(log: Log, app: str, on_hidden: OnHidden | None = None) -> Iterator[DeadLetter]:
    """All dead letters that the log still has, by partition; ``on_hidden`` as with ``stretches.scan``.
    Raises UnknownTopicError: the app has never run on this log.
    """
    topic = dead_letters_of(app)
    for partition in range(_partitions(log, app)):
        for record in scan(log, topic, partition, on_hidden=on_hidden):
            yield read(partition, record)


def dead_letter(
    log: Log, app: str, partition: int, offset: int, on_hidden: OnHidden | None = None
) -> DeadLetter | None:
    """One dead letter; None if it is missing."""
    if partition >= _partitions(log, app):
        return None
    found = next(scan(log, dead_letters_of(app), partition, offset, offset + 1, on_hidden=on_hidden), None)
    return None if found is None else read(partition, found)


def read(partition: int, record: InputRecord) -> DeadLetter:
    """A record of the dead-letter topic as a ``DeadLetter``."""
    names = [name for name, _ in record.headers]
    # Use the last one: the record may itself be redriven, or come from another app's dead letters.
    cut = len(names) - 1 - names[::-1].index(_FIRST_HEADER) if _FIRST_HEADER in names else len(names)
    found = {name: value.decode(errors="replace") for name, value in record.headers[cut:]}

    def number(name: str) -> int | None:
        text = found.get(name, "")
        return int(text) if text.isdecimal() else None

    return DeadLetter(
        partition=partition,
        record=record._replace(headers=record.headers[:cut]),
        reason=found.get(_FIRST_HEADER, FOREIGN),
        error=found.get("tailrace-error", "" if _FIRST_HEADER in found else _BY_ANOTHER),
        topic=found.get("tailrace-topic"),
        origin_partition=number("tailrace-partition"),
        origin_offset=number("tailrace-offset"),
        handler=found.get("tailrace-handler"),
        actor=found.get("tailrace-actor"),
        timer=found.get("tailrace-timer"),
        key=found.get("tailrace-key"),
        operators=found.get(OPERATORS_HEADER),
        traceback=found.get("tailrace-traceback"),
    )


def notes(log: Log, app: str, on_hidden: OnHidden | None = None) -> dict[str, Note]:
    """The notes of letters that were redriven or settled, by id; ``on_hidden`` as with ``stretches.scan``."""
    topic = redriven_of(app)
    if topic not in log.topics():
        return {}
    found: dict[str, Note] = {}
    is_there = cache(partial(_is_there, log, app))
    for record in scan(log, topic, 0, on_hidden=on_hidden):
        if record.key is None:
            continue
        if record.value is None:  # it waits again
            found.pop(record.key.decode(errors="replace"), None)
            continue
        try:
            note = msgspec.json.decode(record.value, type=Note)
            if is_there(note.letters):
                found[record.key.decode()] = msgspec.structs.replace(note, at_ms=record.timestamp_ms)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _foreign_note(app, record, error) from error
    return found


def letters_note(log: Log, app: str) -> bytes:
    """What the log notes of the topic that has the dead letters of an app now."""
    topic = dead_letters_of(app)
    return log.note({TopicPartition(topic, 0): 0}) if topic in log.topics() else b""


def _is_there(log: Log, app: str, letters: bytes) -> bool:
    """Whether the topic of an app's dead letters is still the one of which ``letters`` was noted."""
    try:
        log.resume(letters, {TopicPartition(dead_letters_of(app), 0): 0})
    except TopicReplacedError:
        return False
    return True


def _foreign_note(app: str, record: InputRecord, error: Exception) -> ForeignLogError:
    return ForeignLogError(
        f"the topic {redriven_of(app)!r} has a record at offset {record.offset} which is no note of a "
        f"redrive: {error}",
        hint="Find who else writes to it. Until then it is not certain which dead letters were redriven.",
    )


def redrive(
    log: Log,
    app: str,
    wanted: Callable[[DeadLetter], bool],
    *,
    now_ms: int,
    dry_run: bool = False,
    on_hidden: OnHidden | None = None,
) -> Redriven:
    """Append the records of the wanted letters again to the topics they came from, each once.

    A record with a key goes to the partition of murmur2, also if it came from another one. One without a key
    goes to its old partition. ``on_hidden`` is called for letters, and with ``dry_run`` for
    notes, that an open transaction hides. Raises AppMovedError, LogUnavailableError, UnknownTopicError or FencedError.
    """
    check_lives_here(log, app)
    letters = filter(wanted, dead_letters(log, app, on_hidden=on_hidden))
    outcome = Redriven([], [], [], [], [], [])
    _partitions(log, app)
    tables = {name for name, one in log.topics().items() if one.compacted}
    if dry_run:
        noted = notes(log, app, on_hidden)
        for letter in letters:
            _list_of(letter, noted, outcome, tables).append(letter.id)
        return outcome
    log.create_topic(redriven_of(app), TopicSettings(1, compacted=True))
    with closing(log.writer(redrive_transactional_id(app))) as writer:
        noted = notes(log, app, _refuse_hidden)
        of = letters_note(log, app)
        open_: list[str] = []
        for letter in letters:
            found = _list_of(letter, noted, outcome, tables)
            if found is not outcome.sent:
                found.append(letter.id)
                continue
            _append(log, writer, app, letter, of, now_ms)
            open_.append(letter.id)
            if len(open_) >= _AT_ONCE:
                writer.commit()
                outcome.sent.extend(open_)
                open_.clear()
        if open_:
            writer.commit()
            outcome.sent.extend(open_)
    return outcome


def _list_of(
    letter: DeadLetter, noted: Mapping[str, Note], outcome: Redriven, tables: Collection[str]
) -> list[str]:
    """The list of an outcome that a letter belongs to; ``sent`` for one that is to be redriven."""
    if letter.reason == FOREIGN:
        return outcome.foreign
    if not letter.can_redrive:
        return outcome.without_record
    if letter.topic in tables:
        return outcome.of_tables
    if letter.id not in noted:
        return outcome.sent
    return outcome.rebuilt if noted[letter.id].snapshot else outcome.before


def _refuse_hidden(place: TopicPartition, first: int, stop: int) -> None:
    raise LogUnavailableError(
        f"a transaction that is open hides {offsets(first, stop)} of {place.topic!r} partition "
        f"{place.partition}, so it is not known which dead letters were redriven",
        hint="Nothing was redriven. Run the command again when the transaction has ended.",
    )


def _append(log: Log, writer: Writer, app: str, letter: DeadLetter, of: bytes, now_ms: int) -> None:
    assert letter.topic is not None
    _, timestamp_ms, key, value, headers = letter.record
    origin = _origin(letter)
    again: Headers = (*headers, redriven_header(dead_letters_of(app), letter.id, origin))
    if letter.operators is not None:
        again = (*again, (OPERATORS_HEADER, letter.operators.encode()))
    partition = _goes_to(letter, log.partitions(letter.topic))
    start = log.end_offset(letter.topic, partition)
    note = Note(letter.topic, partition, start, origin, letters=of)
    writer.append([Output(letter.topic, key, value, timestamp_ms, again)], partition)
    writer.append([Output(redriven_of(app), letter.id.encode(), msgspec.json.encode(note), now_ms)])


def _goes_to(letter: DeadLetter, partitions: int) -> int:
    """The partition that a letter's record is appended to."""
    if letter.record.key is None and letter.origin_partition is not None:
        return letter.origin_partition
    return partition_of(letter.record.key or b"", partitions)


def _origin(letter: DeadLetter) -> tuple[int, int] | None:
    if letter.origin_partition is None or letter.origin_offset is None:
        return None
    return letter.origin_partition, letter.origin_offset


def _partitions(log: Log, app: str) -> int:
    try:
        return log.partitions(dead_letters_of(app))
    except UnknownTopicError:
        raise UnknownTopicError(
            f"the log has no dead letters of an app {app!r}",
            topic=dead_letters_of(app),
            hint=did_you_mean(
                app,
                apps_in(log.topics()),
                "Correct the app's name or the log's folder; an app that was run has this topic.",
            ),
        ) from None
