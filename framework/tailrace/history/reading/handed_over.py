"""Where an app begins in inputs whose past the rows of another topic stand for.

Theory. A topic of rows that were imported from another system stands for all records of other topics before some offsets: these
were counted there. So an app that reads the rows and one of the other topics begins there at these offsets, in its first run and
in canonical order. Along the tape it begins where it has begun.

The topic ``tailrace.handed-over`` has a record for each topic of rows. It names the topic as the log knows it: one that was deleted and
created again stands for nothing. Two topics of rows in one app must stand for the same records; an import checks that. That rows were
imported is also noted in ``tailrace.appended`` (``cli.append_notes``), so a log that has lost the offsets is found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from typing import Final, TypeVar

import msgspec

from tailrace.core.errors import ForeignLogError, OffsetsDisagreeError, TopicReplacedError
from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.log.interface import Log, StoredLog, TopicPartition, TopicSettings

HANDED_OVER: Final = "tailrace.handed-over"
APPENDED: Final = "tailrace.appended"
FAUST: Final = "faust://"
Offsets = Mapping[TopicPartition, int]


class _Appended(msgspec.Struct, frozen=True):
    topic: bytes


class _Past(msgspec.Struct, frozen=True):
    """What a topic of rows stands for: all records before these offsets, each with its topic and partition."""

    topic: bytes
    before: list[tuple[str, int, int]]


_Note = TypeVar("_Note", _Appended, _Past)


def note_handed_over(
    log: StoredLog, rows: str, before: Offsets, inputs: Collection[str], now_ms: int
) -> None:
    """Note what a topic of rows stands for. ``inputs``: those of the app that reads them.

    Raises OffsetsDisagreeError: other rows among the inputs stand for other records.
    """
    for name, noted_before in _past_of(log, {*inputs} - {rows}).items():
        for place in before.keys() & noted_before:
            if before[place] != noted_before[place]:
                raise OffsetsDisagreeError(
                    f"the rows of {name!r} stand for {place.topic!r} partition {place.partition} up to offset {noted_before[place]}, and "
                    f"those of {rows!r} up to {before[place]}: the table has been changed in between",
                    hint="Delete the topics of all rows, create them again, and import all tables while nothing changes them.",
                )
    log.create_topic(HANDED_OVER, TopicSettings(1, compacted=True))
    note = _Past(
        log.note({TopicPartition(rows, 0): 0}),
        [(place.topic, place.partition, at) for place, at in before.items()],
    )
    with closing(log.writer(HANDED_OVER)) as writer:
        writer.append([Output(HANDED_OVER, rows.encode(), msgspec.json.encode(note), now_ms)])
        writer.commit()


def handed_over(log: Log, rows: Collection[str], inputs: Collection[str]) -> dict[TopicPartition, int]:
    """Where an app begins in some inputs, by what the topics of rows that it reads stand for. Raises OffsetsDisagreeError: see ``noted``."""
    all_of_them = noted(log, rows).values()
    return {place: at for before in all_of_them for place, at in before.items() if place.topic in inputs}


def noted(log: Log, rows: Collection[str]) -> dict[str, Offsets]:
    """What topics of rows stand for. Raises OffsetsDisagreeError: rows were imported, and the log has lost what they stand for."""
    here = _past_of(log, rows)
    if lost := sorted(imported(log) & {*rows} - here.keys()):
        raise OffsetsDisagreeError(
            f"rows of Faust were imported into {lost[0]!r}, and the topic {HANDED_OVER!r} does not say which records they stand for: "
            "it was deleted",
            hint="Run the same import again: it appends no row twice, and notes the offsets. For an app that has run, import for it under "
            "another name (package.module:app@name): the note is for all that read these rows.",
        )
    return here


def imported(log: Log) -> set[str]:
    """The topics that rows of Faust were imported into."""
    keys = [key.partition(" ") for key in _notes(log, APPENDED, _Appended)]
    return {topic for topic, _, source in keys if source.startswith(FAUST)}


def _past_of(log: Log, rows: Collection[str]) -> dict[str, Offsets]:
    found = _notes(log, HANDED_OVER, _Past).items()
    return {
        name: {TopicPartition(topic, number): at for topic, number, at in note.before}
        for name, note in found
        if name in rows
    }


def _notes(log: Log, topic: str, kind: type[_Note]) -> dict[str, _Note]:
    """The last note of each key, without those of topics that were deleted. A key begins with the name of its topic."""
    found: dict[str, _Note] = {}
    for record in scan(log, topic, 0) if topic in log.topics() else ():
        key = (record.key or b"").decode(errors="surrogateescape")
        try:
            found[key] = msgspec.json.decode(record.value or b"", type=kind)
        except msgspec.MsgspecError as error:
            raise ForeignLogError(
                f"the topic {topic!r} has a record at offset {record.offset} which is no note of it: {error}",
                hint="Find the program that writes to it.",
            ) from error
    here: dict[str, _Note] = {}
    for key, note in found.items():
        with suppress(TopicReplacedError):
            log.resume(note.topic, {TopicPartition(key.partition(" ")[0], 0): 0})
            here[key] = note
    return here
