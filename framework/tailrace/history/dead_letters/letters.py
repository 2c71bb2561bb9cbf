"""Dead letters: the records that a task could not handle. They can be read, and redriven after the cause is fixed.

Theory. Redriving appends the original record to the topic it came from, with a header that names its dead letter. The
topic ``<app>.redriven`` has a *note* for each redriven letter, written in the same transaction as the record, both or
neither. A redrive first takes over a transactional id, which resolves a transaction that an earlier redrive left open, and
fences a redrive that is still running. Only then does it read the notes. So each letter is redriven once, even if processes
are killed or the redrive is repeated. A record that fails again makes another letter, which can be redriven.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, get_args

import msgspec

from tailrace.core.engine.redriven import redriven_header
from tailrace.core.errors import HANDLER_FAILED, BadReason, RecordsLostError, UnknownTopicError
from tailrace.core.records import Headers, InputRecord, Output
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.partitioner import partition_of
from tailrace.history.app_topics import apps_in
from tailrace.history.stretches import scan
from tailrace.log.interface import Log, TopicSettings, Writer

REASONS = (HANDLER_FAILED, *get_args(BadReason))
"""All reasons."""
_FIRST_HEADER = "tailrace-reason"
_ID = re.compile(r"(\d+)-(\d+)")
_AT_ONCE = 5_000


class DeadLetter(NamedTuple):
    """A record, or a timer, that was not handled. For a timer ``topic``, ``record.key`` and ``value`` are None.

    ``record`` has the key, value, timestamp and headers of the original, and the offset of the dead letter.
    """

    partition: int
    record: InputRecord
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
    traceback: str | None

    @property
    def id(self) -> str:
        """The position of the letter itself: ``<partition>-<offset>``."""
        return f"{self.partition}-{self.record.offset}"


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """A letter that was redriven, or settled without a redrive: the position of its new record, and of the original."""

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


class Redriven(NamedTuple):
    """The result of a redrive: the ids of letters redriven now, redriven before, and without a record to redrive.

    ``rebuilt``: handled by a rebuild that the app was started from.
    """

    sent: list[str]
    before: list[str]
    without_record: list[str]
    rebuilt: list[str]


def topic_of(app: str) -> str:
    """The name of an app's dead-letter topic."""
    return f"{app}.dead-letters"


def redriven_topic(app: str) -> str:
    """The name of the topic with the notes of redriven letters."""
    return f"{app}.redriven"


def parse_id(text: str) -> tuple[int, int] | None:
    """Partition and offset of an id; None if the text is no id."""
    found = _ID.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))


def dead_letters(
    log: Log, app: str, on_lost: Callable[[RecordsLostError], object] | None = None
) -> Iterator[DeadLetter]:
    """All dead letters of an app that the log still has, partition after partition; ``on_lost`` as with ``stretches.scan``.

    Raises:
        UnknownTopicError: The app has never run on this log.
    """
    topic = topic_of(app)
    for partition in range(_partitions(log, app)):
        for record in scan(log, topic, partition, on_lost=on_lost):
            yield read(partition, record)


def dead_letter(log: Log, app: str, partition: int, offset: int) -> DeadLetter | None:
    """One dead letter; None if it is missing."""
    if partition >= _partitions(log, app):
        return None
    found = next(scan(log, topic_of(app), partition, offset, offset + 1), None)
    return None if found is None else read(partition, found)


def read(partition: int, record: InputRecord) -> DeadLetter:
    """A record of the dead-letter topic as a ``DeadLetter``."""
    names = [name for name, _ in record.headers]
    # Use the last one: the record may itself be redriven, or come from another app's dead letters.
    cut = len(names) - 1 - names[::-1].index(_FIRST_HEADER) if _FIRST_HEADER in names else len(names)
    said = {name: value.decode(errors="replace") for name, value in record.headers[cut:]}

    def number(name: str) -> int | None:
        text = said.get(name, "")
        return int(text) if text.isdecimal() else None

    return DeadLetter(
        partition=partition,
        record=record._replace(headers=record.headers[:cut]),
        reason=said.get(_FIRST_HEADER, "unknown"),
        error=said.get("tailrace-error", ""),
        topic=said.get("tailrace-topic"),
        origin_partition=number("tailrace-partition"),
        origin_offset=number("tailrace-offset"),
        handler=said.get("tailrace-handler"),
        actor=said.get("tailrace-actor"),
        timer=said.get("tailrace-timer"),
        key=said.get("tailrace-key"),
        traceback=said.get("tailrace-traceback"),
    )


