"""Reads partitions from Kafka: one consumer, a buffer for each partition, and what is known of each partition's end.

librdkafka has one queue for all partitions, in the order of arrival. ``_pump`` sorts it into buffers. A partition whose buffer is full
is paused, so the backlog of one never starves another, and memory is bounded.

What a fetch says of the end rests on three facts, each of which may be older than the fetch:

- the *last stable offset* that came with the last answer: below it, something may be unread;
- *at the end*: librdkafka says so when the position is the last stable offset. Offsets up to there that had no record are passed;
- the *uncommitted end*, asked of the cluster beside reading, once a partition is at its end. If it is the position, and was asked
  after the last commit of this process, the partition is idle. An answer counts for a second.

The first fetch after ``seek`` waits for the first answer of a broker, since before it nothing is known at all. Of a *live* reader no
other fetch waits: a service has other partitions to read. Any other reader reads history, up to an end that is known: its
fetches wait until there are records, or none are left, or an open transaction hides the rest. So a fetch that finds nothing means
the same as on a log in one file.

Published watermarks are a partition of the same consumer (``watermarks``). The first ``published`` for a topic waits until all
that was published until then is read. So no record before that is read behind its watermark. Later ones arrive beside the records,
and a partition is idle only when they are read, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from tailrace.core.errors import LogUnavailableError, OffsetGoneError
from tailrace.core.records import InputRecord
from tailrace.log.interface import Fetch, Publication, TopicPartition
from tailrace.log.kafka.cluster import Cluster
from tailrace.log.kafka.failures import as_log_error, kafka_error
from tailrace.log.kafka.library import Consumer, Message
from tailrace.log.kafka.watermarks import Feed, Waiting, decode
from tailrace.log.kafka.writer import NO_TIMESTAMP

_FULL: Final = 20_000
"""A partition with so many records in its buffer is paused."""
_FULL_BYTES: Final = 16 << 20
_BATCH: Final = 5_000
_NAP_S: Final = 0.02
_FRESH_S: Final = 1.0
"""For how long an answer about ends counts."""
_ASK_S: Final = 0.1
"""Ends are not asked more often."""


class _Part:
    """A partition that is read."""

    __slots__ = (
        "answered", "at_end", "buffer", "error", "idle_after", "idle_at", "paused", "place", "position", "read_to", "stable",
    )  # fmt: skip

    def __init__(self, place: TopicPartition, position: int) -> None:
        self.place = place
        self.position = position
        """Of the reader: the next offset that a fetch returns."""
        self.read_to = position
        """Of the consumer: all before it is in the buffer, or was."""
        self.buffer: deque[InputRecord] = deque()
        self.paused = False
        self.answered = False
        """Whether a broker has answered since the last ``seek``."""
        self.at_end = False
        """Whether nothing readable was behind ``read_to`` at the last answer."""
        self.stable = -1
        """The last stable offset known."""
        self.idle_at = 0.0
        """When it was asked whether ``read_to`` is the uncommitted end, and it was. 0: it is not known."""
        self.idle_after = 0
        """After how many commits of this process that was."""
        self.error: Any = None


class KafkaReader:
    """A reader of a ``KafkaLog``; see ``tailrace.log.Reader``. Holds a consumer and up to 16 MB for each partition.

    ``commits`` gives the number of commits of this process; ``follow`` the topic of a topic's watermarks, which it creates. If
    nothing can be read for ``hidden_s``, an open transaction hides the rest: the markers of one that has ended arrive sooner. ``live``
    is explained at the head of this file.
    """

    def __init__(
        self,
        consumer: Consumer,
        cluster: Cluster,
        *,
        patience_s: float,
        commits: Callable[[], int],
        follow: Callable[[str], str],
        hidden_s: float,
        live: bool = False,
    ) -> None:
        self._live = live
        self._hidden_s = hidden_s
        self._consumer = consumer
        self._cluster = cluster
        self._patience_s = patience_s
        self._commits = commits
        self._follow = follow
        self._parts: dict[TopicPartition, _Part] = {}
        self._by_name: dict[tuple[str | None, int | None], _Part] = {}
        """The same by the topics' names at the brokers."""
        self._feeds: dict[str, Feed] = {}
        """By topic of watermarks."""
        self._waiting: dict[TopicPartition, Waiting] = {}
        self._asked: dict[TopicPartition, Any] = {}
        """Answers about ends that are still to come."""
        self._asked_at, self._asked_after = 0.0, -1
        """When they were asked, and after how many commits."""

    # --- the interface

    def fetch(self, topic: str, partition: int, max_records: int, /) -> Fetch:
        """See ``Reader.fetch``."""
        part = self._parts[TopicPartition(topic, partition)]
        if not part.buffer:
            self._pump(0)
            if not part.answered:
                self._await(lambda: part.answered, f"reading {topic!r} partition {partition}")
            if not self._live:
                self._settle(part)
        if part.error is not None and not part.buffer:
            self._raise(part)
        buffer = part.buffer
        count = min(max_records, len(buffer))
        records = [buffer.popleft() for _ in range(count)]
        if part.paused and len(buffer) < _FULL // 2:
            self._resume(part)
        part.position = buffer[0].offset if buffer else part.read_to
        unread = bool(buffer) or (not part.at_end and part.read_to < part.stable)
        idle = not unread and self._is_idle(part)
        if records and not buffer and not part.at_end:
            part.position = records[-1].offset + 1
        return Fetch(records, part.position, unread, idle)

    def seek(self, topic: str, partition: int, offset: int, /) -> None:
        """See ``Reader.seek``."""
        self.forget(topic, partition)
        place = TopicPartition(topic, partition)
        self._consumer.incremental_assign([self._cluster.at(place, offset)])
        self._parts[place] = self._by_name[self._cluster.prefix + topic, partition] = _Part(place, offset)

    def forget(self, topic: str, partition: int, /) -> None:
        """See ``Reader.forget``."""
        place = TopicPartition(topic, partition)
        if self._parts.pop(place, None) is not None:
            del self._by_name[self._cluster.prefix + topic, partition]
            self._consumer.incremental_unassign([self._cluster.at(place)])
        waiting = self._waiting.pop(place, None)
        if waiting is not None:
            self._feeds[self._follow(topic)].drop(waiting)
        self._asked.pop(place, None)

    def published(self, topic: str, partition: int, /) -> list[Publication]:
        """See ``Reader.published``."""
        place = TopicPartition(topic, partition)
        part = self._parts[place]
        waiting = self._waiting.get(place)
        if waiting is None:
            waiting = self._waiting[place] = self._feed(topic).waiting(partition)
        self._pump(0)
        return waiting.news(part.position)

    def wait(self, timeout_s: float, /) -> bool:
        """See ``Reader.wait``."""
        deadline = time.monotonic() + timeout_s
        while not (ready := self._is_ready()):
            left_s = deadline - time.monotonic()
            self._pump(max(0.0, min(left_s, _NAP_S)))
            if left_s <= 0:
                return self._is_ready()
        return ready

    def close(self) -> None:
        """See ``Reader.close``."""
        if self._parts or self._feeds:
            self._parts.clear()
            self._feeds.clear()
        self._consumer.close()

    # --- reading

    def _is_ready(self) -> bool:
        return any(part.buffer or part.error is not None for part in self._parts.values())

    def _pump(self, timeout_s: float) -> None:
        """Sort what has arrived into the buffers. Waits for the first message, if there is none yet."""
        try:
            messages = self._consumer.consume(_BATCH, 0)
            if not messages and timeout_s:
                first = self._consumer.poll(timeout_s)
                messages = [] if first is None else [first, *self._consumer.consume(_BATCH, 0)]
        except Exception as error:  # another is raised again
            raise as_log_error(kafka_error(error), "reading") from error
        touched: set[_Part] = set()
        parts = self._by_name
        for message in messages:
            part = parts.get((message.topic(), message.partition()))
            if part is None:
                self._heard(message)
            elif message.error() is not None:
                self._take_error(part, message)
            elif message.offset() >= part.read_to:
                part.buffer.append(_record(message))
                part.read_to = message.offset() + 1
                part.at_end = False
                touched.add(part)
        for part in touched:
            self._taken(part)
        self._take_ends()

    def _taken(self, part: _Part) -> None:
        """Records have arrived."""
        part.answered, part.error, part.idle_at = True, None, 0.0
        _, part.stable = self._consumer.get_watermark_offsets(self._cluster.at(part.place), cached=True)
        if not part.paused and (
            len(part.buffer) > _FULL
            or (len(part.buffer) > 100 and sum(map(_size, part.buffer)) > _FULL_BYTES)
        ):
            self._consumer.pause([self._cluster.at(part.place)])
            part.paused = True

    def _resume(self, part: _Part) -> None:
        self._consumer.resume([self._cluster.at(part.place)])
        part.paused = False

    def _take_error(self, part: _Part, message: Message) -> None:
        error: Any = message.error()
        part.answered = True
        if error.name() != "_PARTITION_EOF":
            part.error = error
            return
        part.error = None
        part.at_end = True
        part.read_to = part.stable = max(part.read_to, message.offset())
        part.idle_at = 0.0

    def _raise(self, part: _Part) -> None:
        error, (topic, partition) = part.error, part.place
        if error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            start, end = (
                self._cluster.starts([part.place])[part.place],
                self._cluster.ends([part.place])[part.place],
            )
            raise OffsetGoneError(
                f"the log holds offsets {start} to {end}, the reader stands at {part.position}",
                topic=topic,
                partition=partition,
                offset=part.position,
                hint="The records in between were deleted before they were read. To continue without them, run the service "
                "with --after-deleted; keep the topic for longer."
                if part.position < start
                else "It has read more than this topic holds: the topic was created again, or has lost its end.",
            )
        part.error = None
        raise as_log_error(error, f"reading {topic!r} partition {partition}", topic)

    def _await(self, is_done: Callable[[], bool], doing: str) -> None:
        deadline = time.monotonic() + self._patience_s
        while not is_done():
            if time.monotonic() > deadline:
                raise LogUnavailableError(
                    f"Kafka does not answer, while {doing}", hint="Look at the brokers."
                )
            self._pump(_NAP_S)

    def _settle(self, part: _Part) -> None:
        """Wait for records; or until none can be read, and all watermarks are read that were published by then."""
        feeds = {TopicPartition(name, 0): feed for name, feed in self._feeds.items()}
        asked_at, asked_after = time.monotonic(), self._commits()
        ends = self._cluster.ends([part.place, *feeds])
        end = ends[part.place]
        given_up_s, hidden_s = asked_at + self._patience_s, asked_at + self._hidden_s
        while not part.buffer and part.error is None:
            heard = [feed.read_to for feed in feeds.values()]
            if part.read_to >= end and all(feed.read_to >= ends[place] for place, feed in feeds.items()):
                part.at_end, part.idle_at, part.idle_after = True, asked_at, asked_after
                return
            before = part.read_to
            self._pump(_NAP_S)
            now = time.monotonic()
            moved = part.read_to > before or [feed.read_to for feed in feeds.values()] != heard
            if moved or not (part.at_end or part.read_to >= end):
                hidden_s = now + self._hidden_s
            if now > hidden_s:
                return
            if now > given_up_s:
                topic, partition = part.place
                raise LogUnavailableError(
                    f"Kafka does not answer, while reading {topic!r} partition {partition}",
                    hint="Look at the brokers.",
                )

    # --- the ends of partitions

    def _is_idle(self, part: _Part) -> bool:
        """Whether nothing is behind its position; asks for the ends, if that is not known."""
        if not part.at_end:
            return False
        now = time.monotonic()
        if not self._asked and (now - self._asked_at > _ASK_S or self._asked_after != self._commits()):
            self._asked_at, self._asked_after = now, self._commits()
            places = [one.place for one in self._parts.values() if one.at_end]
            places += [TopicPartition(name, 0) for name in self._feeds]
            self._asked = self._cluster.ask_ends(places)
        return part.idle_at > 0 and now - part.idle_at < _FRESH_S and part.idle_after == self._commits()

    def _take_ends(self) -> None:
        """If all answers about ends are here, note which partitions were idle when they were asked."""
        if not self._asked or not all(answer.done() for answer in self._asked.values()):
            return
        answers, self._asked = self._asked, {}
        try:
            ends = {place: answer.result().offset for place, answer in answers.items()}
        except Exception as error:  # noqa: BLE001  # asked again
            kafka_error(error)
            return
        heard = all(
            ends.get(TopicPartition(name, 0), 0) <= feed.read_to for name, feed in self._feeds.items()
        )
        for place, end in ends.items():
            part = self._parts.get(place)
            if part is not None:
                part.idle_at = self._asked_at if heard and part.at_end and part.read_to == end else 0.0
                part.idle_after = self._asked_after

    # --- watermarks

    def _feed(self, topic: str) -> Feed:
        """The publications of a topic, with all that was published until now."""
        name = self._follow(topic)
        feed = self._feeds.get(name)
        place = TopicPartition(name, 0)
        end = self._cluster.ends([place])[place]
        if feed is None:
            feed = self._feeds[name] = Feed()
            start = self._cluster.starts([place])[place]
            feed.read_to = start
            self._consumer.incremental_assign([self._cluster.at(place, start)])
        found = feed
        self._await(lambda: found.read_to >= end, f"reading the watermarks of {topic!r}")
        return feed

    def _heard(self, message: Message) -> None:
        """A message of a partition that is not read as such: a watermark, or one of a partition that was forgotten."""
        topic = message.topic().removeprefix(self._cluster.prefix)
        feed = self._feeds.get(topic)
        if feed is None:
            return
        error, offset = message.error(), message.offset()
        if error is None:
            if offset >= feed.read_to:
                feed.add(decode(topic, _bytes(message.key()), _bytes(message.value())))
                feed.read_to = offset + 1
        elif error.name() == "_PARTITION_EOF":
            feed.read_to = max(feed.read_to, offset)
        elif not error.retriable():
            raise as_log_error(error, "reading watermarks", topic)


def _record(message: Message) -> InputRecord:
    headers = message.headers()
    timestamp_ms = message.timestamp()[1]
    return InputRecord(
        message.offset(),
        0 if timestamp_ms == NO_TIMESTAMP else timestamp_ms,
        _bytes(message.key()),
        _bytes(message.value()),
        tuple((name, _bytes(value) or b"") for name, value in headers) if headers else (),
    )


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _size(record: InputRecord) -> int:
    return len(record.key or b"") + len(record.value or b"") + 100
