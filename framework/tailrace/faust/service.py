"""A service of Faust that runs an app beside the agents: ``tailrace run`` as a child process, which ends with the Faust app.

A process of its own keeps everything that an app has: exactly once, standbys, replay, and an interpreter that agents do not block.
Neither runs on alone (the page on Faust has a table): the child gets SIGTERM, is killed after ``grace_s``, and stops by itself when its
standard input ends, as it does if the Faust process is killed. If the child ends, the Faust app crashes with a WorkerLostError.
Ctrl-C at the terminal reaches the Faust app only, which then stops the child.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import ClassVar

from mode import Service

from tailrace.core.errors import UsageError, WorkerLostError
from tailrace.faust import child


class TailraceService(Service):
    """Runs an app as long as the Faust app runs.

    Derive from it, name the app, and register it::

    @faust_app.service
    class Totals(TailraceService):
        arguments = ("shop:app", "--log", "kafka://localhost:9092")
    """

    arguments: ClassVar[Sequence[str]] = ()
    """The app, and the options of ``tailrace run``."""
    grace_s: ClassVar[float] = 60.0
    """How long the child may take to stop, in seconds. Faust itself waits without a limit for a service that stops."""
    _child: asyncio.subprocess.Process | None = None

    async def on_start(self) -> None:
        """Start the child. Raises UsageError if ``arguments`` is empty."""
        if not self.arguments:
            raise UsageError(
                f"{type(self).__name__} does not say which app it runs",
                hint='Set arguments = ("package.module:app", "--log", …) in the class.',
            )
        self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", child.__name__, "run", *self.arguments),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    @Service.task
    async def _watch(self) -> None:
        assert self._child is not None
        code = await self._child.wait()
        if not self.should_stop:
            await self.crash(
                WorkerLostError(
                    f"the app {self.arguments[0]!r} beside this Faust app ended with exit code {code}",
                    hint="Its last lines on standard error give the reason.",
                )
            )

    async def on_stop(self) -> None:
        """Stop the child, and wait until it has ended."""
        process = self._child
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self.grace_s)
        except TimeoutError:
            self.log.warning(
                "the app %r did not stop within %s s and is killed", self.arguments[0], self.grace_s
            )
            process.kill()
            await process.wait()
