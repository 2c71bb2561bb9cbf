"""What fails fails again in each test."""

from __future__ import annotations

import pytest

from tests.quarantine.failing import Broken


@pytest.fixture(autouse=True)
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "now", True)
