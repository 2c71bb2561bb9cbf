"""How a durable value becomes bytes and comes back: msgpack, decoded strictly as the declared type.

A value that was decoded is *settled*: it has one byte form, in every process, and decoding that gives a value
that no handler can tell from it::

    encode(decode(encode(settled))) == encode(settled)

``encode`` alone does not give that byte form for what a handler may leave behind (an ``int`` in a ``float``
field is written as an int), which is why values are settled, or sealed (``types``), when a handler returns.

Dicts keep their order of insertion, as Python promises; sorting them would change what an iteration sees
after a restart. It is the same in every run of the same steps, since sets, whose order is not, are no durable
type.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


class ValueCodec(Generic[T]):
    """Encodes and strictly decodes values of one type.

    ``encode(value) -> bytes`` and ``decode(data) -> T`` are msgspec's own functions: about 0.1 us for a small
    struct. They raise what msgspec raises; ``types.explain`` makes a message for users out of it.
    """

    __slots__ = ("decode", "encode", "type")

    def __init__(self, declared: Any) -> None:
        self.type = declared
        self.encode = _encoder.encode
        self.decode = msgspec.msgpack.Decoder[T](declared).decode

    def settle(self, value: T) -> tuple[bytes, T]:
        """The value as a restart would show it, and its one byte form.

        Raises msgspec.ValidationError, OverflowError, TypeError or UnicodeEncodeError if it is not of the
        type.
        """
        written = self.encode(value)
        settled = self.decode(written)
        return self.encode(settled), settled
