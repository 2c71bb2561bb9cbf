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

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.core.errors import IncompatibleStateError, TailraceError
from tailrace.dev.children import Code, Command, begun, code_of
from tailrace.processes.child_process import ChildProcess
from tailrace.processes.signals import stop_signals
from tailrace.serve.page.dev import Note, write_note

_POLL_S: Final = 0.1
_GRACE_S: Final = 30.0
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
        self._begun_s = 0.0
        self._is_wrong = self._stopping = False

    def run(self, first: Callable[[Code], None]) -> None:
        """Work until a signal stops it. ``first`` is called when worker and page have been started for the first time.

        Raises TailraceError: the first code is not valid, or the page has failed.
        """
        self._code = code_of(self._app)
        self._times = self._modified()
        with tempfile.TemporaryDirectory(prefix="tailrace-dev-") as folder, stop_signals(self._stop):
            self._note = Path(folder) / "note"
            try:
                self._start_both()
                first(self._code)
                while not self._stopping:
                    time.sleep(_POLL_S)
                    self._step()
            finally:
                self._end(self._worker)
                self._end(self._page)

    def _stop(self) -> None:
        self._stopping = True

    def _step(self) -> None:
        times = self._modified()
        if times != self._times:
            self._times = times
            self._reload()
        if self._page is not None and not self._page.is_alive:
            self._page.receive()  # raises its error
            self._stopping = True
        if self._worker is not None and not self._worker.is_alive:
            self._worker_ended(self._worker)

    def _reload(self) -> None:
        try:
            self._code = code_of(self._app)
        except TailraceError as error:
            self._is_wrong = True
            self._times = self._modified()
            self._show(f"The changed code is not in use: {error}", self._worker)
            return
        self._is_wrong = False
        self._times = self._modified()
        self._tell("the code has changed: starting again")
        self._end(self._worker)
        self._end(self._page)
        self._start_both()

    def _start_both(self) -> None:
        self._start_worker()
        self._page = begun(
            "the page", self._commands.command, *self._commands.serve, "--dev", str(self._note)
        )

    def _start_worker(self) -> None:
        self._begun_s = time.monotonic()
        self._worker = begun("the worker", self._commands.command, *self._commands.run)
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
        """When each file of the app was last changed; 0 if it is gone. While the code cannot be imported, a new file beside them counts."""
        found = dict[Path, int]()
        folders = {one.parent for one in self._code.files} if self._is_wrong else set[Path]()
        for file in self._code.files.union(*(folder.glob("*.py") for folder in folders)):
            try:
                found[file] = file.stat().st_mtime_ns
            except OSError:
                found[file] = 0
        return found

    @staticmethod
    def _end(process: ChildProcess | None) -> None:
        if process is not None:
            process.terminate()
            process.join(_GRACE_S)
            process.close()
