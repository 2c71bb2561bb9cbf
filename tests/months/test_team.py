"""Months in the life of a service: whatever is done to it, its state and its outputs are what the oracle says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.months.team import months


@pytest.mark.one_seed_in(25)  # a life of months takes 1.4 s
def test_a_service_is_what_its_events_and_its_versions_say_whatever_is_done_to_it(
    seeds: range, tmp_path: Path
) -> None:
    for seed in seeds:
        months(seed, tmp_path / str(seed))
