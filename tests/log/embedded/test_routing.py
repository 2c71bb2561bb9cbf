"""What the log takes: events up to a limit, and whatever a task writes for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.core.errors import RecordTooLargeError, UsageError
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.options import LogOptions


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_record_over_the_limit_is_refused_with_topic_key_and_mend_and_its_whole_batch_with_it(
    tmp_path: Path, partitions: int
) -> None:
    log = EmbeddedLog(tmp_path, LogOptions(max_record_bytes=1_000))
    log.create_topic("t", TopicSettings(partitions))
    small = Output("t", b"k" * 500, b"v" * 500, 0)
    writer = log.writer("w")
    for large in (Output("t", b"key", b"v" * 998, 0), Output("t", b"k" * 1_001, None, 0)):
        with pytest.raises(
            RecordTooLargeError, match=r"limit of 1000.*topic 't'.*--max-record-bytes"
        ) as raised:
            writer.append([small, large])
        assert raised.value.key == (large.key or b"")[:100]
        with pytest.raises(RecordTooLargeError):
            log.append_all([small, large])
    writer.commit()
    assert sum(log.end_offset("t", number) for number in range(partitions)) == 0
    # The longest key and the longest value are of two records, neither of which is over it.
    writer.append([small, Output("t", b"k", b"v" * 999, 0), Output("t", b"k" * 999, b"v", 0)])
    writer.commit()
    assert sum(log.end_offset("t", number) for number in range(partitions)) == 3
    log.close()


def test_what_a_task_writes_into_its_own_partition_has_no_limit(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path, LogOptions(max_record_bytes=1_000))
    log.create_topic("tape", TopicSettings(2))
    writer = log.writer("w")
    writer.append([Output("tape", None, bytes(10_000_000), 0)], 1)
    writer.commit()
    assert log.end_offset("tape", 1) == 1
    log.verify()
    log.close()


def test_what_an_input_has_brought_has_no_limit(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path, LogOptions(max_record_bytes=1_000))
    writer, large = log.writer("w"), ["a.dead-letters", "a.t.by-key", "a.t.broadcast", "a.inbox"]
    for topic in large:
        log.create_topic(topic, TopicSettings(1))
        writer.append([Output(topic, b"k", bytes(2_000_000), 0)])
    writer.commit()
    assert [log.end_offset(topic, 0) for topic in large] == [1] * len(large)
    log.close()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"key": "text"}, {"key": bytearray(b"k")}, {"value": "text"}, {"value": {"a": 1}}),
        *({"value": 1}, {"timestamp_ms": 1.5}, {"timestamp_ms": None}, {"timestamp_ms": 1 << 63}),
        *({"headers": {"name": b"value"}}, {"headers": (("name", "value"),)}),
        *({"headers": ((b"name", b"value"),)}, {"headers": (("name", b"value"), ("name", None))}),
        *({"headers": ("name",)}, {"headers": (("name",),)}, {"headers": 7}),
    ],
    ids=str,
)
@pytest.mark.parametrize("beside", [(), (("a", b"1"),), (("a", b"1"), ("b", b"2"))])
def test_what_a_reader_could_not_decode_is_refused(tmp_path: Path, wrong: Any, beside: Any) -> None:
    log = EmbeddedLog(tmp_path)
    log.create_topic("t", TopicSettings(1))
    good = Output("t", b"k", b"v", 1, beside)
    bad = good._replace(**wrong)
    for batch in ([bad], [good, bad], [bad, good]):
        with pytest.raises(UsageError):
            log.append_all(batch)
    with pytest.raises(UsageError):
        log.append(*bad)
    writer = log.writer("w")
    with pytest.raises(UsageError):
        writer.append([good, bad])
        writer.commit()
    writer.abort()
    writer.append([good])
    writer.commit()
    assert log.end_offset("t", 0) == 1
    assert log.reader({TopicPartition("t", 0): 0}).fetch("t", 0, 10).records[0].headers == beside
    log.verify()
    log.close()
