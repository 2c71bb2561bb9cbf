"""The partition of a key, by Kafka's default partitioner, so that JVM services agree on every key.

The hash is 32-bit MurmurHash2 with the seed of ``org.apache.kafka.common.utils.Utils.murmur2``. As in Kafka,
the sign bit is masked off before the remainder is taken.
"""

from __future__ import annotations

from functools import cache
from struct import Struct

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


@cache
def _words(count: int) -> Struct:
    return Struct(f"<{count}I")


def partition_of(key: bytes, partitions: int) -> int:
    """The partition, 0 to ``partitions - 1``, that Kafka's default partitioner gives to a key."""
    if partitions == 1:
        return 0
    return (murmur2(key) & 0x7FFF_FFFF) % partitions


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of ``data``, as an unsigned number."""
    length = len(data)
    count = length >> 2
    h = _SEED ^ length
    for k in _words(count).unpack_from(data) if count < 64 else _long_words(data, count):
        k = k * _M & _MASK
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
    rest = length & 3
    if rest:
        h = (h ^ int.from_bytes(data[-rest:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def _long_words(data: bytes, count: int) -> tuple[int, ...]:
    # Not cached: a hostile producer could otherwise fill memory with one Struct per length.
    return Struct(f"<{count}I").unpack_from(data)
