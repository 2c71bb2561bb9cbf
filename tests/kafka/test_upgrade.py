"""``tailrace upgrade`` on a broker: nothing is lost or doubled, there and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.upgrade.stage import upgraded_and_back


@pytest.mark.long
def test_an_upgrade_and_its_rollback_under_production(kafka_url: str, tmp_path: Path) -> None:
    upgraded_and_back(kafka_url, tmp_path, ["begun", "fenced"], ["begun"])
