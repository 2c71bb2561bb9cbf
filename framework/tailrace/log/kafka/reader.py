"""Reads partitions from Kafka: one consumer, a buffer for each partition, and what is known of each partition's end.

librdkafka has one queue for all partitions, in the order of arrival. ``_pump`` sorts it into buffers. A partition whose buffer is full
is paused, so the backlog of one never starves another, and memory is bounded.

What a fetch says of the end rests on three facts, each of which may be older than the fetch:

- the *last stable offset* that came with the last answer: below it, something may be unread;
- *at the end*: librdkafka says so when the position is the last stable offset. Offsets up to there that had no record are passed;
- the *uncommitted end*, asked of the cluster beside reading, once a partition is at its end. If it is the position, and was asked
  after the last commit of this process to it, the partition is idle. An answer counts for a second.

The first fetch after ``seek`` waits for the first answer of a broker, since before it nothing is known at all. Of a *live* reader no
other fetch waits: a service has other partitions to read. Any other reader reads history, up to an end that is known: its
fetches wait until there are records, or none are left, or an open transaction hides the rest. So a fetch that finds nothing means
the same as on a log in one file. A reader that is made to read *until* a stable offset waits for nothing behind it.

Published watermarks are a partition of the same consumer (``watermarks``). The first ``published`` for a topic waits until all
that was published until then is read. So no record before that is read behind its watermark. Later ones arrive beside the records,
and a partition is idle only when they are read, too. Commits to other partitions do not count: a process that commits all the time
has to find its idle partitions, too.

A consumer that a broker tells that there are no brokers forgets the addresses of all, and may never find one again
(confluentinc/librdkafka#5301). It then gives nothing more. So one that is silent for a while is asked whether it finds a broker, and is
replaced if it does not and another client does. The new one continues behind what is in the buffers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from math import inf
from typing import Any, Final

from tailrace.core.errors import LogUnavailableError, OffsetGoneError, TailraceError
from tailrace.log.interface import Fetch, Publication, TopicPartition
from tailrace.log.kafka.buffer import Buffer, records_of, runs
from tailrace.log.kafka.cluster import Cluster
from tailrace.log.kafka.diagnosis import is_cut_off
from tailrace.log.kafka.failures import kafka_error, passes
from tailrace.log.kafka.feeds import Feed, Waiting
from tailrace.log.kafka.library import Consumer, Message
from tailrace.log.kafka.topic_ids import SURE_S, WatchedTopics
from tailrace.log.kafka.watermarks import WATERMARKS, decode
from tailrace.log.threads import in_thread

_log = logging.getLogger("tailrace.kafka")

_FULL: Final = 20_000
"""A partition with so many records in its buffer is paused."""
_FULL_BYTES: Final = 64 << 20
"""So is one whose records take more than its share of this, unless they are few."""
_LEAST_SHARE_BYTES: Final = 1 << 20
_FEW: Final = 100
_BATCH: Final = 5_000
_NAP_S: Final = 0.02
_FRESH_S: Final = 1.0
"""For how long an answer about ends counts."""
_ASK_S: Final = 0.1
"""Ends are not asked more often."""
_SILENT_S: Final = 15.0
"""A consumer that has given nothing for so long may be cut off."""
_HIDDEN_S: Final = 30.0
"""A transaction that hides records for so long is named in the log."""
_LATE_S: Final = 1.0
"""After this time without an answer, the reader asks whether an open transaction hides its position."""


class _Part:
    """A partition that is read."""

    __slots__ = (
        "answered", "asked", "asked_at", "at_end", "buffer", "error", "hidden", "idle_after", "idle_at", "paused", "place",
        "position", "read_to", "stable",
    )  # fmt: skip

    def __init__(self, place: TopicPartition, position: int) -> None:
        self.place = place
        self.position = position
        """Of the reader: the next offset that a fetch returns."""
        self.read_to = position
        """Of the consumer: all before it is in the buffer, or was."""
        self.buffer = Buffer()
        self.paused = False
        self.answered = False
        """Whether a broker has answered since the last ``seek``."""
        self.asked: Future[dict[TopicPartition, int]] | None = None
        """The answer about the last stable offset, if the first answer is late and it is asked for."""
        self.asked_at = time.monotonic()
        self.at_end = False
        """Whether nothing readable was behind ``read_to`` at the last answer."""
        self.stable = -1
        """The last stable offset known."""
        self.idle_at = 0.0
        """When it was asked whether ``read_to`` is the uncommitted end, and it was. 0: it is not known."""
        self.idle_after = 0
        """After how many commits of this process to it, or to its watermarks, that was."""
        self.error: Any = None
        self.hidden = (-1, inf)
        """From which offset on an open transaction hides records, and since when that is known and not logged."""

    def note_hidden(self, *, is_hidden: bool) -> None:
        """Log it once if an open transaction has hidden the records behind ``read_to`` for long."""
        offset, since = self.hidden
        now = time.monotonic()
        if not is_hidden or offset != self.read_to:
            self.hidden = (self.read_to, now) if is_hidden else (-1, inf)
        elif now > since + _HIDDEN_S:
            self.hidden = offset, inf
            _log.warning(
                "a transaction of another producer has been open for %.0f s and hides the records of %r partition %d from offset %d on: they "
                "are read when it ends. Kafka aborts it after the transaction.timeout.ms of its producer, or kafka-transactions.sh does",
                now - since,
                self.place.topic,
                self.place.partition,
                offset,
            )


class KafkaReader:
    """A reader of a ``KafkaLog``; see ``tailrace.log.Reader``. Holds a consumer, which ``connect`` makes, and up to 16 MB for each
    partition.

    ``commits`` gives the number of commits of this process to a partition; ``feed`` the publications for a topic, up to now. If
    nothing can be read for ``hidden_s``, an open transaction hides the rest: the markers of one that has ended arrive sooner. ``live``
    and ``until`` are explained at the head of this file.
    """

    def __init__(
        self,
        connect: Callable[[], Consumer],
        cluster: Cluster,
        topics: WatchedTopics,
        *,
        commits: Callable[[TopicPartition], int],
        feed: Callable[[str], Feed],
        hidden_s: float,
        live: bool = False,
        until: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self._live = live
        self._until = until or {}
        self._hidden_s = hidden_s
        self._connect = connect
        self._consumer = connect()
        self._heard_at = time.monotonic()
        """When the consumer last gave something, or was asked whether it is cut off."""
        self._cluster = cluster
        self._topics = topics
        self._commits = commits
        self._new_feed = feed
        self._parts: dict[tuple[str, int], _Part] = {}
        """By the topic's name at the brokers, and partition."""
        self._feeds: dict[str, Feed] = {}
        self._waiting: dict[TopicPartition, Waiting] = {}
        self._asked: Future[dict[TopicPartition, int]] | None = None
        self._asked_at = 0.0
        self._asked_after: dict[TopicPartition, int] = {}
        """After how many commits to each partition, and to its watermarks, they were asked."""
        self._asked_to: dict[TopicPartition, int] = {}
        """Up to where partitions were read then."""
        self._odd_since = 0.0
        """Since when the answers say that a topic is not there, or ends before what was read; 0: they do not."""

    def fetch(self, topic: str, partition: int, max_records: int, /) -> Fetch:
        part = self._parts[self._cluster.prefix + topic, partition]
        if not part.buffer:
            self._pump(0)
            doing, until = f"reading {topic!r} partition {partition}", self._until.get(part.place)
            if not part.answered:
                self._await(lambda: part.answered or self._is_hidden(part), doing)
            if until is not None:
                self._await(lambda: part.buffer or part.error is not None or part.read_to >= until, doing)
            elif not self._live:
                self._settle(part, doing)
        if part.error is not None and not part.buffer:
            self._raise(part)
        buffer = part.buffer
        records = buffer.take(max_records)
        if part.paused and buffer.count < _FULL // 2:
            self._resume(part)
        part.position = buffer.first if buffer else part.read_to
        unread = bool(buffer) or (not part.at_end and part.read_to < part.stable)
        idle = not unread and self._is_idle(part)
        return Fetch(records, part.position, unread, idle)

    def seek(self, topic: str, partition: int, offset: int, /) -> None:
        self.forget(topic, partition)
        if self._live:
            self._topics.read.add(topic)
        place = TopicPartition(topic, partition)
        self._consumer.incremental_assign([self._cluster.at(place, offset)])
        self._parts[self._cluster.prefix + topic, partition] = _Part(place, offset)

    def forget(self, topic: str, partition: int, /) -> None:
        place = TopicPartition(topic, partition)
        part = self._parts.pop((self._cluster.prefix + topic, partition), None)
        if part is not None:
            if part.paused:
                self._resume(part)  # the library keeps it paused when it is assigned again
            self._consumer.incremental_unassign([self._cluster.at(place)])
        waiting = self._waiting.pop(place, None)
        if waiting is not None:
            self._feeds[topic + WATERMARKS].drop(waiting)

    def behind(self, topic: str, partition: int, /) -> int | None:
        self._pump(0)
        part = self._parts[self._cluster.prefix + topic, partition]
        return max(0, part.stable - part.position) if part.answered else None

    def published(self, topic: str, partition: int, /) -> list[Publication]:
        place = TopicPartition(topic, partition)
        part = self._parts[self._cluster.prefix + topic, partition]
        waiting = self._waiting.get(place)
        if waiting is None:
            waiting = self._waiting[place] = self._feed(topic).waiting(partition, part.position)
        self._pump(0)
        return waiting.news(part.position)

    def wait(self, timeout_s: float, /) -> bool:
        deadline = time.monotonic() + timeout_s
        while not (ready := self._is_ready()):
            left_s = deadline - time.monotonic()
            self._pump(max(0.0, min(left_s, _NAP_S)))
            if left_s <= 0:
                return self._is_ready()
        return ready

    def close(self) -> None:
        self._parts.clear()
        self._feeds.clear()
        self._consumer.close()

    # --- reading

    def _is_ready(self) -> bool:
        return any(part.buffer or part.error is not None for part in self._parts.values())

    def _pump(self, timeout_s: float) -> None:
        """Sort what has arrived into the buffers; wait for the first message."""
        if self._live:
            self._topics.look()
        try:
            messages = self._consumer.consume(_BATCH, 0)
            if not messages and timeout_s:
                first = self._consumer.poll(timeout_s)
                messages = [] if first is None else [first, *self._consumer.consume(_BATCH, 0)]
        except Exception as error:  # another is raised again
            raise self._cluster.error(kafka_error(error), "reading") from error
        if messages:
            self._heard_at = time.monotonic()
        elif time.monotonic() > self._heard_at + _SILENT_S:
            self._check_connected()
        for topic, partition, are_records, run in runs(messages):
            part = self._parts.get((topic, partition))
            if part is None:
                for message in run:
                    self._heard(message)
            elif are_records:
                self._take(part, run)
            else:
                for message in run:
                    self._take_error(part, message)
        self._take_ends()

    def _check_connected(self) -> None:
        if is_cut_off(self._consumer, self._cluster):
            _log.warning("a consumer has lost the addresses of all brokers; another one continues")
            lost, self._consumer = self._consumer, self._connect()
            in_thread("tailrace-lost-consumer", lost.close)
            parts = self._parts.values()
            places = [self._cluster.at(part.place, part.read_to) for part in parts]
            places += [
                self._cluster.at(TopicPartition(name, 0), feed.read_to) for name, feed in self._feeds.items()
            ]
            self._consumer.incremental_assign(places)
            for part in parts:
                part.at_end, part.idle_at, part.error = False, 0.0, None
                if part.paused:
                    self._consumer.pause([self._cluster.at(part.place)])
        self._heard_at = time.monotonic()

    def _take(self, part: _Part, messages: Sequence[Message]) -> None:
        part.answered, part.error, part.idle_at = True, None, 0.0
        records = records_of(messages, part.read_to)
        if records:
            part.buffer.add(records)
            part.read_to = records[-1].offset + 1
            part.at_end = False
        _, part.stable = self._consumer.get_watermark_offsets(self._cluster.at(part.place), cached=True)
        buffer = part.buffer
        share_bytes = max(_LEAST_SHARE_BYTES, _FULL_BYTES // len(self._parts))
        is_full = buffer.count > _FULL or (buffer.count > _FEW and buffer.bytes > share_bytes)
        if is_full and not part.paused:
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
            self._topics.check(self._topics.ask())
            raise self._gone(part)
        part.error = None
        raise self._cluster.error(error, f"reading {topic!r} partition {partition}", topic)

    def _gone(self, part: _Part) -> OffsetGoneError:
        (topic, partition), places = part.place, [part.place]
        start, end = self._cluster.starts(places)[part.place], self._cluster.ends(places)[part.place]
        return OffsetGoneError(
            f"the log holds offsets {start} to {end}, the reader stands at {part.position}",
            topic=topic,
            partition=partition,
            offset=part.position,
            hint="The records in between were deleted before they were read. To continue without them, run the service "
            "with --after-deleted; keep the topic for longer."
            if part.position < start
            else "It has read more than this topic holds: the topic was created again, or has lost its end (an unclean leader "
            "election, a restored backup). What was read and is lost is still in the state. The next start names the ways on.",
        )

    def _await(self, is_done: Callable[[], object], doing: str) -> None:
        deadline = time.monotonic() + self._cluster.patience_s
        while not is_done():
            if time.monotonic() > deadline:
                raise _no_answer(doing)
            self._pump(_NAP_S)

    def _is_hidden(self, part: _Part) -> bool:
        """Whether an open transaction before the position hides it: then the library does not answer."""
        now = time.monotonic()
        if part.asked is None:
            if now - part.asked_at > _LATE_S:
                part.asked, part.asked_at = self._cluster.ask_ends([part.place], stable=True), now
        elif part.asked.done():
            answer, part.asked = part.asked, None
            with suppress(LogUnavailableError):  # asked again
                stable = answer.result()[part.place]
                if stable < part.read_to and not part.answered:
                    part.answered, part.at_end, part.stable = True, True, stable
        return part.answered

    def _settle(self, part: _Part, doing: str) -> None:
        """Wait for records; or until none can be read, and all watermarks are read that were published by then."""
        feeds = {TopicPartition(name, 0): feed for name, feed in self._feeds.items()}
        asked_at, asked_after = time.monotonic(), self._commits_to(part.place)
        ends = self._cluster.ends([part.place, *feeds])
        end = ends[part.place]
        given_up_s, hidden_s = asked_at + self._cluster.patience_s, asked_at + self._hidden_s
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
                raise _no_answer(doing)

    # --- the ends of partitions

    def _is_idle(self, part: _Part) -> bool:
        """Whether nothing is behind its position; asks for the ends, if that is not known."""
        if not part.at_end:
            return False
        now = time.monotonic()
        commits = self._commits_to(part.place)
        if self._asked is None and (
            now - self._asked_at > _ASK_S or self._asked_after.get(part.place) != commits
        ):
            places = [one.place for one in self._parts.values() if one.at_end]
            self._asked_at, self._asked_after = now, {one: self._commits_to(one) for one in places}
            places += [TopicPartition(name, 0) for name in self._feeds]
            self._asked_to = {one.place: one.read_to for one in self._parts.values() if one.at_end}
            self._asked = self._cluster.ask_ends(places)
        return part.idle_at > 0 and now - part.idle_at < _FRESH_S and part.idle_after == commits

    def _commits_to(self, place: TopicPartition) -> int:
        """The number of commits of this process to a partition, or to its watermarks if they are read, too."""
        name = place.topic + WATERMARKS
        return self._commits(place) + (self._commits(TopicPartition(name, 0)) if name in self._feeds else 0)

    def _take_ends(self) -> None:
        """If the answer about ends is here, note which partitions were idle when it was asked for."""
        if self._asked is None or not self._asked.done():
            return
        answer, self._asked = self._asked, None
        try:
            ends = answer.result()
        except LogUnavailableError:
            return  # asked again
        except TailraceError as error:
            self._doubt(error)
            return
        odd: TailraceError | None = None
        for place, end in ends.items():
            if end < 0:
                return  # an answer of a broker that has just started, without an offset
            part = self._parts.get((self._cluster.prefix + place.topic, place.partition))
            if part is not None and end < self._asked_to.get(place, 0) <= part.read_to:
                odd = self._gone(part)
        self._doubt(odd)
        for place, end in ends.items():
            part = self._parts.get((self._cluster.prefix + place.topic, place.partition))
            if part is not None:
                name = place.topic + WATERMARKS
                feed, published = self._feeds.get(name), ends.get(TopicPartition(name, 0), 0)
                heard = feed is None or published <= feed.read_to
                part.idle_at = self._asked_at if heard and part.at_end and part.read_to == end else 0.0
                part.idle_after = self._asked_after.get(place, -1)
                part.note_hidden(is_hidden=part.at_end and part.read_to < end)

    def _doubt(self, odd: TailraceError | None) -> None:
        """Raise what is wrong with a topic, once it lasts: a broker that starts may not know all topics yet."""
        now = time.monotonic()
        if odd is None:
            self._odd_since = 0.0
        elif not self._odd_since:
            self._odd_since = now
        elif now - self._odd_since > SURE_S:
            self._topics.check(self._topics.ask())
            raise odd

    # --- watermarks

    def _feed(self, topic: str) -> Feed:
        name = topic + WATERMARKS
        feed, place = self._feeds.get(name), TopicPartition(name, 0)
        if feed is None:
            feed = self._feeds[name] = self._new_feed(topic)
            self._consumer.incremental_assign([self._cluster.at(place, feed.read_to)])
            return feed
        found, end = feed, self._cluster.stable_ends([place])[place]
        self._await(lambda: found.read_to >= end, f"reading the watermarks of {topic!r}")
        return feed

    def _heard(self, message: Message) -> None:
        """A watermark, or a message of a forgotten partition, or of none."""
        error, offset = message.error(), message.offset()
        if message.topic() is None:
            # A reader commits nothing in its group, so it needs no right on it.
            if error.name() != "GROUP_AUTHORIZATION_FAILED" and not passes(error):
                raise self._cluster.error(error, "reading")
            return
        topic = message.topic().removeprefix(self._cluster.prefix)
        feed = self._feeds.get(topic)
        if feed is None:
            return
        if error is None:
            if offset >= feed.read_to:
                feed.add(offset, decode(topic, offset, _bytes(message.key()), _bytes(message.value())))
        elif error.name() == "_PARTITION_EOF":
            feed.read_to = max(feed.read_to, offset)
        elif not error.retriable():
            raise self._cluster.error(error, "reading watermarks", topic)


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _no_answer(doing: str) -> LogUnavailableError:
    return LogUnavailableError(f"Kafka does not answer, while {doing}", hint="Look at the brokers.")
