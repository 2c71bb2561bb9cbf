"""Damage to a file of log, state or snapshots is detected, healed or harmless. It is never silent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.power.corruption import Stopped, corruption
from tests.power.disk import Recorded
from tests.power.files import DURABLE
from tests.power.scenario import recorded


@pytest.fixture(scope="session")
def stopped(recording: Callable[[str], Recorded], tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """A stopped service."""
    other = recorded(tmp_path_factory.mktemp("other"), DURABLE)
    return Stopped(recording(DURABLE), other, tmp_path_factory.mktemp("stopped") / "folder")


@pytest.mark.one_seed_in(20)  # one takes 0.3 s
def test_no_corruption_is_silent(seeds: range, stopped: Stopped, tmp_path: Path) -> None:
    for seed in seeds:
        corruption(stopped, seed, tmp_path / str(seed))
