"""The note of positions: which topics they are in, and which offsets behind them hold no record."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from tailrace.core.errors import CorruptStateError, FormatError, TopicReplacedError
from tailrace.log import TopicPartition
from tailrace.log.kafka.note import FORMAT, continued, encode

ORDERS, TAPE = TopicPartition("orders", 1), TopicPartition("shop.tape", 1)
IDS = {"orders": "first", "shop.tape": "tape"}
NOTE = encode(b"log", IDS, {ORDERS: 7, TAPE: 0})


def at(positions: dict[TopicPartition, int], ids: Mapping[str, str] = IDS, log: bytes = b"log") -> list[int]:
    return [*continued(NOTE, log, lambda _: ids, positions).values()]


def test_a_topic_with_another_id_is_named() -> None:
    with pytest.raises(TopicReplacedError) as raised:
        at({TAPE: 0, ORDERS: 7}, {**IDS, "orders": "second"})
    assert (raised.value.topic, raised.value.partition) == ORDERS


def test_topics_that_are_gone_or_were_not_noted_are_not_compared() -> None:
    assert at({ORDERS: 7}, {}) == [7]
    assert at({TopicPartition("other", 1): 5}, {"other": "any"}) == [5]


def test_a_position_continues_behind_offsets_without_a_record_and_never_before_itself() -> None:
    assert [*map(at, ({ORDERS: 5}, {ORDERS: 7}, {ORDERS: 9}))] == [[7], [7], [9]]
    assert at({TopicPartition("orders", 0): 5}) == [5]


def test_a_note_is_of_one_log() -> None:
    assert at({ORDERS: 5}, {"orders": "second"}, b"another") == [5]


@pytest.mark.parametrize("data", [b"\xc1", NOTE[:-1], msgspec.msgpack.encode(["orders"])])
def test_a_damaged_note_is_not_taken_for_an_absent_one(data: bytes) -> None:
    with pytest.raises(CorruptStateError, match="the note of a cut cannot be read"):
        continued(data, b"log", lambda _: IDS, {ORDERS: 5})


def test_a_note_of_a_newer_version_is_refused() -> None:
    newer = msgspec.msgpack.encode([FORMAT + 1, b"log", {}])
    with pytest.raises(FormatError, match="the note of a cut"):
        continued(newer, b"log", lambda _: IDS, {ORDERS: 5})
