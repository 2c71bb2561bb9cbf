"""Runs a ``tailrace`` command for a service in a process of its own, as a user would."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from services.demo.console import Console
from services.demo.process import Service, ServiceFailed

_LOOK_S = 0.05

_Result = TypeVar("_Result")


def both(run: Callable[[Service], _Result], services: Sequence[Service]) -> list[_Result]:
    """Run a command for each service, at the same time. Raises the first error when all have ended."""
    with ThreadPoolExecutor(len(services)) as threads:
        return list(threads.map(run, services))


def run_command(
    service: Service, console: Console, what: str, command: str, arguments: Sequence[str | Path]
) -> tuple[int, bytes]:
    """Run a command, and show as progress that the service ``what``. Returns its exit code and its output."""
    begun_s = time.monotonic()
    with service.words.open("ab") as words:
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace", command, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=words,
        )
    try:
        while True:
            try:
                said, _ = process.communicate(timeout=_LOOK_S)
                return process.returncode, said
            except subprocess.TimeoutExpired:
                console.progress(f"{time.monotonic() - begun_s:4.0f} s   {service.name} {what}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def failed(service: Service, command: str, code: int) -> ServiceFailed:
    """The error for a command that has failed, with its last lines."""
    words = service.words.read_text("utf-8", errors="replace").splitlines()[-3:]
    return ServiceFailed(
        "\n   ".join(
            [f"tailrace {command} of {service.name} has exited with code {code}; its last output:", *words]
        )
    )
