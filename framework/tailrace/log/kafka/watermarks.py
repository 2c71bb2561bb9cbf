"""Published watermarks on Kafka: how they are stored.

A publication is a record of the topic ``<topic>.watermarks``, which has one partition, in the transaction of the records that it is
about. Its key is the publication's name, and its value ``(watermark_ms, before_ms, ends, topic_id, prefix)``:

- ``ends`` is, for each partition of the topic, the position after the last record of this publisher. A publication is a promise of
  its publisher about its own records, so a reader that has read up to there may use it, whatever others have written meanwhile.
  A new owner of a task begins with the ends of the topic, which are behind all records of earlier owners.
- ``before_ms`` is the last watermark before a publication of None, so that compaction loses nothing.
- ``topic_id`` is the id that Kafka has given to the topic. A topic that is deleted and created again has another id, and its
  offsets begin again: old ends would hold readers back, and old watermarks could be ahead of its records. So a publication of another
  topic does not count. Only None is kept, as that publisher holds no reader back until it publishes again.
- ``prefix`` is that of the publisher's log (``kafka://host/prefix``). A log without a prefix sees the topics of the others, where apps
  may have the names of its own apps: their publications are not its own.

The ends of a publisher never fall, so each publisher's publications hold in the order of their offsets.

The same record goes to ``<topic>.publishers``, which is compacted and so holds little: the last publication of each publisher. A
reader that needs just these reads it alone. A reader that begins to follow a topic learns from it whose publications to look for
(see ``feeds``).
``<topic>.watermarks`` is compacted, too, but no record sooner than the retention of the topic that it is about: a reader that is
behind finds the watermarks that hold there.

If ``.watermarks`` alone was deleted, and created again, a reader that is behind would not find the watermarks
that hold there, and would not wait for their publishers. So ``<topic>.publishers`` begins with a note of the
id of ``.watermarks``, and another one is refused (see ``followed``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from tailrace.core.errors import ForeignLogError

WATERMARKS: Final = ".watermarks"
"""Ends the name of the topic with all publications for another topic."""
PUBLISHERS: Final = ".publishers"
"""Ends the name of the topic with the last publication of each publisher for another topic."""


class Published(NamedTuple):
    """A publication as it is stored."""

    name: str
    watermark_ms: int | None
    before_ms: int | None
    ends: Sequence[int]
    topic_id: str
    prefix: str


NOTE_KEY: Final = b""
"""The key of the note in the topic of publishers; its value is the id of the topic with all publications."""


class _Value(msgspec.Struct, array_like=True):
    watermark_ms: int | None
    before_ms: int | None
    ends: list[int]
    topic_id: str
    prefix: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Value)


def encode(one: Published) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    return one.name.encode(), _encoder.encode(one[1:])


def counted(one: Published, topic_id: str) -> Published | None:
    """What a publication says about the topic with this id; None if it does not count."""
    if one.topic_id == topic_id:
        return one
    if one.watermark_ms is not None:
        return None
    return one._replace(before_ms=None, ends=[0] * len(one.ends), topic_id=topic_id)


def decode(topic: str, offset: int, key: bytes | None, value: bytes | None) -> Published:
    """The publication in a record of a topic.
    Raises ForeignLogError: something else has written to the topic.
    """
    try:
        found = _decoder.decode(value or b"")
        return Published(
            (key or b"").decode(),
            found.watermark_ms,
            found.before_ms,
            found.ends,
            found.topic_id,
            found.prefix,
        )
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ForeignLogError(
            f"the topic {topic!r} has a record at offset {offset} that is no watermark: {error}",
            hint="Find who else writes to it; only services publish there.",
        ) from error
