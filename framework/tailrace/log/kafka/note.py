"""The note of positions on Kafka: the ids of their topics, and how far the offsets behind the positions hold no record.

Theory. A position counts from the beginning of its topic. A topic can be deleted and created again with the same name: a position in the
old topic then also fits the new one, if that is long enough, and a reader would continue in the middle of other records. Kafka
gives each topic an id (KIP-516), so the note has the ids.

    the note                            the position is
    is empty, or of another log         accepted: the history came from a log without ids, or was moved here
    has the id that the topic has now   accepted
    has another id of the topic         refused: OtherHistoryError

Markers of transactions and records of aborted ones take offsets, which readers of committed records do not see. The position of a task
is the one behind its last record, so such offsets may be between it and the end of the topic. Retention deletes them as it deletes
records, and nothing tells them from records that were deleted unread. So the note has the offset up to which a reader has found no
record, and a position is continued there.

    the log begins                            the reader
    at the position, or before                continues
    after it, not after the offset noted      continues: no record was deleted
    after the offset noted                    misses what is between the two
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from tailrace.core.errors import CorruptStateError, OtherHistoryError
from tailrace.core.formats import check_format
from tailrace.log.interface import TopicPartition

FORMAT: Final = 1


class _Topic(msgspec.Struct, array_like=True):
    id: str
    positions: dict[int, int]
    """By partition."""


class _Note(msgspec.Struct, array_like=True):
    format: int
    log: bytes
    """The identity of the log: ids and offsets of two logs do not compare."""
    topics: dict[str, _Topic]


_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(_Note)


def topics_of(positions: Iterable[TopicPartition]) -> list[str]:
    """The topics of some partitions."""
    return list(dict.fromkeys(place.topic for place in positions))


def encode(log: bytes, ids: Mapping[str, str], positions: Mapping[TopicPartition, int]) -> bytes:
    """The note of positions. ``ids`` are those of their topics."""
    topics = {topic: _Topic(id_, {}) for topic, id_ in ids.items()}
    for (topic, partition), position in positions.items():
        topics[topic].positions[partition] = position
    return _encode(_Note(FORMAT, log, topics))


def continued(
    note: bytes,
    log: bytes,
    ids: Callable[[Iterable[str]], Mapping[str, str]],
    positions: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, int]:
    """Where to continue from positions: behind offsets that hold no record. ``ids`` asks for the present ids of topics.

    Raises:
        OtherHistoryError: A topic of these positions has another id.
        CorruptStateError: The note cannot be read.
        FormatError: A newer version has written it.
    """
    try:
        noted = _decoder.decode(note)
    except msgspec.MsgspecError as error:
        raise CorruptStateError(f"the note of a cut cannot be read: {error}") from error
    check_format("the note of a cut", noted.format, FORMAT)
    if noted.log != log:
        return positions
    now = ids(topics_of(positions))
    found = dict(positions)
    for place, position in positions.items():
        topic = noted.topics.get(place.topic)
        if topic is None:
            continue
        if now.get(place.topic, topic.id) != topic.id:
            raise OtherHistoryError(
                "the topic was deleted and created again since it was read: offsets in it mean other records now",
                why="topic",
                topic=place.topic,
                partition=place.partition,
                hint="Restore the old topic from a copy, if there is one.",
            )
        found[place] = max(position, topic.positions.get(place.partition, position))
    return found
