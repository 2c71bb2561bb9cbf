"""The session of `tailrace dev`.

    event                        what the session does
    a file of the app changes    looks at the new code. If it is valid, worker and page are restarted with it; the state is kept.
                                 If not, they keep running with the old code, and the error is shown
    the worker is killed         starts it again at once: it resumes from its last commit
    the worker fails             shows the error, on the page too, and waits for the next change. So does a state that does not
                                 fit the code
    the page ends                ends with its error
    SIGTERM, Ctrl-C              stops both. The worker commits, and `tailrace run` can continue with the log and the state

The page learns of the worker from a note, a file that is replaced as a whole (``serve.page.dev``).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.core.errors import IncompatibleStateError, TailraceError
from tailrace.dev.children import Code, Command, begun, code_of
from tailrace.processes.child_process import ChildProcess
from tailrace.processes.signals import stop_signals
from tailrace.serve.page.dev import Note, write_note

_POLL_S: Final = 0.1
_GRACE_S: Final = 30.0
_PASSED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "tests", "venv"})
_APART_S: Final = 1.0
"""From one start of the worker to the next."""
OTHER_HISTORY: Final = (
    "Or begin without this history: stop `tailrace dev` and delete the folders of the log and the state."
)


class Commands(NamedTuple):
    """What the processes of a session run."""

    command: Command
    run: list[str]
    """The arguments of the worker."""
    serve: list[str]
    """Those of the page."""
    state: str
    """The folder of the worker's state."""


class Session:
    """A development session of an app: see the head of this file. ``tell`` is called with what happens."""

    def __init__(self, app: str, commands: Commands, tell: Callable[[str], None]) -> None:
        self._app, self._commands, self._tell = app, commands, tell
        self._worker: ChildProcess | None = None
        self._page: ChildProcess | None = None
        self._code = Code(frozenset(), [], [])
        self._times: dict[Path, int] = {}
        self._begun_s = self._look_s = 0.0
        self._is_wrong = self._stopping = False

    def run(self, first: Callable[[Code], None]) -> None:
        """Work until a signal stops it. ``first`` is called when worker and page have been started for the first time.

        Raises TailraceError: the first code is not valid, or the page has failed.
        """
        self._look(self._modified())
        with tempfile.TemporaryDirectory(prefix="tailrace-dev-") as folder, stop_signals(self._stop):
            self._note = Path(folder) / "note"
            try:
                self._start_both()
                first(self._code)
                while not self._stopping:
                    time.sleep(max(_POLL_S, 5 * self._look_s))  # a large folder is looked through less often
                    self._step()
            finally:
                self._end(self._worker)
                self._end(self._page)

    def _stop(self) -> None:
        self._stopping = True

    def _step(self) -> None:
        begun_s = time.monotonic()
        times = self._modified()
        self._look_s = time.monotonic() - begun_s
        if times != self._times:
            self._reload(times)
        if self._page is not None and not self._page.is_alive:
            self._page.receive()  # raises its error
            self._stopping = True
        if self._worker is not None and not self._worker.is_alive:
            self._worker_ended(self._worker)

    def _reload(self, times: Mapping[Path, int]) -> None:
        try:
            self._look(times)
        except TailraceError as error:
            self._is_wrong = True
            self._show(f"The changed code is not in use: {error}", self._worker)
            return
        self._is_wrong = False
        self._tell("the code has changed: starting again")
        self._end(self._worker)
        self._end(self._page)
        self._start_both()

    def _look(self, times: Mapping[Path, int]) -> None:
        """Look at the code. ``times``: those of the files before it. What changes during the look is seen at the next one."""
        try:
            self._code = code_of(self._app)
        finally:
            self._times = {**self._modified(), **times}

    def _start_both(self) -> None:
        self._start_worker()
        self._page = begun(
            "the page", self._app, self._commands.command, *self._commands.serve, "--dev", str(self._note)
        )

    def _start_worker(self) -> None:
        self._begun_s = time.monotonic()
        self._worker = begun("the worker", self._app, self._commands.command, *self._commands.run)
        self._write(self._worker)

    def _worker_ended(self, worker: ChildProcess) -> None:
        self._worker = None
        try:
            worker.receive()
            error = ""
        except IncompatibleStateError as raised:
            error = f"{raised} {OTHER_HISTORY}"
        except TailraceError as raised:
            error = str(raised)
        finally:
            worker.close()
        if self._stopping or worker.exit_code == 0:
            self._stopping = True
        elif (worker.exit_code or 0) < 0:
            time.sleep(max(0.0, self._begun_s + _APART_S - time.monotonic()))
            if self._is_wrong:  # it would run code that the page does not have
                self._reload(self._modified())
                return
            self._tell(f"{worker.name}, process {worker.pid}, {worker.how_it_ended}: starting it again")
            self._start_worker()
        else:
            self._show(f"The worker has ended: {error} Change the code, and it starts again.", None)

    def _show(self, trouble: str, worker: ChildProcess | None) -> None:
        self._write(worker, trouble)
        self._tell(trouble)

    def _write(self, worker: ChildProcess | None, trouble: str = "") -> None:
        write_note(self._note, Note(None if worker is None else worker.pid, trouble, self._commands.state))

    def _modified(self) -> dict[Path, int]:
        """When each file was last changed: those of the app's modules, and all Python files below the working folder but tests, as a
        handler may import any of them.
        """
        found, files = dict[Path, int](), {*self._code.files}
        for folder, folders, names in os.walk(Path.cwd()):
            folders[:] = [one for one in folders if one not in _PASSED and not one.startswith(".")]
            files.update(
                Path(folder, one) for one in names if one.endswith(".py") and not one.startswith("test_")
            )
        for file in files:
            try:
                found[file] = file.stat().st_mtime_ns
            except OSError:
                pass  # it is gone
        return found

    @staticmethod
    def _end(process: ChildProcess | None) -> None:
        if process is not None:
            process.terminate()
            process.join(_GRACE_S)
            process.close()
