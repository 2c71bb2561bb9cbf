"""On Kafka, too, a failure is shown by any machine that reaches the log."""

from __future__ import annotations

from pathlib import Path

from tests.runtime import test_last_failure


def test_a_failure_is_shown_until_its_task_commits_again(kafka_url: str, tmp_path: Path) -> None:
    test_last_failure.scene(kafka_url, tmp_path)
