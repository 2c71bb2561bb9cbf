"""Processes of an app, as a user starts them, and commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.request import Destination, Failures, Order, Request, Source
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
        tasks: int = 0,
        environment: Mapping[str, str] | None = None,
        by: tuple[object, ...] = ("tailrace",),
    ) -> Process:
        """``name`` is that of the state folder. ``tasks`` is how many tasks are waited for that begin to run in it, and ``by`` the module
        that runs the command.
        """
        made = Process(
            self.folder / f"{name}-{len(self._started)}.log",
            *(*by, "run", app, "--log", self.url, "--state", self.folder / name),
            *("--commit-interval", "50ms", *options),
            environment={**self.environment, **(environment or {})},
        )
        self._started.append(made)
        if tasks:
            await_tasks(made, tasks)
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


def rebuilt(
    app: str, log: str, to: Path, *, order: Order = "auto", archive: str | None = None
) -> RebuildReport:
    """Rebuild the state of an app into a folder, in this process."""
    asked = Request(
        app=app,
        source=Source(log=log, archive=archive),
        to=Destination(uri=str(to)),
        failures=Failures(any_environment=True),
        order=order,
    )
    return rebuild(asked, LocalEngine(1))


def tailrace(*arguments: object) -> None:
    """A command, which must succeed. It is a process: its clients and threads end with it."""
    command = [sys.executable, "-m", "tailrace", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_S)
    assert done.returncode == 0, f"{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}"
