"""The inputs and outputs of a task: records, heads and outputs.

``InputRecord`` is a record as it was read from the log. A *head* is the same record decoded, with its event
time and key. It is a plain tuple because one is made for every event::

    (offset, event_time_ms, key, event, record)

``event_time_ms`` is None if the event takes its time from the clock (arrival time), or is not to be handled.
In the latter case ``event`` is a ``Refused`` with the reason. Of a deletion in a table it is ``DELETED``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from tailrace.core.errors import BadReason, RecordTooLargeError

CHANNEL: Final = "#"
"""Separates a topic from a channel in it, which has its own watermark. Topic names do not contain it."""

Headers: TypeAlias = tuple[tuple[str, bytes], ...]
"""Names and values, in order; a name may occur twice. A null value of a Kafka header is empty here."""
Head: TypeAlias = tuple[int, int | None, Any, Any, "InputRecord | None"]

UNREADABLE: Final = "tailrace-unreadable-headers"
"""In place of the headers of a record that a log cannot read."""
RECORD_BYTES: Final = 31 << 20
"""The largest value that a task decodes, the largest dead letter, and the largest row of state with its name. Kafka's topics of an app take a little more: see ``log.kafka.topic_config``."""

MAX_RECORD_BYTES: Final = 1_000_000
"""The size limit of an event, if no other is set. Kafka's own, 1,048,588, is for a record with its headers, and what is around it."""


class OwnKey(tuple[tuple[str, bytes], ...]):
    """See ``OWN_KEY``."""

    __slots__ = ()


OWN_KEY: Final = OwnKey()
"""In place of no headers: the key of the output is that of the instance that has emitted it, so it belongs to the task's partition."""


class InputRecord(NamedTuple):
    """A record of one input partition; ``timestamp_ms`` is the log's timestamp for it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class RecordMark(msgspec.Struct, frozen=True):
    """A record as it is noted where it was read: its offset, and a digest of all of its fields in hex."""

    offset: int
    sha256: str

    @classmethod
    def of(cls, record: InputRecord) -> RecordMark:
        """The mark of a record."""
        return cls(record.offset, sha256(msgspec.msgpack.encode(tuple(record))).hexdigest())


class Output(NamedTuple):
    """A record that a task emits. ``timestamp_ms`` is the event time of its cause."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


RawOutput: TypeAlias = tuple[str, bytes | None, bytes | None, int, Headers]
"""The fields of an output as a plain tuple: topic, key, value, timestamp_ms, headers. It is not numbered yet, or is for bulk use."""

output_of: Callable[[RawOutput], Output] = partial(cast(Any, tuple).__new__, Output)
"""An ``Output`` of its fields, for bulk use: half the cost of the constructor."""

record_of: Callable[[tuple[int, int, bytes | None, bytes | None, Headers]], InputRecord] = partial(
    cast(Any, tuple).__new__, InputRecord
)
"""An ``InputRecord`` of its fields, likewise."""


def too_large(
    topic: str, key: bytes | None, value: bytes | None, most: int, partition: int | None = None
) -> RecordTooLargeError:
    """The error for a record that is over the limit of ``most`` bytes."""
    is_own = most == RECORD_BYTES
    return RecordTooLargeError(
        f"a record of {len(key or b'') + len(value or b'')} bytes is over the limit of {most}",
        topic=topic,
        partition=partition,
        key=None if key is None else key[:100],
        hint="Write less at once."
        if is_own
        else "Emit less in one event, or raise the limit: tailrace run --max-record-bytes.",
    )


def row_too_large(size: int, actor: str, key: object, field: str | None = None) -> RecordTooLargeError:
    """The error for a row of state that is larger than a record of the changelog may be: than ``RECORD_BYTES``."""
    return RecordTooLargeError(
        f"a row of its state would have {size} bytes, and the limit is {RECORD_BYTES}",
        actor=actor,
        key=key,
        field=field,
        hint="Keep less in one value: what grows belongs into a MapState or a ListState.",
    )


class Refused(NamedTuple):
    """Why a record cannot be handled: a short ``reason`` code, and ``detail`` and ``hint`` for messages."""

    reason: BadReason
    detail: str
    hint: str = ""


class Deleted(Enum):
    """In place of the event of a record without a value in a table: its key is deleted."""

    DELETED = "deleted"


DELETED: Final = Deleted.DELETED


class Delivery(NamedTuple):
    """A message from the inbox, or a redriven event: decoded, with the routes that take it."""

    routes: tuple[Any, ...]
    message: Any
    redriven: int = -1
    """The number of the input that it was redriven for; -1 for a message."""
