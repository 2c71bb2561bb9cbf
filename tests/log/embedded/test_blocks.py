"""A block gives back what was put in, whatever its headers are; a router sorts by Kafka's partitioner, all or nothing."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.records import Headers, InputRecord, Output
from tailrace.core.values.partitioner import partition_of
from tailrace.log.embedded import blocks
from tailrace.log.interface import TopicPartition
from tailrace.log.routing import Router

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


def outputs_of(seed: int) -> list[Output]:
    draw = Random(seed)
    keys = [None, b"", *(b"k%d" % number for number in range(20))]
    return [
        Output(draw.choice(["one", "three", "four"]), draw.choice(keys), bytes(draw.randrange(9)), at)
        for at in range(draw.randrange(60))
    ]


COUNTS = {"one": 1, "three": 3, "four": 4}


def test_each_record_goes_to_the_partition_of_its_key_in_order(seeds: range) -> None:
    router = Router(COUNTS.__getitem__, 100)
    for seed in seeds[:100]:
        outputs = outputs_of(seed)
        expected: dict[TopicPartition, list[Output]] = {}
        for output in outputs:
            number = partition_of(output.key or b"", COUNTS[output.topic])
            expected.setdefault(TopicPartition(output.topic, number), []).append(output)
        assert router.split(iter(outputs), None) == expected, seed


def test_a_partition_that_is_given_takes_all() -> None:
    outputs = [Output("four", b"k%d" % number, None, 0) for number in range(9)]
    assert Router(COUNTS.__getitem__, 100).split(outputs, 2) == {TopicPartition("four", 2): outputs}
