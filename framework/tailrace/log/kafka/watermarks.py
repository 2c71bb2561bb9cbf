"""Published watermarks on Kafka: how they are written, and which of them hold at a reader's position.

A publication is a record of the topic ``<topic>.watermarks``, which has one partition, in the transaction of the records that it is
about. Its key is the publication's name, and its value ``(watermark_ms, before_ms, ends)``:

- ``ends`` is, for each partition of the topic, the position after the last record of this publisher. A publication is a promise of
  its publisher about its own records, so a reader that has read up to there may use it, whatever others have written meanwhile.
  A new holder of a transactional id begins with the ends of the topic, where all records of earlier holders are.
- ``before_ms`` is the last watermark before a publication of None, so that compaction loses nothing.

The topic is compacted, but no record sooner than the retention of the topic that it is about: a reader that is behind finds the
watermarks that hold there. The ends of a publisher never fall, so each publisher's publications hold in the order of their offsets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tailrace.core.errors import ForeignLogError
from tailrace.log.interface import Publication
from tailrace.log.publications import Heard


class Published(NamedTuple):
    """A publication as it is stored."""

    name: str
    watermark_ms: int | None
    before_ms: int | None
    ends: Sequence[int]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int | None, int | None, list[int]])


def encode(one: Published) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    return one.name.encode(), _encoder.encode((one.watermark_ms, one.before_ms, one.ends))


def decode(topic: str, key: bytes | None, value: bytes | None) -> Published:
    """The publication in a record.

    Raises:
        ForeignLogError: Something else has written to the topic.
    """
    try:
        watermark_ms, before_ms, ends = _decoder.decode(value or b"")
        return Published((key or b"").decode(), watermark_ms, before_ms, ends)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ForeignLogError(
            f"the topic {topic!r} has a record that is no watermark: {error}",
            hint="Find who else writes to it; only services publish there.",
        ) from error


class Feed:
    """All publications of a topic that a reader knows, in order."""

    def __init__(self) -> None:
        self.read_to = 0
        """The offset of its topic up to which it is complete."""
        self.all: list[Published] = []
        self._last: dict[str, int] = {}
        """By name, the place of the last one."""
        self._waiting: list[Waiting] = []

    def add(self, one: Published) -> None:
        """Take in the next publication."""
        at = self._last.get(one.name)
        if at is not None and at == len(self.all) - 1 and self.all[at].ends == one.ends:
            # Both hold from the same position on, so only the later one is ever of use to a reader from the beginning.
            self.all[at] = _after(self.all[at], one)
        else:
            self._last[one.name] = len(self.all)
            self.all.append(one)
        for waiting in self._waiting:
            waiting.add(one)

    def waiting(self, partition: int) -> Waiting:
        """Those of one partition that a reader has not used yet: all, at first."""
        made = Waiting(partition)
        for one in self.all:
            made.add(one)
        self._waiting.append(made)
        return made

    def drop(self, waiting: Waiting) -> None:
        """A reader has gone elsewhere."""
        self._waiting.remove(waiting)


class Waiting:
    """The publications of a topic that do not hold yet at a reader's position in one partition."""

    __slots__ = ("_by_name", "_partition", "_seen")

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._by_name: dict[str, deque[Published]] = {}
        self._seen: dict[str, int | None] = {}

    def add(self, one: Published) -> None:
        """Take in the next publication."""
        self._by_name.setdefault(one.name, deque()).append(one)

    def news(self, position: int) -> list[Publication]:
        """Those that hold from this position on and were not returned before."""
        heard = Heard()
        for queue in self._by_name.values():
            while queue and queue[0].ends[self._partition] <= position:
                one = queue.popleft()
                if one.watermark_ms is None and one.before_ms is not None:
                    heard.add(one.name, one.before_ms)
                heard.add(one.name, one.watermark_ms)
        return heard.news(self._seen)


def _after(before: Published, one: Published) -> Published:
    """The later of two publications, which knows the last watermark."""
    if one.watermark_ms is None and one.before_ms is None:
        return one._replace(before_ms=before.watermark_ms)
    return one
