"""Where an app begins in inputs whose past the rows of another topic stand for.

Theory. A topic of rows that were imported from another system stands for all records of other topics before some offsets: these
were counted there. So an app that reads the rows and one of the other topics begins there at these offsets, in its first run and
in canonical order. Along the tape it begins where it has begun.

The topic ``tailrace.handed-over`` has a record for each topic of rows. It names the topic as the log knows it: one that was deleted and
created again stands for nothing. Two topics of rows in one app must stand for the same records; an import checks that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from typing import Final

import msgspec

from tailrace.core.errors import ForeignLogError, OffsetsDisagreeError, TopicReplacedError
from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.log.interface import Log, StoredLog, TopicPartition, TopicSettings

HANDED_OVER: Final = "tailrace.handed-over"


class _Past(msgspec.Struct, frozen=True):
    """What a topic of rows stands for: all records before these offsets, by topic and partition."""

    topic: bytes
    before: dict[str, dict[int, int]]


def note_handed_over(
    log: StoredLog, rows: str, before: Mapping[TopicPartition, int], inputs: Collection[str], now_ms: int
) -> None:
    """Note what a topic of rows stands for. ``inputs``: those of the app that reads them.

    Raises OffsetsDisagreeError: other rows among the inputs stand for other records.
    """
    for place, offset in handed_over(log, {*inputs} - {rows}, {*inputs}).items():
        if before.get(place, offset) != offset:
            raise OffsetsDisagreeError(
                f"rows that were imported before stand for {place.topic!r} partition {place.partition} up to offset {offset}, and "
                f"those of {rows!r} up to {before[place]}: the table has been changed in between",
                hint="Delete the topics of all rows, create them again, and import all tables while nothing changes them.",
            )
    by_topic: dict[str, dict[int, int]] = {}
    for place, offset in before.items():
        by_topic.setdefault(place.topic, {})[place.partition] = offset
    log.create_topic(HANDED_OVER, TopicSettings(1, compacted=True))
    note = _Past(log.note({TopicPartition(rows, 0): 0}), by_topic)
    with closing(log.writer("tailrace.handed-over")) as writer:
        writer.append([Output(HANDED_OVER, rows.encode(), msgspec.json.encode(note), now_ms)])
        writer.commit()


def handed_over(log: Log, rows: Collection[str], inputs: Collection[str]) -> dict[TopicPartition, int]:
    """Where an app begins in some inputs, by what the topics of rows that it reads stand for."""
    return {
        TopicPartition(name, number): offset
        for before in noted(log, rows).values()
        for name, offsets in before.items()
        if name in inputs
        for number, offset in offsets.items()
    }


def noted(log: Log, rows: Collection[str]) -> dict[str, dict[str, dict[int, int]]]:
    """What topics of rows stand for, by topic of rows, topic and partition."""
    found: dict[str, _Past] = {}
    if HANDED_OVER not in log.topics():
        return {}
    for record in scan(log, HANDED_OVER, 0):
        try:
            found[(record.key or b"").decode()] = msgspec.json.decode(record.value or b"", type=_Past)
        except (UnicodeError, msgspec.MsgspecError) as error:
            raise ForeignLogError(
                f"the topic {HANDED_OVER!r} has a record at offset {record.offset} which is no note of a hand-over: {error}",
                hint="Find the program that writes to it.",
            ) from error
    here: dict[str, dict[str, dict[int, int]]] = {}
    for name in found.keys() & set(rows):
        with suppress(TopicReplacedError):
            log.resume(found[name].topic, {TopicPartition(name, 0): 0})
            here[name] = found[name].before
    return here
