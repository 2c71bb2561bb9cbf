"""The alert about tasks that move, against the metrics of a process beside one that comes and goes. The others are in tests/deploy."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.cli.commands import done
from tests.deploy.test_recorded_alerts import check_firing, scraped_when
from tests.runtime.processes import Running
from tests.runtime.test_http_answers import port_of

APP = "tests.deploy.faulty:movable"
TASKS = 32


def test_tasks_that_move_with_a_process_that_starts_again_and_again(kafka_url: str, tmp_path: Path) -> None:
    done("topics", "apply", "--app", APP, "--log", kafka_url)

    def process(name: str) -> Running:
        where = ("--log", kafka_url, "--state", tmp_path / name, "--log-format", "json")
        return Running("run", APP, *where, "--http", "127.0.0.1:0")

    with process("stays") as stays:
        port = port_of(stays)

        def has_all() -> object:
            return scraped_when(
                port, lambda one: one.named("tailrace_task_running") == [1.0] * TASKS, "it has all tasks"
            )

        has_all()
        first = scraped_when(port, lambda one: True, "it answers")
        check_firing(tmp_path, first, first, set())
        for _ in range(2):
            with process("comes") as comes:
                beside = port_of(comes)
                scraped_when(beside, lambda one: sum(one.named("tailrace_task_running")) > 10, "it has tasks")
                comes.signal(signal.SIGTERM)
                assert comes.ended() == 0
            has_all()
        then = scraped_when(port, lambda one: True, "it answers")
        check_firing(tmp_path, first, then, {"TailraceTasksMove"})
        stays.signal(signal.SIGTERM)
        assert stays.ended() == 0
