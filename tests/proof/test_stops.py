"""A stop is no event: what is appended later comes to what it would have come to without one, by an oracle over all days."""

from __future__ import annotations

import pytest

from tests.proof.seeds import told
from tests.proof.stops import check_days


@pytest.mark.one_seed_in(25)  # a history of days takes 0.4 s
@pytest.mark.parametrize("ends", ["nights", "idle", "both"])
def test_a_day_that_comes_after_a_stop_comes_to_what_the_oracle_says(ends: str, seeds: range) -> None:
    for seed in seeds:
        trace: list[str] = []
        with told(seed, trace):
            check_days(seed, trace, ends)
