import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.values.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_the_hash_is_the_one_of_kafkas_own_tests(text: str, hashed: int) -> None:
    assert murmur2(text.encode()) == hashed & 0xFFFFFFFF
    assert partition_of(text.encode(), 1000) == (hashed & 0x7FFFFFFF) % 1000


def _java(data: bytes) -> int:
    """Kafka's ``Utils.murmur2``, line by line, with Java's 32-bit arithmetic."""

    def int32(number: int) -> int:
        return (number + 2**31) % 2**32 - 2**31

    def shifted(number: int, by: int) -> int:
        return (number % 2**32) >> by

    length, m, r = len(data), 0x5BD1E995, 24
    h = int32(int32(0x9747B28C) ^ length)
    for i in range(length // 4):
        k = int32(int.from_bytes(data[4 * i : 4 * i + 4], "little"))
        k = int32(k * m)
        k ^= shifted(k, r)
        k = int32(int32(k) * m)
        h = int32(h * m)
        h ^= k
    tail = length & ~3
    if length % 4 == 3:
        h ^= (data[tail + 2] & 0xFF) << 16
    if length % 4 >= 2:
        h ^= (data[tail + 1] & 0xFF) << 8
    if length % 4 >= 1:
        h ^= data[tail] & 0xFF
        h = int32(h * m)
    h ^= shifted(h, 13)
    h = int32(int32(h) * m)
    h ^= shifted(h, 15)
    return int32(h)


@given(st.binary(max_size=300))
def test_the_hash_is_that_of_the_java_source(data: bytes) -> None:
    assert murmur2(data) == _java(data) & 0xFFFFFFFF


@given(st.binary(max_size=20), st.integers(1, 5000))
def test_a_key_has_one_partition_among_those_there_are(data: bytes, partitions: int) -> None:
    assert 0 <= partition_of(data, partitions) < partitions
    assert partition_of(data, partitions) == (murmur2(data) & 0x7FFFFFFF) % partitions
