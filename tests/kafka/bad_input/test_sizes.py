"""A record that a topic does not take is named, with its topic, its key and the setting. Nothing is committed, and nothing is lost."""

from __future__ import annotations

import os

import pytest

from tailrace.core.errors import RecordTooLargeError
from tests.kafka.bad_input.shop import serving

LARGE = 150_000
SMALL = {"max_message_bytes": "100000"}


@pytest.mark.parametrize(
    ("topic", "note", "key"),
    [("totals", "emit", b"k0"), ("shop.changelog", "keep", b"Counter\0k0")],
    ids=["an event", "an entry of the changelog"],
)
def test_a_record_that_is_too_large_is_named_and_handled_once_there_is_room(
    kafka_url: str, topic: str, note: str, key: bytes
) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        shop.configure(topic, **SMALL)
        shop.order(1, note + os.urandom(LARGE // 2).hex())
        for _ in range(2):
            with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes") as raised:
                shop.work()
            assert raised.value.topic == topic
            assert isinstance(raised.value.key, bytes)
            assert key in raised.value.key
            shop.restart(keep_state=True)
        shop.configure(topic, max_message_bytes="1000000")
        shop.order(20)
        shop.work()
        assert shop.counts() == {"k0": 9} | {f"k{n}": 8 for n in range(1, 5)}


def test_a_tape_record_that_is_too_large_is_named(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        shop.configure("shop.tape", max_message_bytes="100")
        shop.order(20)
        with pytest.raises(RecordTooLargeError, match="shorter --commit-interval") as raised:
            shop.work()
        assert raised.value.topic == "shop.tape"
