"""The note of positions: which topics they are in, and which offsets behind them hold no record."""

from __future__ import annotations

import msgspec
import pytest

from tailrace.core.errors import CorruptStateError, NewerFormatError, TopicReplacedError
from tailrace.log import TopicPartition
from tailrace.log.kafka.note import FORMAT, Noted, encode

ORDERS, TAPE = TopicPartition("orders", 1), TopicPartition("shop.tape", 1)
IDS = {"orders": "first", "shop.tape": "tape"}
NOTE = encode(b"log", IDS, {ORDERS: 7, TAPE: 0})


def test_a_topic_with_another_id_is_named() -> None:
    noted = Noted(NOTE)
    noted.check(IDS, [ORDERS, TAPE])
    with pytest.raises(TopicReplacedError) as raised:
        noted.check({**IDS, "orders": "second"}, [TAPE, ORDERS])
    assert (raised.value.topic, raised.value.partition) == ORDERS


def test_topics_that_are_gone_or_were_not_noted_are_not_compared() -> None:
    noted = Noted(NOTE)
    noted.check({}, [ORDERS])
    noted.check({"other": "any"}, [TopicPartition("other", 1)])


def test_a_position_continues_behind_offsets_without_a_record_and_never_before_itself() -> None:
    noted = Noted(NOTE)
    assert [noted.continued(ORDERS, at) for at in (5, 7, 9)] == [7, 7, 9]
    assert noted.continued(TopicPartition("orders", 0), 5) == 5
    assert noted.continued(TopicPartition("other", 1), 5) == 5


def test_a_note_is_of_one_log() -> None:
    assert Noted(NOTE).is_of(b"log")
    assert not Noted(NOTE).is_of(b"another")


@pytest.mark.parametrize("data", [b"\xc1", NOTE[:-1], msgspec.msgpack.encode(["orders"])])
def test_a_damaged_note_is_not_taken_for_an_absent_one(data: bytes) -> None:
    with pytest.raises(CorruptStateError, match="the note of a cut cannot be read"):
        Noted(data)


def test_a_note_of_a_newer_version_is_refused() -> None:
    with pytest.raises(NewerFormatError, match="the note of a cut"):
        Noted(msgspec.msgpack.encode([FORMAT + 1, b"log", {}]))
