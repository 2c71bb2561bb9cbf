"""Which transactions are open at the brokers, by what their coordinators write down.

The clients of Python cannot ask for it, so the topic of the coordinators is read. The key of a record is a transactional id, and the
value what the coordinator knows of it (``TransactionLogKey.json`` and ``TransactionLogValue.json`` of Kafka).
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.log.kafka.library import admin_library

_TOPIC = "__transaction_state"
_QUIET = {"log_level": 0}
_ANSWER_S = 10.0
_LENGTH = struct.Struct(">h")
_STATUS_AT = struct.calcsize(">hqhi")
"""Behind the version, the id and the epoch of the producer, and the time-out."""
_OPEN = frozenset({1, 2, 3})
"""Under way; decided, and not yet written everywhere."""


class OpenTransaction(NamedTuple):
    """A transaction that has not ended."""

    number: int
    """How many of its id have ended before: it tells one from the next."""
    is_committing: bool
    """Whether it has records of a changelog, which are appended for a commit, after all outputs."""


class TransactionStates:
    """Follows the coordinators of a cluster; the caller must close it. ``client`` are the settings with which it connects."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._admin = AdminClient({**client, **_QUIET})
        self._reader = Consumer({**client, **_QUIET, "group.id": "look"})
        self._at: dict[int, int] = {}
        """By partition, up to where it was read."""
        self._values: dict[str, bytes] = {}
        self._ended: Counter[str] = Counter()

    def ids(self) -> set[str]:
        """All transactional ids that the coordinators know.

        Raises:
            KafkaException: The brokers do not answer.
        """
        self._read()
        return {*self._values}

    def open(self) -> dict[str, OpenTransaction]:
        """The transactions that are open, by id. Raises what ``ids`` raises."""
        self._read()
        return {
            name: OpenTransaction(self._ended[name], b".changelog" in value)
            for name, value in self._values.items()
            if _is_open(value)
        }

    def close(self) -> None:
        """Release its clients."""
        self._reader.close()

    def __enter__(self) -> TransactionStates:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        """Read what is new, up to the present end."""
        ends = self._ends()
        if not self._at:
            self._at = dict.fromkeys(ends, 0)
            self._reader.assign([TopicPartition(_TOPIC, number, 0) for number in ends])
        until_s = time.monotonic() + _ANSWER_S
        while any(self._at[number] < end for number, end in ends.items()):
            message = self._reader.poll(0.5)
            if message is None:
                if time.monotonic() > until_s:
                    raise KafkaException("the coordinators' topic gives nothing")
                continue
            if message.error() is not None:
                raise KafkaException(message.error())
            until_s = time.monotonic() + _ANSWER_S
            number, offset = message.partition(), message.offset()
            assert number is not None
            assert offset is not None
            self._at[number] = offset + 1
            self._note(message.key() or b"", message.value())

    def _ends(self) -> dict[int, int]:
        count = len(self._admin.list_topics(_TOPIC, timeout=_ANSWER_S).topics[_TOPIC].partitions)
        latest = admin_library().OffsetSpec.latest()
        places = {TopicPartition(_TOPIC, number): latest for number in range(count)}
        answers = self._admin.list_offsets(places, request_timeout=_ANSWER_S)
        return {place.partition: answer.result().offset for place, answer in answers.items()}

    def _note(self, key: bytes, value: bytes | None) -> None:
        (length,) = _LENGTH.unpack_from(key, 2)  # behind the version
        name = key[4 : 4 + length].decode()
        before = self._values.pop(name, None)
        if value is None:
            return
        if before is not None and _is_open(before) and not _is_open(value):
            self._ended[name] += 1
        self._values[name] = value


def _is_open(value: bytes) -> bool:
    return value[_STATUS_AT] in _OPEN
