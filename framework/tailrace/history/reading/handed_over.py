"""Where an app begins in inputs whose past the rows of another topic stand for.

Theory. A topic of rows that were imported from another system stands for all records of other topics before some offsets: these
were counted there. So an app that reads the rows and one of the other topics begins there at these offsets, in its first run and
in stages. Along the tape it begins where it has begun.

The topic ``tailrace.handed-over`` has a record for each topic of rows. It names the topic as the log knows it: one that was deleted and
created again stands for nothing. Two topics of rows in one app must stand for the same records; an import checks that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Final

import msgspec

from tailrace.core.errors import OtherHistoryError
from tailrace.core.records import Output
from tailrace.history.reading.stretches import decoding, scan
from tailrace.log.interface import Log, StoredLog, TopicPartition, TopicSettings
from tailrace.log.same_topics import replaced

HANDED_OVER: Final = "tailrace.handed-over"
Offsets = Mapping[TopicPartition, int]


class _Past(msgspec.Struct, frozen=True):
    """What a topic of rows stands for: all records before these offsets, each with its topic and partition."""

    topic: str
    before: list[tuple[str, int, int]]


_decode_past = msgspec.json.Decoder(_Past).decode


def note_handed_over(
    log: StoredLog, rows: str, before: Offsets, inputs: Collection[str], now_ms: int
) -> None:
    """Note what a topic of rows stands for. ``inputs``: those of the app that reads them.

    Raises OtherHistoryError: other rows among the inputs stand for other records.
    """
    for name, noted_before in noted(log, {*inputs} - {rows}).items():
        for place in before.keys() & noted_before:
            if before[place] != noted_before[place]:
                raise OtherHistoryError(
                    f"the rows of {name!r} stand for {place.topic!r} partition {place.partition} up to offset {noted_before[place]}, and "
                    f"those of {rows!r} up to {before[place]}: the table has been changed in between",
                    why="offsets",
                    hint="Delete the topics of all rows, create them again, and import all tables while nothing changes them.",
                )
    log.create_topic(HANDED_OVER, TopicSettings(1, compacted=True))
    note = _Past(
        log.watch([rows]).get(rows, ""), [(place.topic, place.partition, at) for place, at in before.items()]
    )
    with closing(log.writer(HANDED_OVER)) as writer:
        writer.append([Output(HANDED_OVER, rows.encode(), msgspec.json.encode(note), now_ms)])
        writer.commit()


def handed_over(log: Log, rows: Collection[str], inputs: Collection[str]) -> dict[TopicPartition, int]:
    """Where an app begins in some inputs, by what the topics of rows that it reads stand for."""
    all_of_them = noted(log, rows).values()
    return {place: at for before in all_of_them for place, at in before.items() if place.topic in inputs}


def noted(log: Log, rows: Collection[str] | None = None) -> dict[str, Offsets]:
    """What topics of rows stand for, or those of all imports. A topic that was deleted stands for nothing."""
    found: dict[str, _Past] = {}
    for record in scan(log, HANDED_OVER, 0) if HANDED_OVER in log.topics() else ():
        with decoding(HANDED_OVER, record, "note of it", "Find the program that writes to it."):
            name = (record.key or b"").decode(errors="surrogateescape")
            found[name] = _decode_past(record.value or b"")
    here: dict[str, Offsets] = {}
    gone = replaced({name: note.topic for name, note in found.items()}, log.topic_ids(found))
    for name, note in found.items():
        if name not in gone and (rows is None or name in rows):
            here[name] = {TopicPartition(topic, number): at for topic, number, at in note.before}
    return here
