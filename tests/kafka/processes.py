"""Processes of an app, as a user starts them, and commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailrace.core.declare.plan import Plan
from tailrace.core.records import Output
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tests.runtime.processes import Process, wait_until

SESSION = {"TAILRACE_KAFKA_CONSUMER_SESSION_TIMEOUT_MS": "6000"}
"""Short, and long enough for a process on a busy machine; the brokers set it where the protocol is ``consumer``."""
LONG_TRANSACTIONS = {"TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS": "900000"}
"""Five times what ``wait_until`` waits for."""
_COMMAND_S = 300


class Members:
    """Starts processes, each with a state folder of its own; the caller must close it."""

    def __init__(self, url: str, folder: Path, environment: Mapping[str, str] = SESSION) -> None:
        self.url = url
        self.folder = folder
        self.environment = environment
        self._started: list[Process] = []

    def start(
        self,
        app: str,
        name: str,
        *options: object,
        environment: Mapping[str, str] | None = None,
        by: tuple[object, ...] = ("tailrace",),
    ) -> Process:
        """``name`` is that of the state folder. ``by`` is the module that runs the command."""
        made = Process(
            self.folder / f"{name}-{len(self._started)}.log",
            *(*by, "run", app, "--log", self.url, "--state", self.folder / name),
            *("--commit-interval", "50ms", *options),
            environment={**self.environment, **(environment or {})},
        )
        self._started.append(made)
        return made

    def close(self) -> None:
        """End all of them."""
        for process in self._started:
            process.kill()


def said(process: Process, message: str) -> list[dict[str, Any]]:
    """The lines with a message that a process has logged so far."""
    lines = process.text().splitlines()
    found = (json.loads(line) for line in lines if line.startswith("{") and line.endswith("}"))
    return [line for line in found if line["message"] == message]


def runs(process: Process) -> list[int]:
    """The tasks that have begun to run in a process so far."""
    return [line["partition"] for line in said(process, "a partition runs")]


def await_tasks(process: Process, count: int) -> None:
    """Until so many tasks have begun to run in a process."""

    def done() -> bool:
        assert process.code() is None, process.text()[-3_000:]
        return len(runs(process)) >= count

    wait_until(done, f"{count} tasks have begun to run")


def stopped(process: Process) -> None:
    """Tell it to leave, and wait until it has left."""
    process.signal(signal.SIGTERM)
    assert process.ended() == 0, process.text()[-3_000:]


def come_and_go(
    members: Members,
    log: KafkaLog,
    app: str,
    plan: Plan,
    parts: tuple[Sequence[Output], Sequence[Output], Sequence[Output]],
    has_results: Callable[[], bool],
) -> Path:
    """Run an app over three parts of its events: one member catches up with the first, another joins it, and the first is killed.

    The other takes the rest, and leaves. Returns its state folder.
    """
    prepare_log(log, plan, create_declared=True)
    log.append_all(parts[0])
    one = members.start(app, "one")
    await_tasks(one, plan.partitions)
    two = members.start(app, "two")
    await_tasks(two, 1)
    log.append_all(parts[1])
    wait_until(has_results, "there are results")
    one.kill()
    log.append_all(parts[2])
    await_tasks(two, plan.partitions)
    stopped(two)
    return members.folder / "two"


def tailrace(*arguments: object, environment: Mapping[str, str] | None = None, code: int = 0) -> str:
    """The output of a command, which must end with this exit code. It is a process: its clients and threads end with it."""
    done = subprocess.run(
        [sys.executable, "-m", "tailrace", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
        timeout=_COMMAND_S,
    )
    assert done.returncode == code, f"{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}"
    return done.stdout
