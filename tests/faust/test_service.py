"""A service of Faust runs an app as a child process; both end together, however one of them ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.core.errors import UsageError, WorkerLostError
from tailrace.faust.service import TailraceService
from tailrace.log.embedded import EmbeddedLog
from tests.cli.commands import done
from tests.runtime.processes import wait_until

APP = "tests.faust.takeover:app"
SCRIPT = """
import asyncio
from tailrace.faust.service import TailraceService

class Beside(TailraceService):
    arguments = {arguments!r}

async def main():
    await Beside().start()
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.fixture
def arguments(tmp_path: Path) -> tuple[str, ...]:
    done("topics", "apply", "--app", APP, "--log", tmp_path / "log")
    return (APP, "--log", str(tmp_path / "log"), "--state", str(tmp_path / "state"))


@pytest.fixture
def owner(tmp_path: Path, arguments: tuple[str, ...]) -> Callable[[], int]:
    """The process that owns the app's tasks; 0 if there is none."""

    def find() -> int:
        with closing(EmbeddedLog(tmp_path / "log")) as log:
            found = log.owner("takeover", 0)
            return found.pid if found else 0

    return find


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, condition, "the app runs")


def beside(given: tuple[str, ...]) -> TailraceService:
    class Beside(TailraceService):
        arguments = given

    return Beside()


def test_the_app_stops_with_the_service(arguments: tuple[str, ...], owner: Callable[[], int]) -> None:
    async def life() -> None:
        service = beside(arguments)
        await service.start()
        await until(owner)
        await service.stop()
        assert owner() == 0
        assert service._child is not None
        assert service._child.returncode == 0
        assert not service.crashed

    asyncio.run(life())


def test_the_service_crashes_if_the_app_ends(arguments: tuple[str, ...], owner: Callable[[], int]) -> None:
    async def life() -> None:
        service = beside(arguments)
        await service.start()
        await until(owner)
        os.kill(owner(), signal.SIGKILL)
        await until(lambda: service.crashed)
        assert isinstance(service.crash_reason, WorkerLostError)
        assert "beside this Faust app ended with exit code -9" in str(service.crash_reason)
        await service.stop()

    asyncio.run(life())


def test_the_app_ends_when_the_process_of_faust_is_killed(
    arguments: tuple[str, ...], owner: Callable[[], int]
) -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT.format(arguments=arguments)])
    try:
        wait_until(owner, "the app runs")
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: owner() == 0, "the app ends")


def test_a_service_without_an_app_is_refused() -> None:
    with pytest.raises(UsageError, match="does not say which app it runs"):
        asyncio.run(beside(()).on_start())
