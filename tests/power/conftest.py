"""Recordings, each made once in a run of the tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.power.disk import Recorded
from tests.power.scenario import recorded


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recorded]:
    """The recording of a service and its operator, by the policy of the log."""
    return cache(lambda policy: recorded(tmp_path_factory.mktemp(policy), policy))
