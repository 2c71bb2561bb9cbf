"""A published watermark is valid for one topic only. If that topic, or the topic with its publications, was deleted and created again,
readers must not wait without end, and must not advance past a writer.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.core.errors import TopicReplacedError
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog
from tests.kafka.bad_input.shop import Shop, serving

A = TopicPartition("a", 0)


@pytest.fixture
def shop(kafka_url: str) -> Iterator[Shop]:
    """For what it can do with topics beside the log."""
    with serving(kafka_url) as shop:
        shop.log.create_topic("a", TopicSettings(1))
        yield shop


def write(shop: Shop, writer: str, marks: list[int | None]) -> None:
    """A writer that appends a record with each watermark, in a process of its own."""
    log = KafkaLog(shop.url)
    made = log.writer(writer)
    for mark in marks:
        made.append([Output("a", b"k", b"v", 0 if mark is None else mark)], 0)
        made.commit(None, "", {"a": mark})
    log.close()


def held(shop: Shop, position: int) -> dict[str, int | None]:
    """What a new reader knows at a position."""
    log = KafkaLog(shop.url)
    reader = log.reader({A: position})
    found = {one.publisher: one.watermark_ms for one in reader.published(*A)}
    reader.close()
    log.close()
    return found


def test_publications_of_a_topic_that_was_replaced_do_not_count(shop: Shop) -> None:
    write(shop, "one-0", [1_000])
    write(shop, "two-0", [2_000, 3_000])
    write(shop, "left-0", [2_000, None])
    shop.replace("a")
    assert held(shop, 0) == {"left-0": None}  # what holds no reader back does not do so here either
    log = KafkaLog(shop.url)
    assert log.publications() == {("a", "left-0"): None}
    assert [(one.name, one.watermark_ms, one.ends) for one in log.published("a")] == [("left-0", None, [0])]
    log.close()
    write(shop, "one-0", [5, 6])
    end = shop.log.end_offset("a", 0)
    assert held(shop, end) == {"left-0": None, "one-0": 6}
    assert held(shop, 0) == {"left-0": None}


@pytest.mark.parametrize("topic", ["a.watermarks", "a.publishers"])
def test_a_process_does_not_commit_beside_publications_that_were_replaced(shop: Shop, topic: str) -> None:
    log = KafkaLog(shop.url)
    made = log.writer("one-0")
    made.append([Output("a", b"k", b"v", 1)], 0)
    made.commit(None, "", {"a": 1})
    shop.replace_feed(topic)
    made.append([Output("a", b"k", b"v", 2)], 0)
    with pytest.raises(TopicReplacedError, match="deleted and created again") as raised:
        made.commit(None, "", {"a": 2})
    assert raised.value.topic == topic
    assert "Start the service again" in raised.value.hint
    log.close()


@pytest.mark.parametrize("topic", ["a.watermarks", "a.publishers"])
def test_publications_of_which_a_part_was_lost_are_refused_until_all_are_deleted(
    shop: Shop, topic: str
) -> None:
    """A reader that is behind would not wait for their writers."""
    write(shop, "one-0", [10, 20])
    shop.delete(topic)
    with pytest.raises(TopicReplacedError, match="what was published about 'a'"):
        write(shop, "one-0", [30])
    with pytest.raises(TopicReplacedError, match="delete both topics"):
        held(shop, 0)
    shop.delete("a.watermarks")
    shop.delete("a.publishers")
    write(shop, "one-0", [30])
    assert held(shop, shop.log.end_offset("a", 0)) == {"one-0": 30}


def test_a_reader_of_whole_publications_is_held_only_from_where_a_writer_has_begun(shop: Shop) -> None:
    assert held(shop, 0) == {}
    write(shop, "one-0", [10])
    first = shop.log.end_offset("a", 0)
    write(shop, "two-0", [5])
    assert held(shop, 0) == {}
    assert held(shop, first) == {"one-0": 10}
