"""What is told of dead letters while a service runs: the first of each kind, counts now and then, the total."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.core.errors import LogUnavailableError
from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import Fetch, Reader, TopicPartition
from tailrace.runtime.dead_letter_monitor import DeadLetterMonitor, Kind

TOPIC = "shop.dead-letters"
BOUGHT = Kind("Customer.bought", "ValueError")


class Clock:
    """The monotonic clock, as the monitor sees it."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.tick_s = 0.0
        """By so much it goes on each time that it is read."""

    def monotonic(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


class OutageLog(EmbeddedLog):
    """Its readers get no answer while it is ``away``."""

    away = False

    def live_reader(self) -> Any:
        return self._failing(super().live_reader())

    def reader(self, positions: Mapping[TopicPartition, int]) -> Any:
        return self._failing(super().reader(positions))

    def _failing(self, reader: Reader) -> SimpleNamespace:
        def fetch(topic: str, partition: int, most: int) -> Fetch:
            if self.away:
                raise LogUnavailableError("no")
            return reader.fetch(topic, partition, most)

        return SimpleNamespace(fetch=fetch, seek=reader.seek, close=reader.close)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[OutageLog]:
    log = OutageLog(tmp_path / "log")
    log.create_topic(TOPIC, TopicSettings(2))
    yield log
    log.close()


class Told:
    """What was logged of dead letters."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def take(self) -> list[logging.LogRecord]:
        """Since the last call."""
        found = [one for one in self._caplog.records if one.name == "tailrace.dead_letters"]
        self._caplog.clear()
        assert all(one.levelno == logging.WARNING for one in found)
        return found

    def words(self) -> list[str]:
        return [one.getMessage() for one in self.take()]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


def letter(error: str = "ValueError: 13 brings bad luck", **said: str) -> Output:
    headers: dict[str, Any] = {
        "reason": "handler-failed",
        "error": error,
        "topic": "purchases",
        "partition": "1",
        "offset": "7",
        "handler": "Customer.bought",
        "actor": "Customer",
        "key": "b",
        "traceback": "Traceback (most recent call last):\n  ...\nValueError: 13 brings bad luck\n",
    }
    headers |= {name.replace("_", "-"): value for name, value in said.items()}
    kept = tuple((f"tailrace-{name}", value.encode()) for name, value in headers.items() if value)
    return Output(TOPIC, b"b", b"{}", 5, kept)


def refused(topic: str = "purchases") -> Output:
    nothing = dict.fromkeys(("handler", "actor", "key", "traceback"), "")
    return letter("Expected int", reason="wrong-type", topic=topic, **nothing)


def looked(monitor: DeadLetterMonitor, clock: Clock, after_s: float = 1.0) -> None:
    clock.now_s += after_s
    monitor.look()


def test_the_first_of_each_kind_is_told_with_its_traceback_and_place(log, clock, told) -> None:
    monitor = DeadLetterMonitor(log, "shop", clock.monotonic)
    log.append_all([letter(), letter(), refused(), letter("KeyError: 'x'"), refused("visits"), letter()])
    looked(monitor, clock)
    first, *others = told.take()
    assert first.getMessage() == (
        "a record goes to the dead letters, the first of Customer.bought (ValueError) in this run: "
        "ValueError: 13 brings bad luck"
    )
    assert first.traceback.startswith("Traceback (most recent call last):")
    assert (first.topic, first.partition, first.offset, first.key) == ("purchases", 1, 7, "b")
    assert (first.app, first.handler, first.reason) == ("shop", "Customer.bought", "handler-failed")
    kinds = [one.getMessage().partition("the first of ")[2].partition(" in this run")[0] for one in others]
    assert kinds == ["purchases (wrong-type)", "Customer.bought (KeyError)", "visits (wrong-type)"]
    assert not hasattr(others[0], "traceback")


def test_what_lay_there_before_the_run_is_not_told(log, clock, told) -> None:
    log.append_all([letter(), refused()])
    monitor = DeadLetterMonitor(log, "shop", clock.monotonic)
    looked(monitor, clock)
    assert monitor.finish() == {}
    assert told.take() == []


def test_counts_are_told_every_ten_seconds_while_there_are_new_ones_and_not_more_often(
    log, clock, told
) -> None:
    monitor = DeadLetterMonitor(log, "shop", clock.monotonic)
    for _ in range(9):
        log.append_all([letter()] * 3)
        looked(monitor, clock)
    assert len(told.take()) == 1
    log.append_all([refused()])
    looked(monitor, clock)
    first, counts = told.take()
    assert "the first of purchases (wrong-type)" in first.getMessage()
    assert counts.getMessage() == (
        "28 events went to the dead letters in the last 10 s: Customer.bought (ValueError) 27, purchases (wrong-type) 1"
    )
    assert (counts.events, counts.in_this_run) == (28, 28)
    for _ in range(25):
        looked(monitor, clock)
    assert told.take() == []
    log.append_all([letter()])
    for _ in range(10):
        looked(monitor, clock)
    (counts,) = told.take()
    assert (counts.events, counts.in_this_run) == (1, 29)


def test_what_was_told_one_by_one_is_not_counted_once_more_right_after(log, clock, told) -> None:
    monitor = DeadLetterMonitor(log, "shop", clock.monotonic)
    log.append_all([letter(), refused()])
    for _ in range(30):
        looked(monitor, clock)
    assert len(told.take()) == 2


def test_the_total_is_told_at_the_end_with_what_no_look_has_seen(log, clock, told) -> None:
    monitor = DeadLetterMonitor(log, "shop", clock.monotonic)
    log.append_all([letter(), letter()])
    looked(monitor, clock)
    told.take()
    log.append_all([refused(), letter(), letter(timer="fails at 5 ms", topic="", error="RuntimeError: no")])
    counts = monitor.finish()
    wanted = {BOUGHT: 3, Kind("purchases", "wrong-type"): 1, Kind("Customer.bought", "RuntimeError"): 1}
    assert counts == wanted
    *firsts, total = told.take()
    assert [one.getMessage().partition(",")[0] for one in firsts] == [
        "a record goes to the dead letters",
        "a timer goes to the dead letters",
    ]
    assert total.getMessage() == (
        "5 events went to the dead letters in this run: Customer.bought (ValueError) 3, "
        "Customer.bought (RuntimeError) 1, purchases (wrong-type) 1"
    )
    assert total.see == "tailrace dead-letters list shop"


def test_only_what_is_committed_counts(log, clock, told) -> None:
    monitor = DeadLetterMonitor(log, "shop", clock.monotonic)
    writer = log.writer("shop-0")
    writer.append([letter()])
    writer.abort()
    writer.append([letter()])
    looked(monitor, clock)
    assert told.take() == []
    writer.commit()
    writer.close()
    assert monitor.finish() == {BOUGHT: 1}


def test_a_flood_is_read_in_parts_and_no_partition_waits_for_the_other(log, clock, told) -> None:
    monitor = DeadLetterMonitor(log, "shop", clock.monotonic)
    log.append_all([letter()] * 5_000, 0)
    log.append_all([refused()] * 5_000, 1)
    clock.tick_s = 0.02
    looked(monitor, clock)
    assert {BOUGHT, Kind("purchases", "wrong-type")} == monitor.counts.keys()
    assert monitor.counts.total() < 5_000
    before = monitor.counts.total()
    looked(monitor, clock)
    assert monitor.counts.total() > before
    clock.tick_s = 1.0
    counts = monitor.finish()
    assert counts.total() == 10_000
    assert "others" in told.words()[-1]


def test_a_flood_of_kinds_is_told_of_as_others(log, clock, told) -> None:
    monitor = DeadLetterMonitor(log, "shop", clock.monotonic)
    log.append_all([letter(f"Error{number}: no") for number in range(200)])
    counts = monitor.finish()
    assert counts.total() == 200
    firsts = told.words()
    assert len(firsts) < 60
    assert firsts[-1].endswith(", others 195")


def test_letters_that_retention_took_are_passed_over(log, clock, told) -> None:
    monitor = DeadLetterMonitor(log, "shop", clock.monotonic)
    log.append_all([letter()] * 10, 0)
    log.delete_before(TOPIC, 0, 8)
    looked(monitor, clock)
    assert monitor.finish() == {BOUGHT: 2}


def test_a_log_that_does_not_answer_ends_no_service(log, clock, told) -> None:
    monitor = DeadLetterMonitor(log, "shop", clock.monotonic)
    log.append_all([letter()])
    log.away = True
    looked(monitor, clock)
    assert told.take() == []
    log.away = False
    looked(monitor, clock)
    assert len(told.take()) == 1
    log.away = True
    assert monitor.finish() == {BOUGHT: 1}
    assert "not all dead letters of this run could be counted: no" in told.words()[0]
