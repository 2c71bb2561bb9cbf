"""A copy of a topic has the same records at the same offsets, on both logs and between them."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.core.errors import FencedError
from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import MovableLog, PublishedAt, Stretch, TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog

PARTITIONS = 3
TOPIC = "events"
SCRATCH = "scratch"


def made(kind: str, kafka_url: str, folder: Path) -> EmbeddedLog | KafkaLog:
    return EmbeddedLog(folder) if kind == "embedded" else KafkaLog(kafka_url)


@pytest.fixture(scope="module", params=["embedded", "kafka"])
def source(request, kafka, tmp_path_factory) -> Iterator[EmbeddedLog | KafkaLog]:
    """A log with records of many commits, some of which were aborted."""
    log = made(request.param, f"kafka://{kafka}/{secrets.token_hex(6)}.", tmp_path_factory.mktemp("source"))
    log.create_topic(TOPIC, TopicSettings(PARTITIONS))
    chance = random.Random(7)
    writer = log.writer("w")
    for number in range(25):
        for partition in chance.sample(range(PARTITIONS), chance.randint(1, PARTITIONS)):
            some = [output(number, one) for one in range(chance.choice((1, 2, 7)))]
            writer.append(some, partition)
        if number % 5 == 3:
            writer.abort()
        else:
            writer.commit(None, "", {TOPIC: number * 100, f"{TOPIC}#part": None if number % 2 else number})
    writer.close()
    yield log
    log.close()


def output(number: int, one: int) -> Output:
    key = None if one == 2 else b"k%d" % number
    value = None if one == 3 else b"v%d" % one
    headers = (("h", b"1"), ("h", b"")) if one == 4 else ()
    return Output(TOPIC, key, value, 0 if one == 5 else number * 1_000, headers)


@pytest.fixture(params=["embedded", "kafka"])
def target(request, kafka_url, tmp_path) -> Iterator[EmbeddedLog | KafkaLog]:
    """An empty log with the topic."""
    log = made(request.param, f"{kafka_url}b.", tmp_path / "b")
    log.create_topic(TOPIC, TopicSettings(PARTITIONS))
    log.create_topic(SCRATCH, TopicSettings(1))
    yield log
    log.close()


def stretch(log: MovableLog, partition: int, start: int, end: int) -> Stretch:
    place = TopicPartition(TOPIC, partition)
    return Stretch(place, list(scan(log, *place, start, end)), end)


def whole(log: MovableLog) -> list[Stretch]:
    return [
        stretch(log, one, log.start_offset(TOPIC, one), log.end_offset(TOPIC, one))
        for one in range(PARTITIONS)
    ]


def test_a_copy_has_the_same_records_at_the_same_offsets(source, target) -> None:
    placer = target.placer(SCRATCH)
    placer.append(whole(source))
    placer.close()
    assert whole(target) == whole(source)
    assert sum(len(one.records) for one in whole(target)) > 50
    if isinstance(target, EmbeddedLog):
        target.verify()


def test_a_copy_that_was_interrupted_anywhere_continues_at_its_end(source, target) -> None:
    """Each placer is left after one step, wherever that is."""
    for share in range(1, 8):
        placer = target.placer(SCRATCH)
        placer.append(
            [
                stretch(source, one.place.partition, target.end_offset(*one.place), one.end * share // 7)
                for one in whole(source)
            ]
        )
        placer.close()
    assert whole(target) == whole(source)


def test_a_partition_begins_where_it_should_and_records_come_after(source, target) -> None:
    placer = target.placer(SCRATCH)
    for one in whole(source):
        placer.begin_at(one.place, one.end // 2)
    placer.append([stretch(source, one.place.partition, one.end // 2, one.end) for one in whole(source)])
    placer.close()
    for one in whole(source):
        assert target.start_offset(*one.place) == one.end // 2
        assert stretch(target, one.place.partition, one.end // 2, one.end).records == [
            record for record in one.records if record.offset >= one.end // 2
        ]
    if isinstance(target, EmbeddedLog):
        target.verify()


def test_published_watermarks_hold_at_the_same_positions(source, target) -> None:
    placer = target.placer(SCRATCH)
    placer.append(whole(source))
    placer.publish(TOPIC, source.published(TOPIC))
    placer.close()
    assert last_of_each(target.published(TOPIC)) == last_of_each(source.published(TOPIC))
    assert target.publications() == source.publications()
    for one in whole(source):
        reader = target.reader({one.place: one.end})
        of_source = source.reader({one.place: one.end})
        assert sorted(reader.published(*one.place)) == sorted(of_source.published(*one.place))
        reader.close()
        of_source.close()
    if isinstance(target, EmbeddedLog):
        target.verify()


def last_of_each(published: list[PublishedAt]) -> dict[str, int | None]:
    return {one.name: one.watermark_ms for one in published}


def test_a_copy_that_another_has_taken_over_ends_as_fenced(kafka_url: str) -> None:
    log = KafkaLog(kafka_url)
    log.create_topic(TOPIC, TopicSettings(1))
    log.create_topic(SCRATCH, TopicSettings(1))
    place = TopicPartition(TOPIC, 0)
    for gap in (1, 2):  # one offset, and several, are made by different producers
        former = log.placer(SCRATCH)
        end = log.end_offset(*place)
        log.placer(SCRATCH).close()
        with pytest.raises(FencedError, match="fenced"):
            former.append([Stretch(place, (), end + gap)])
        former.close()
        assert log.end_offset(*place) == end
    log.close()
