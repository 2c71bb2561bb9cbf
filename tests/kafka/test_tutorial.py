"""What the tutorial of a service on Kafka shows is what its reader gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.page import ROOT, play
from tests.kafka.members import SESSION


@pytest.mark.long
def test_what_the_tutorial_says_is_what_happens(
    kafka_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_LOG", kafka_url)
    for name, value in SESSION.items():
        monkeypatch.setenv(name, value)
    assert play((ROOT / "docs/kafka-tutorial.md").read_text("utf-8"), tmp_path) >= 8
