"""Ids of units and places of records: what an app sends to itself has both from the send, not from an offset in its own topic.

Theory. A *call* is one invocation of a handler. Its *cause* has an id of 16 bytes; with the name of its operator, that is the call's
identity. Sends, and events for streams, are numbered in the call: n = 0, 1, ...

    cause of the call                 its id
    a record from outside             8 bytes of a hash of topic and partition, and the offset
    what a call has sent or emitted   hash(id of the cause of that call, n, operator, key); of a stream the key is empty
    a timer                           hash(id of the cause of the call that set it, operator, domain, time, name)
    a redriven record                 the id of its original, which its header has

From outside is what this app has not sent, in its own topics too. So an id is a function of the events alone: of no order of
arrival, and no commit. A random number of a handler is hash(lineage, id of the cause, operator, number of the draw, key).

Every output has a header: ``app/task/number``, where the number counts all outputs of the task. If the app reads the topic itself,
an *inner part* follows::

    00  id of the cause: 16  n: 4  operator  00  task: 4  running number: 8

The numbers are big endian. The running number counts what this operator has sent to the app in this task: it is state, in the cut.
So two slices of the header are all that a reader needs. From the id of the cause to the second 00, with the key of the record behind
it, is what the id is a hash of. From the operator on, compared as bytes, is the *tail* of the record's place: (time, rank of the input, tail), see
``engine.ordering``. A record from outside in such a topic has the tail 00 and its offset, before those of all operators.

A header of another form is not of this app: strangers may write to a topic that the app writes, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, TypeAlias, cast

from tailrace.core.records import Headers, InputRecord, Output

ORIGIN_HEADER: Final = "tailrace-origin"
"""Header of every output, its last one."""
Tail: TypeAlias = int | bytes
"""The end of a place: the offset, or in an input that the app writes, bytes. No two records of one time and input have the same."""
Sent: TypeAlias = tuple[bytes, int, bytes]
"""A send that has no running number yet: the id of the call's cause, its number in the call, the operator."""
BEYOND: Final = 1 << 40
"""In stages, records of topics that the app writes are numbered from here on. One from outside has its tail in place of an origin."""
_INNER: Final = rb"\0.{20}([^\0]*\0.{12})"
_ORIGIN: Final = re.compile(rb"([^\0]+)/([0-9]{1,9})/([0-9]{1,18})(?:%b)?" % _INNER, re.DOTALL)
_TO_OPERATOR: Final = 21
_NUMBERS: Final = 12
_TAIL_OF_OTHERS: Final = 9


def origin_in(headers: Headers) -> tuple[bytes, int, int] | None:
    """App, task and running number in the headers of an output. None if no task can have written them."""
    if not headers or headers[-1][0] != ORIGIN_HEADER:
        return None
    found = _ORIGIN.fullmatch(headers[-1][1])
    return None if found is None else (found[1], int(found[2]), int(found[3]))


def without_task(headers: Headers) -> Headers:
    """The headers of an output without app, task and number. Of what an app sends to itself, the inner part remains."""
    if not headers or headers[-1][0] != ORIGIN_HEADER:
        return headers
    _, is_inner, inner = headers[-1][1].partition(b"\0")
    return (*headers[:-1], (ORIGIN_HEADER, is_inner + inner)) if is_inner else headers[:-1]


# --- writing


def sent_id(cause: bytes, number: int, operator: bytes, key: bytes) -> bytes:
    """The id of what the call of an operator has sent, or emitted to a stream, as its ``number``."""
    return _hash(b"%b%b%b\0%b" % (cause, number.to_bytes(4, "big"), operator, key))


def timer_id(cause: bytes, operator: bytes, domain: int, time_ms: int, name: bytes) -> bytes:
    """The id of the firing of a timer. ``cause``: of the call that has set it."""
    timer = cause, domain, time_ms.to_bytes(8, "big", signed=True), operator, name
    return blake2b(b"%b%c%b%b\0%b" % timer, digest_size=16, person=b"timer").digest()


def drawn(lineage: bytes, cause: bytes, operator: bytes, number: int, key: bytes) -> bytes:
    """16 random bytes for a call. ``number``: that of the draw, from 1 on."""
    draw = len(lineage), lineage, cause, number.to_bytes(4, "big"), operator, key
    return blake2b(b"%c%b%b%b%b\0%b" % draw, digest_size=16, person=b"draw").digest()


