"""Dead letters: what a task could not handle, read again, and sent again after its cause is fixed.

Theory. Redriving appends the original record to the topic it came from, with a header that names its dead letter. Which
letters that was done for stands in a topic of its own, ``<app>.redriven``: a *note* for each, written in the same
transaction as the records, both or neither. Who redrives first takes over the transactional id for it, which settles what an earlier one
left open and fences one that still works, and only then reads that topic. So each letter is redriven once, whatever
is killed and however often it is asked for. A record that fails again makes another letter, which can be redriven.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, get_args

import msgspec

from tailrace.core.engine.redriven import redriven_header
from tailrace.core.errors import HANDLER_FAILED, BadReason, UnknownTopicError
from tailrace.core.records import Headers, InputRecord, Output
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.partitioner import partition_of
from tailrace.history.app_topics import apps_in
from tailrace.history.stretches import scan
from tailrace.log.interface import Log, TopicSettings, Writer

REASONS = (HANDLER_FAILED, *get_args(BadReason))
"""All that there are."""
_FIRST_HEADER = "tailrace-reason"
_ID = re.compile(r"(\d+)-(\d+)")
_AT_ONCE = 5_000


class DeadLetter(NamedTuple):
    """A record that was not handled, or a timer that was not: then ``topic``, ``record.key`` and ``value`` are None.

    ``record`` is the original one: its key, value, timestamp and headers, at the offset of the dead letter.
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
    """The key as the handler knew it, spelled out."""
    traceback: str | None

    @property
    def id(self) -> str:
        """Where the letter itself lies: ``<partition>-<offset>``."""
        return f"{self.partition}-{self.record.offset}"


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """A letter that was redriven, or settled without: where its record was appended, and where the original lies."""

    topic: str
    partition: int = -1
    start: int = 0
    """The record lies at this offset or behind it: its own is not known before the commit."""
    origin: tuple[int, int] | None = None
    """Partition and offset of the original."""
    snapshot: str = ""
    """It was not redriven: the app was started from this snapshot, in which it is handled."""
    at_ms: int = 0
    """When it was redriven: the timestamp of the note's record, and not in the note itself."""


class Redriven(NamedTuple):
    """What came of a redrive: the ids of letters sent again, sent again before, and without a record to send.

    ``rebuilt``: handled by a rebuild that the app was started from.
    """

    sent: list[str]
    before: list[str]
    without_record: list[str]
    rebuilt: list[str]


def topic_of(app: str) -> str:
    """The dead letters of an app."""
    return f"{app}.dead-letters"


def redriven_topic(app: str) -> str:
    """The notes of what was redriven."""
    return f"{app}.redriven"


def parse_id(text: str) -> tuple[int, int] | None:
    """Partition and offset of an id; None if it is none."""
    found = _ID.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))


def dead_letters(log: Log, app: str) -> Iterator[DeadLetter]:
    """All dead letters of an app that are kept, partition after partition.

    Raises:
        UnknownTopicError: It has never run on this log.
    """
    topic = topic_of(app)
    for partition in range(_partitions(log, app)):
        for record in scan(log, topic, partition):
            yield read(partition, record)


def dead_letter(log: Log, app: str, partition: int, offset: int) -> DeadLetter | None:
    """One dead letter, if it is there."""
    if partition >= _partitions(log, app):
        return None
    found = next(scan(log, topic_of(app), partition, offset, offset + 1), None)
    return None if found is None else read(partition, found)


def read(partition: int, record: InputRecord) -> DeadLetter:
    """A record of the dead-letter topic, taken apart."""
    names = [name for name, _ in record.headers]
    # The last one: the record may have been a redriven one, or come out of another app's dead letters.
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
    """The ids of the letters that were redriven, or settled without."""
    return {id_ for id_, _ in _noted(log, app)}


def notes(log: Log, app: str) -> dict[str, Note]:
    """The letters that were redriven or settled, by their ids. Left out are those of which nothing more is known than that."""
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
    """The note of a letter, by the letter itself: earlier versions have noted the topic only."""
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
    """Append the records of the wanted letters again, each where it came from, once.

    A record with a key goes where murmur2 says, as from any producer: one that came from a foreign partition is mended
    by this. One without goes to its old partition. Timestamps and headers stay. ``dry_run`` only says what would be done.

    Raises:
        UnknownTopicError: The app has never run on this log, or a topic is gone. Some may have been redriven.
        FencedError: Somebody else has begun to redrive. What is left is left to them.
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
