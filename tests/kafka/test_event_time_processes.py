"""Event time through a chain of services whose processes come and go is exact; the rest is ``python -m tests.kafka.event_time_rounds``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.event_time_rounds import Round


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1], ids=["live", "catch-up"])
def test_every_timer_fires_at_its_point_and_nothing_is_late_that_was_not_at_its_source(
    kafka_url: str, tmp_path: Path, seed: int
) -> None:
    found = Round(kafka_url, tmp_path, seed).run()
    assert all(some.total() > 20 for some in found)