def redriven(log: Log, app: str) -> set[str]:
    """The ids of the letters that were redriven, or settled without a redrive."""
    return {id_ for id_, _ in _noted(log, app)}


def notes(log: Log, app: str) -> dict[str, Note]:
    """The notes of letters that were redriven or settled, by id. Letters with nothing but an id are left out."""
    found: dict[str, Note] = {}
    for id_, record in _noted(log, app):
        value = record.value or b""
        note = msgspec.json.decode(value, type=Note) if value[:1] == b"{" else _note_of(log, app, id_)
        if note is not None:
            found[id_] = msgspec.structs.replace(note, at_ms=record.timestamp_ms)
    return found


def _noted(log: Log, app: str) -> Iterator[tuple[str, InputRecord]]:
    topic = redriven_topic(app)
    for record in scan(log, topic, 0) if topic in log.topics() else ():
        if record.key is not None:
            yield record.key.decode(), record


def _note_of(log: Log, app: str, id_: str) -> Note | None:
    """The note of a letter, derived from the letter itself: earlier versions have stored the topic only."""
    place = parse_id(id_)
    letter = None if place is None else dead_letter(log, app, *place)
    if letter is None or letter.topic is None or letter.topic not in log.topics():
        return None
    partition = _goes_to(letter, log.partitions(letter.topic))
    origin = _origin(letter)
    return Note(letter.topic, partition, origin[1] + 1 if origin and origin[0] == partition else 0, origin)


def redrive(
    log: Log, app: str, wanted: Callable[[DeadLetter], bool], *, now_ms: int, dry_run: bool = False
) -> Redriven:
    """Append the records of the wanted letters again to the topics they came from, each once.

    A record with a key goes to the partition of murmur2, as from any producer: this also corrects a record from a foreign
    partition. A record without a key goes to its old partition. Timestamps and headers stay. ``dry_run`` only reports what
    would be done.

    Raises:
        UnknownTopicError: The app has never run on this log, or a topic is missing. Some letters may have been redriven.
        FencedError: Another process has begun to redrive. It redrives the remaining letters.
    """
    letters = dead_letters(log, app)
    sent: list[str] = []
    before: list[str] = []
    without_record: list[str] = []
    rebuilt: list[str] = []
    outcome = Redriven(sent, before, without_record, rebuilt)
    _partitions(log, app)
    if dry_run:
        writer = None
    else:
        log.create_topic(redriven_topic(app), TopicSettings(1, compacted=True))
        writer = log.writer(f"{app}.redrive")
    done, settled = redriven(log, app), {id_ for id_, one in notes(log, app).items() if one.snapshot}
    open_: list[str] = []
    try:
        for letter in letters:
            if not wanted(letter):
                continue
            if letter.topic is None:
                without_record.append(letter.id)
            elif letter.id in settled:
                rebuilt.append(letter.id)
            elif letter.id in done:
                before.append(letter.id)
            elif writer is None:
                sent.append(letter.id)
            else:
                _append(log, writer, app, letter, now_ms)
                open_.append(letter.id)
                if len(open_) >= _AT_ONCE:
                    writer.commit()
                    sent += open_
                    open_.clear()
        if writer is not None and open_:
            writer.commit()
            sent += open_
    finally:
        if writer is not None:
            writer.close()
    return outcome


def _append(log: Log, writer: Writer, app: str, letter: DeadLetter, now_ms: int) -> None:
    assert letter.topic is not None
    _, timestamp_ms, key, value, headers = letter.record
    origin = _origin(letter)
    again: Headers = (*headers, redriven_header(topic_of(app), letter.id, origin))
    partition = _goes_to(letter, log.partitions(letter.topic))
    note = Note(letter.topic, partition, log.end_offset(letter.topic, partition), origin)
    writer.append([Output(letter.topic, key, value, timestamp_ms, again)], partition)
    writer.append([Output(redriven_topic(app), letter.id.encode(), msgspec.json.encode(note), now_ms)])


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
        return log.partitions(topic_of(app))
    except UnknownTopicError:
        raise UnknownTopicError(
            f"the log has no dead letters of an app {app!r}",
            topic=topic_of(app),
            hint=did_you_mean(
                app,
                apps_in(log.topics()),
                "Correct the app's name or the log's folder; an app that was run has this topic.",
            ),
        ) from None
