"""What is told while a service catches up."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tailrace.runtime.progress import ProgressLog, Status, total

NOW_MS = 1_365_163_200_000 + 3_600_000


def status(records: int = 0, lag: int = 0, **other: Any) -> Status:
    known: dict[str, Any] = {
        "partitions": 4,
        "running": 4,
        "watermark_ms": 1_365_163_200_000,
        "phase": 0,
        "quiet": False,
        "turns": 0,
    }
    return Status(records=records, lag=lag, **{**known, **other})


def test_who_catches_up_says_so_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    progress = ProgressLog("flights")
    for second in range(1, 22):
        progress.report(status(second * 1_000, 1_000_000), second, NOW_MS)
    said = [one for one in caplog.records if one.message == "catching up"]
    assert len(said) == 3
    assert {one.__dict__["records_per_s"] for one in said} == {1_000}
    assert {one.__dict__["watermark_delay_ms"] for one in said} == {3_600_000}


@pytest.mark.parametrize("running", [0, 3])
def test_a_service_with_a_task_that_waits_has_not_caught_up(
    caplog: pytest.LogCaptureFixture, running: int
) -> None:
    caplog.set_level(logging.INFO)
    progress = ProgressLog("flights")
    progress.report(status(50_000, 100_000), 1, NOW_MS)
    progress.report(status(50_000, 0, running=running), 12, NOW_MS)
    assert [one.message for one in caplog.records] == ["catching up", "catching up"]
    assert caplog.records[-1].__dict__["running"] == running
    progress.report(status(150_000, 0), 13, NOW_MS)
    assert caplog.records[-1].message == "caught up"


def test_who_keeps_up_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    progress = ProgressLog("flights")
    for second in range(1, 30):
        progress.report(status(second * 1_000, 900), second, NOW_MS)
    assert caplog.records == []


def test_workers_add_up_and_the_slowest_watermark_counts() -> None:
    both = total([status(1, 10, watermark_ms=5, quiet=True), status(2, 20, watermark_ms=4, running=1)])
    assert (both.records, both.lag, both.watermark_ms, both.running, both.quiet) == (3, 30, 4, 5, False)
    assert total([status(), status(watermark_ms=None)]).watermark_ms is None
