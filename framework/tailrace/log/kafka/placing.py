"""Writes records of another log to Kafka, at the offsets that they have there; see ``tailrace.log.Placer``.

A broker gives a record the next offset. So records without gaps between them are sent as they are, outside of transactions, which
would add a marker. A gap is made of what readers of committed records do not see:

===================  ==========================================================================================
one offset           the marker of an aborted transaction that has no record in the partition
n offsets            n - 1 records without content, and the marker that aborts them
before the first     the same, and then these offsets are deleted: so the partition *begins* behind them
===================  ==========================================================================================

Every step may be the last one of a process that is killed: the partition then ends at some offset before the next record, since a
transaction that is left open is aborted, and there is room for its marker. So the next process continues at the end. A partition that
ends behind its offset, whatever has written there, is an error.

A marker without a record needs care. A partition becomes part of a transaction when librdkafka tells the coordinator, which it does
as soon as a record for it is queued. These records are never sent, as they are few and small and may wait for long
(``linger.ms``, ``batch.size``); the abort drops them. A larger record in the *scratch* partition is sent at once. It is queued last,
so when it is delivered, all partitions of the transaction are known.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tailrace.core.errors import LogUnavailableError, UsageError
from tailrace.core.records import InputRecord
from tailrace.log.interface import PublishedAt, Stretch, TopicPartition
from tailrace.log.kafka.buffer import stored_times
from tailrace.log.kafka.cluster import Cluster
from tailrace.log.kafka.failures import Kind, as_log_error, kafka_error, kind_of, standing_error
from tailrace.log.kafka.followed import Followed
from tailrace.log.kafka.library import KafkaError, Message, Producer
from tailrace.log.kafka.watermarks import Published, encode

_REQUEST_S: Final = 10.0
_PAUSE_S: Final = 0.002
_MARKER_S: Final = 0.2
"""For how long a marker is waited for before it is asked whether one will come at all."""
_WAITING: Final[Mapping[str, Any]] = {
    "linger.ms": 900_000,
    "batch.size": 200,
    "compression.type": "none",
    "message.timeout.ms": 0,
}
"""Settings of the producer of markers: a small record waits for long, a larger one is sent at once."""
_SENT: Final = b"-" * 400
_NOTHING: Final = InputRecord(0, 1, b"-", b"", ())


class KafkaPlacer:
    """A placer of a ``KafkaLog``. ``producer`` makes a producer with the given settings; ``scratch`` is a partition."""

    def __init__(
        self,
        producer: Callable[[Mapping[str, Any]], Producer],
        cluster: Cluster,
        scratch: TopicPartition,
        follow: Callable[[str], Followed],
    ) -> None:
        self._cluster = cluster
        self._scratch = scratch
        self._follow = follow
        self._failed: Any = None
        name = f"{cluster.prefix}{scratch.topic}"
        self._plain = producer({})
        self._filler = producer({"transactional.id": f"{name}-fill"})
        self._marker = producer({"transactional.id": f"{name}-mark", **_WAITING})
        for one in (self._filler, self._marker):
            self._try(one.init_transactions, "taking a transactional id over")

    def begin_at(self, place: TopicPartition, offset: int, /) -> None:
        if offset:
            self.append([Stretch(place, (), offset)])
            self._cluster.delete_before(place, offset)

    def append(self, stretches: Sequence[Stretch], /) -> None:
        """See ``Placer.append``. One step of all partitions at a time: a run of records, then the gap after it."""
        ends = self._cluster.ends([one.place for one in stretches])
        waiting = {one.place: _steps(one, ends[one.place]) for one in stretches}
        while waiting:
            gaps: dict[TopicPartition, int] = {}
            for place, steps in list(waiting.items()):
                found = next(steps, None)
                if found is None:
                    del waiting[place]
                    continue
                run, gap = found
                for record in run:
                    self._send(self._plain, place, record)
                if run:
                    ends[place] = run[-1].offset + 1
                if gap:
                    gaps[place] = gap
                    ends[place] += gap
            self._flush(self._plain)
            self._fill({place: gap for place, gap in gaps.items() if gap > 1})
            self._mark({place: ends[place] for place, gap in gaps.items() if gap == 1})
            self._await_ends({place: ends[place] for place, gap in gaps.items() if gap > 1})
        self._await_ends({one.place: one.end for one in stretches})

    def publish(self, topic: str, publications: Sequence[PublishedAt], /) -> None:
        followed, last = self._follow(topic), dict[str, int]()
        feeds = [TopicPartition(name, 0) for name in followed.feeds]
        now_ms = time.time_ns() // 1_000_000
        self._try(lambda _: self._filler.begin_transaction(), "beginning a transaction")
        for name, watermark_ms, ends in publications:
            before_ms = last.get(name) if watermark_ms is None else None
            if watermark_ms is not None:
                last[name] = watermark_ms
            key, value = encode(
                Published(name, watermark_ms, before_ms, ends, followed.topic_id, self._cluster.prefix)
            )
            for feed in feeds:
                self._send(self._filler, feed, InputRecord(0, now_ms, key, value))
        self._flush(self._filler)
        sent = self._cluster.ends(feeds)
        self._try(self._filler.commit_transaction, "committing watermarks")
        deadline = time.monotonic() + self._cluster.patience_s
        # Readers see them when the marker of the transaction is there, which is a moment after it has ended.
        while any(stable < sent[feed] for feed, stable in self._cluster.stable_ends(feeds).items()):
            if time.monotonic() > deadline:
                raise _no_answer()
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        for one in (self._plain, self._filler, self._marker):
            one.purge()
            with warnings.catch_warnings():
                # A producer that was fenced cannot abort, and need not.
                warnings.simplefilter("ignore", RuntimeWarning)
                one.close()

    # --- gaps

    def _fill(self, gaps: Mapping[TopicPartition, int]) -> None:
        if not gaps:
            return
        self._try(lambda _: self._filler.begin_transaction(), "beginning a transaction")
        for place, gap in gaps.items():
            for _ in range(gap - 1):
                self._send(self._filler, place, None)
        self._flush(self._filler)
        self._try(self._filler.abort_transaction, "aborting a transaction")

    def _mark(self, ends: Mapping[TopicPartition, int]) -> None:
        """Make a gap of one offset in each partition; ``ends`` are those after it."""
        missing = list(ends)
        while missing:
            self._abort_empty(missing)
            deadline = time.monotonic() + _MARKER_S
            while missing and time.monotonic() < deadline:
                missing = self._still_before(missing, ends)
            if missing:
                # The library takes a partition into a transaction only if it knows the topic, and it has asked for it just now.
                # Another transaction begins when the one before has ended, with all of its markers: so no marker is to come.
                self._abort_empty([])
                missing = self._still_before(missing, ends)

    def _still_before(
        self, places: Sequence[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        found = self._cluster.ends(places)
        return [place for place in places if found[place] < ends[place]]

    def _abort_empty(self, places: Sequence[TopicPartition]) -> None:
        """Abort a transaction with partitions that have no record in it."""
        self._try(lambda _: self._marker.begin_transaction(), "beginning a transaction")
        for place in places:
            self._marker.produce(self._cluster.prefix + place.topic, b"", b"-", place.partition)
        delivered: list[KafkaError | None] = []

        def note(error: KafkaError | None, _: Message) -> None:
            delivered.append(error)

        self._marker.produce(
            self._cluster.prefix + self._scratch.topic, _SENT, b"-", self._scratch.partition, on_delivery=note
        )
        deadline = time.monotonic() + self._cluster.patience_s
        while not delivered:
            self._serve(self._marker, self._marker.poll, 0.1)
            if time.monotonic() > deadline:
                raise _no_answer()
        if delivered[0] is not None:
            raise as_log_error(delivered[0], "copying records", self._scratch.topic)
        self._try(self._marker.abort_transaction, "aborting a transaction")

    def _await_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Wait until partitions end where they should: markers come a moment after the transaction has ended."""
        deadline = time.monotonic() + self._cluster.patience_s
        while ends and (found := self._cluster.ends(ends)) != ends:
            for place, end in ends.items():
                if found[place] > end:
                    raise UsageError(
                        f"{place.topic!r} partition {place.partition} ends at {found[place]}, and not at {end}: something else "
                        "has written to it while it was copied, or a broker has written a marker twice",
                        hint="Stop what writes to the topic, delete it on the target, and run the command again.",
                    )
            if time.monotonic() > deadline:
                raise _no_answer()
            time.sleep(_PAUSE_S)

    # --- the library

    def _send(self, producer: Producer, place: TopicPartition, record: InputRecord | None) -> None:
        """Send a record, or one without content."""
        _, timestamp_ms, key, value, headers = _NOTHING if record is None else record
        at_ms = stored_times([timestamp_ms], place.topic)[0] if timestamp_ms < 1 else timestamp_ms
        name, deadline = self._cluster.prefix + place.topic, time.monotonic() + self._cluster.patience_s
        while True:
            try:
                producer.produce(
                    name,
                    value,
                    key,
                    place.partition,
                    timestamp=at_ms,
                    headers=list(headers) if headers else None,
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._serve(producer, producer.poll, 0.05)
                self._check()
                if time.monotonic() > deadline:
                    raise _no_answer() from None
            except Exception as error:
                raise as_log_error(kafka_error(error), "copying records", place.topic) from error
            else:
                return

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failed is None:
            self._failed = error, message.topic().removeprefix(self._cluster.prefix)

    def _check(self) -> None:
        if self._failed is not None:
            error, topic = self._failed
            raise as_log_error(error, "copying records", topic)

    def _serve(self, producer: Producer, call: Callable[[float], int], timeout_s: float) -> int:
        try:
            return call(timeout_s)
        except Exception as error:  # noqa: BLE001  # another is raised again
            # After a fatal error the library calls back while its own exception is set, and that is lost.
            is_lost = isinstance(error, SystemError) and producer is not self._plain
            cause = (standing_error(producer) if is_lost else None) or error
            raise as_log_error(kafka_error(cause), "copying records") from cause

    def _flush(self, producer: Producer) -> None:
        deadline = time.monotonic() + self._cluster.patience_s
        before = len(producer)
        while waiting := self._serve(producer, producer.flush, 1.0):
            self._check()
            if waiting < before:
                before, deadline = waiting, time.monotonic() + self._cluster.patience_s
            if time.monotonic() > deadline:
                raise _no_answer()
        self._check()

    def _try(self, do: Callable[[float], object], doing: str) -> None:
        """Do something, again and again while that can help, for as long as the patience lasts."""
        deadline = time.monotonic() + self._cluster.patience_s
        while True:
            try:
                do(_REQUEST_S)
            except Exception as error:
                found = kafka_error(error)
                if kind_of(found) is not Kind.RETRY or time.monotonic() > deadline:
                    raise as_log_error(found, doing) from error
            else:
                return
            time.sleep(_PAUSE_S)


def _steps(stretch: Stretch, position: int) -> Iterator[tuple[Sequence[InputRecord], int]]:
    """A stretch from a position on, in runs of records without gaps, each with the length of the gap after it."""
    _, records, end = stretch
    if position > (records[0].offset if records else end):
        raise UsageError(
            f"{stretch.place.topic!r} partition {stretch.place.partition} ends at {position}, behind the records to be placed there",
            hint="Copy into a partition that ends before them.",
        )
    first = 0
    if records and records[0].offset > position:
        yield (), records[0].offset - position
    for at, record in enumerate(records):
        following = records[at + 1].offset if at + 1 < len(records) else end
        if (gap := following - record.offset - 1) or at + 1 == len(records):
            yield records[first : at + 1], gap
            first = at + 1
    if not records and end > position:
        yield (), end - position


def _no_answer() -> LogUnavailableError:
    return LogUnavailableError(
        "Kafka does not take the records", hint="Look at the brokers, and run it again."
    )
