"""A block gives back what was put in, whatever its headers are; a router sorts by Kafka's partitioner, all or nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.records import Headers, InputRecord, Output
from tailrace.log.embedded import blocks

names = st.sampled_from(["tailrace-origin", "a", ""])
header = st.tuples(names, st.binary(max_size=5))
any_headers = st.lists(header, max_size=3).map(tuple)
origins = st.integers(0, 10**12).map(lambda n: (("tailrace-origin", b"app/0/%d" % n),))
columns = st.one_of(
    st.lists(any_headers, min_size=1, max_size=20),
    st.lists(origins, min_size=1, max_size=20),
    st.lists(st.one_of(origins, any_headers), min_size=1, max_size=20),
)
data = st.none() | st.binary(max_size=9)


@given(columns, data, data, st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40))
def test_a_block_gives_back_what_was_put_in(
    headers: list[Headers], key: bytes | None, value: bytes | None, time_ms: int, base: int
) -> None:
    outputs = [Output("t", key, value, time_ms, each) for each in headers]
    found: list[InputRecord] = []
    for encoded, count, latest_ms in blocks.encode_outputs(outputs):
        some = blocks.decode(encoded, base + len(found))
        assert (len(some), latest_ms) == (count, time_ms)
        found += some
    assert found == [InputRecord(base + at, time_ms, key, value, each) for at, each in enumerate(headers)]
    assert blocks.decode(blocks.encode_records(found)[0], base) == found