class SentNumbers:
    """The running numbers of what the operators of a task send to the app. ``sent``: how many each has sent, by name."""

    def __init__(self, task: int, sent: Mapping[str, int]) -> None:
        self._task = task << 64
        self._sent = {name.encode(): count for name, count in sent.items()}

    def noted(self) -> dict[str, int]:
        """How many records each operator has sent, for a cut."""
        return {name.decode(): count for name, count in self._sent.items()}

    def numbered(self, headers: Iterable[Headers], origins: Iterable[bytes]) -> list[Headers]:
        """The headers of outputs. ``origins``: of each, the first part, which is all that an output for others gets.

        What is sent to the app has a ``Sent`` in place of the value of its origin.
        """
        task, sent, found, name = self._task, self._sent, list[Headers](), ORIGIN_HEADER
        for one, origin in zip(headers, origins, strict=True):
            if one and (last := one[-1])[0] == name:
                cause, n, operator = cast(Sent, last[1])
                sent[operator] = 1 + (number := sent.get(operator, 0))
                end = (task | number).to_bytes(_NUMBERS, "big")
                whole = (name, b"%b\0%b%b%b\0%b" % (origin, cause, n.to_bytes(4, "big"), operator, end))
                found.append((whole,) if len(one) == 1 else (*one[:-1], whole))
            else:
                found.append((*one, (name, origin)))
        return found

    def again(self, headers: Headers, origin: bytes) -> Headers:
        """The headers of an output that was numbered among some of the outputs of a task, now that it is numbered among all."""
        _, inside, inner = headers[-1][1].partition(b"\0")
        if not inside:
            return (*headers[:-1], (ORIGIN_HEADER, origin))
        operator = inner[_TO_OPERATOR - 1 : -_NUMBERS - 1]
        self._sent[operator] = 1 + (number := self._sent.get(operator, 0))
        end = (self._task | number).to_bytes(_NUMBERS, "big")
        return (*headers[:-1], (ORIGIN_HEADER, b"%b\0%b%b" % (origin, inner[:-_NUMBERS], end)))


# --- reading


class RecordIds:
    """Ids and tails of the records of one input partition. ``app``: of an input that this app writes; None of any other."""

    __slots__ = ("_inner", "_place")

    def __init__(self, topic: str, partition: int, app: str | None) -> None:
        self._place = _hash(f"{topic}/{partition}".encode())[:8]
        form = rb"(?:%b/[0-9]{1,9}/[0-9]{1,18})?%b" % (re.escape((app or "").encode()), _INNER)
        self._inner = None if app is None else re.compile(form, re.DOTALL).fullmatch

    def id_of(self, record: InputRecord) -> bytes:
        """The id of the unit of a record."""
        if self._inner is None or (inner := self._of(record)) is None:
            return self._place + self._offset_of(record)
        start, end = inner.span(1)
        return _hash(inner.string[start - _TO_OPERATOR + 1 : end - _NUMBERS] + (record.key or b""))

    def tail_of(self, record: InputRecord | Output) -> bytes:
        """The tail of the place of a record, in an input that the app writes; of an output, where it is read."""
        if (inner := self._of(record)) is not None:
            return inner[1]
        return b"\0" if isinstance(record, Output) else b"\0" + self._offset_of(record)

    @staticmethod
    def _offset_of(record: InputRecord) -> bytes:
        """The offset in the log of a record from outside, as 8 bytes."""
        if record.offset >= BEYOND and record.headers and len(record.headers[-1][1]) == _TAIL_OF_OTHERS:
            return record.headers[-1][1][1:]
        return record.offset.to_bytes(8, "big")

    def _of(self, record: InputRecord | Output) -> re.Match[bytes] | None:
        headers, match = record.headers, self._inner
        return match(headers[-1][1]) if match and headers and headers[-1][0] == ORIGIN_HEADER else None


def is_from_outside(tail: bytes) -> bool:
    """Whether it is the tail of a record from outside, in an input that the app writes."""
    return len(tail) == _TAIL_OF_OTHERS


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
