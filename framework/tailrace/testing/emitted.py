"""The results of a service under test: outputs as they become visible, and dead letters.

They are read from the log, where a consumer would find them, so all of them are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Stream, Table, Topic
from tailrace.core.errors import EmittedTypeError, UsageError
from tailrace.core.records import Headers, InputRecord
from tailrace.history.reading.app_history import Origin, origin_of
from tailrace.log.interface import Log, TopicPartition

E = TypeVar("E")
K = TypeVar("K")

_ALL = 1 << 60
_first: Callable[[tuple[Any, Any]], Any] = itemgetter(0)


class Out(msgspec.Struct, frozen=True, gc=False):
    """An emitted event: ``topic`` (its name), ``key``, ``event``, ``timestamp_ms``, ``headers``.

    ``key`` is None in a topic without keys. ``event`` is None for a key that was deleted from a table.
    """

    topic: str
    key: Any
    event: Any
    timestamp_ms: int
    headers: Headers


class Emitted(list[Out]):
    """Emitted events (``Out``), a list: by commit, then by emitting partition, then in order of emission."""

    __slots__ = ()

    def to(self, topic: Topic[E, Any]) -> list[E]:
        """The events that were emitted to one topic, in this order; of a table, without the deletions.

        Raises UsageError for anything else, also for a stream, whose events are in no log.
        """
        edge: Any = topic
        if isinstance(edge, Stream):
            raise UsageError(
                f"{edge.name!r} is a stream, whose events are in no log",
                hint="Let the operator write to a topic (into=), or a function that takes the stream.",
            )
        if not isinstance(edge, Topic):
            raise UsageError(f"{topic!r} is not a topic", hint="Give a topic, as app.topic returned it.")
        name = edge.name
        return [out.event for out in self if out.topic == name and out.event is not None]

    def deleted(self, table: Table[Any, K]) -> list[K]:
        """The keys that were deleted from a table, in this order."""
        return [out.key for out in self if out.topic == table.name and out.event is None]


class DeadLetter(NamedTuple):
    """A record, or a timer's firing, that could not be handled.

    ``reason`` is a short code (``"handler-failed"``, ``"undecodable"``, ...), ``error`` the text of the
    exception. ``topic``, ``key`` and ``value`` are those of the record, all None for a timer. ``headers`` has
    the rest (offset, handler, actor, timer, traceback), under names that begin with ``tailrace-``.
    """

    topic: str | None
    reason: str
    error: str
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]


class Outbox:
    """Reads the records that become visible in the topics of an app, from their current ends on."""

    def __init__(self, plan: Plan, log: Log) -> None:
        self._app = plan.app.encode()
        self._topics = plan.topics
        self._places = [
            TopicPartition(name, number) for name in plan.outputs for number in range(log.partitions(name))
        ]
        self._reader = log.reader({place: log.end_offset(*place) for place in self._places})

    def take(self) -> list[Out]:
        """The events that have become visible since the last call."""
        found: list[tuple[Origin, Out]] = []
        for name, number in self._places:
            records = self._reader.fetch(name, number, _ALL).records
            if records:
                self._decode(self._topics[name], records, found)
        found.sort(key=_first)
        return [out for _, out in found]

    def _decode(
        self, topic: Topic[Any, Any], records: list[InputRecord], into: list[tuple[Origin, Out]]
    ) -> None:
        app, name, decode = self._app, topic.name, topic.decode
        read_key = None if topic.key_of is None else topic.key_codec.decode
        for record in records:
            origin = origin_of(record, app)
            if origin is not None:
                _, timestamp_ms, key, value, headers = record
                key = read_key(key) if read_key is not None and key is not None else None
                try:
                    event = None if value is None and topic.is_table else decode(value or b"")
                except msgspec.MsgspecError as error:
                    raise EmittedTypeError(
                        f"an event was emitted that its readers cannot decode: {error}",
                        topic=name,
                        hint="Emit values of the declared types. A checked harness names the handler.",
                    ) from error
                into.append((origin, Out(name, key, event, timestamp_ms, headers)))


def dead_letter(record: InputRecord) -> DeadLetter:
    """A record of the dead-letter topic, read."""
    headers = dict(record.headers)
    topic = headers.get("tailrace-topic")
    return DeadLetter(
        None if topic is None else topic.decode(),
        headers.get("tailrace-reason", b"").decode(),
        headers.get("tailrace-error", b"").decode(),
        record.key,
        record.value,
        headers,
    )
