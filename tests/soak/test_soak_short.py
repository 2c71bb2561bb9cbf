"""A short soak of real processes; ``make soak MINUTES=30`` is the long one."""

from __future__ import annotations

import pytest

from tests.conftest import FIRST_SEED
from tests.soak.soak import Plan, Soak


@pytest.mark.long
@pytest.mark.parametrize("rich", [False, True], ids=["plain", "rich"])
def test_whatever_strikes_the_processes_all_comes_out_as_the_inputs_and_the_tape_say(tmp_path, rich) -> None:
    plan = Plan(FIRST_SEED, rich=rich, faults=6, workers=(2, 1), pause_s=0.3)
    report = Soak(tmp_path, plan).run()
    assert report.faults.total() == 6
    assert report.figures.timers > 100
