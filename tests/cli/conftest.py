"""Commands that run a service set up the logs of their process; those of the tests' process are pytest's."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet_logs() -> Iterator[None]:
    """The handlers and the level of the root logger as they were."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in before:
        if handler not in root.handlers:
            root.addHandler(handler)
    root.setLevel(level)
