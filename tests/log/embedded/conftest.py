"""What all tests of the embedded log share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch) -> None:
    """Nothing is waited for until it is on the disk: no test takes the power away, and a busy disk takes seconds."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)
