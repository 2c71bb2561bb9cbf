"""The codec of durable values: msgpack, decoded strictly as the declared type.

A decoded value is *settled*: it has one byte form in every process, and decoding that form gives a value that
a handler cannot distinguish from it::

    encode(decode(encode(settled))) == encode(settled)

``encode`` alone does not give that form for every value that a handler may leave in a field (an ``int`` in a
``float`` field is written as an int, and the sign of a NaN is arbitrary, see ``canonical_nan``). So values
are settled, or sealed (``types``), when a handler returns.

Dicts keep their insertion order; sorting them would change the order of an iteration after a restart. The
insertion order is the same in every run of the same steps, because sets, whose order differs between
processes, are not durable.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from tailrace.core.values.canonical_nan import canonical

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


class ValueCodec(Generic[T]):
    """Encodes and strictly decodes values of one type.

    ``encode(value) -> bytes`` and ``decode(data) -> T`` are msgspec's own functions: about 0.1 us for a small
    struct. They raise msgspec's errors; ``types.explain`` turns them into messages for users.
    """

    __slots__ = ("decode", "encode", "type")

    def __init__(self, declared: Any) -> None:
        self.type = declared
        self.encode = _encoder.encode
        self.decode = msgspec.msgpack.Decoder[T](declared).decode

    def settle(self, value: T) -> tuple[bytes, T]:
        """The value as it is after a restart, and its byte form.

        Raises msgspec.ValidationError, OverflowError, TypeError or UnicodeEncodeError for another type.
        """
        written = canonical(self.encode(value))
        settled = self.decode(written)
        return self.encode(settled), settled
