"""A child process: a worker, a part of a replay or of a rebuild, background work of a service.

All of them are started here, so all of them follow the same rules::

    Ctrl-C            reaches every process at the terminal. A child ignores it from its first instruction on: the parent decides
    the parent ends   the child ends at once, however the parent ended. With ``leaves_by_itself`` it sees its pipe closed instead
    the child fails   a ``TailraceError`` goes to the parent over the pipe; any other exception leaves its traceback on stderr
    the child ends    its pipe is closed; ``how_it_ended`` names the exit code or the signal
    no process        the constructor raises WorkerLostError, and nothing is left behind
    ``close``         kills a child that still runs; waits for it and frees the pipe. It leaves nothing behind

The child runs a function of a module, ``life(pipe, *arguments)``. It is imported and called in a new interpreter ("spawn"),
so the child inherits no thread, lock or open file. A spawned process also imports the main module.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, TypeAlias, cast

from tailrace.core.errors import TailraceError, WorkerLostError
from tailrace.processes import logs
from tailrace.processes.app_loading import check_guarded
from tailrace.processes.logs import LogFormat
from tailrace.processes.signals import held_back

_log = logging.getLogger("tailrace.process")

Pipe: TypeAlias = "Connection[Any, Any]"
"""One end of the pipe between parent and child."""


@dataclass(frozen=True, slots=True)
class Conduct:
    """Settings of a child that do not concern its work. They are sent to the child."""

    log_format: LogFormat | None = None
    """Format of its logs, which go to standard error (default: logging is not set up)."""
    niceness: int = 0
    """Added to the niceness of the parent."""
    leaves_by_itself: bool = False
    """Whether the child may outlive its parent to shut down cleanly, receives SIGTERM, and may have children itself."""


class ChildProcess:
    """One process. It has been started when the constructor returns; the caller must close it."""

    def __init__(
        self,
        name: str,
        life: Callable[..., None],
        *arguments: Any,
        conduct: Conduct | None = None,
        hint: str = "",
    ) -> None:
        """Start the process. ``name`` is for messages, such as "a process of the replay"; ``hint`` is advice if it is lost.

        Raises:
            WorkerLostError: The system cannot start a process.
            UsageError: The main script starts it whenever it is imported, which the process itself would do.
        """
        check_guarded(f"{name} is started")
        conduct = conduct or Conduct()
        self.name = name
        self.exit_code: int | None = None
        """The exit code, negative for a signal. It is known once the process has been waited for."""
        self._hint = hint
        ends: tuple[Any, Any] = multiprocessing.Pipe()
        self.pipe: Pipe = ends[0]
        theirs: Pipe = ends[1]
        self._process = multiprocessing.get_context("spawn").Process(
            target=_live,
            args=(conduct, life, theirs, arguments),
            name=name,
            daemon=not conduct.leaves_by_itself,
        )
        signals = (signal.SIGINT, signal.SIGTERM) if conduct.leaves_by_itself else (signal.SIGINT,)
        try:
            with held_back(*signals):
                self._process.start()
        except OSError as error:
            self.close()
            raise WorkerLostError(f"{name} cannot be started: {error}", hint=hint) from error
        except BaseException:  # a Ctrl-C that was held back is heard here, with the child started
            self.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid or 0

    @property
    def sentinel(self) -> int:
        """Ready for ``multiprocessing.connection.wait`` when the process ends."""
        return self._process.sentinel

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self.exit_code is None and not self._has_ended(0)

    @property
    def how_it_ended(self) -> str:
        """How the process ended, as the predicate of a message."""
        code = self.exit_code
        if code is not None and code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return "left by itself" if not code else f"died with exit code {code}"

    def send(self, message: object) -> None:
        """Send a message. If the child has ended, the message is lost; the next ``receive`` raises."""
        try:
            self.pipe.send(message)
        except OSError:
            pass

    def receive(self) -> Any:
        """Wait for the next message.

        Raises:
            Exception: The error that the child has sent.
            WorkerLostError: The child has ended without sending one.
        """
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            self.join()
            raise WorkerLostError(f"{self.name} {self.how_it_ended}", hint=self._hint) from None
        if isinstance(message, Exception):
            raise message
        return message

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the process ends, at most ``timeout_s`` (None: without a limit)."""
        if self.exit_code is None:
            self._has_ended(timeout_s)

    def kill(self) -> None:
        """Kill the process. Can be called from a signal handler."""
        if self.exit_code is None and self._process.pid is not None:
            self._process.kill()

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self.exit_code is None and self._process.pid is not None:
            self._process.terminate()

    def leave(self) -> None:
        """Close the pipe, so that the child leaves by itself; wait for it, and release it."""
        self.pipe.close()
        self.join()
        self.close()

    def close(self) -> None:
        """Kill the process if it still runs, and release its resources."""
        if self.exit_code is None and self._process.pid is not None:
            self._process.kill()  # first, so that it does not report a closed pipe
            self.join()
        self.pipe.close()
        self._process.close()

    def _has_ended(self, timeout_s: float | None) -> bool:
        self._process.join(timeout_s)
        self.exit_code = self._process.exitcode
        return self.exit_code is not None


def wait_for(children: Iterable[ChildProcess], timeout_s: float | None = None) -> list[ChildProcess]:
    """Wait until a child has sent a message or has ended. Returns all such children; none after ``timeout_s``."""
    by_pipe = {child.pipe: child for child in children}
    return [by_pipe[cast("Pipe", pipe)] for pipe in connection.wait(by_pipe, timeout_s)]


def _live(conduct: Conduct, life: Callable[..., None], pipe: Pipe, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not conduct.leaves_by_itself:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    if conduct.niceness:
        os.nice(conduct.niceness)
    if conduct.log_format is not None:
        logs.configure(conduct.log_format)
    try:
        life(pipe, *arguments)
    except TailraceError as error:
        _log.debug("this process ends", exc_info=True)
        send_error(pipe, error)
        sys.exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def send_error(pipe: Pipe, error: Exception) -> None:
    """Send an error to the parent, if it still runs. An error that cannot be pickled is sent as text."""
    try:
        pipe.send(error)
    except OSError:
        pass
    except Exception:  # noqa: BLE001  # whatever its fields raise when they are pickled
        pipe.send(TailraceError(str(error)))


class BackgroundProcess:
    """Runs ``work(*arguments)``, slow and not urgent, in a process of lower priority, one at a time. Both must be picklable.

    It ends with the process that started it, even if that one is killed. So the work must tolerate a kill at any point.
    """

    def __init__(self, name: str, log_format: LogFormat, work: Callable[..., None]) -> None:
        self._name = f"the process for the {name}"
        self._conduct = Conduct(log_format=log_format, niceness=10)
        self._work = work
        self._process: ChildProcess | None = None
        self._begun_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a process was started and not closed yet."""
        return self._process is not None

    @property
    def is_done(self) -> bool:
        """Whether the started process has ended."""
        return self._process is not None and not self._process.is_alive

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process, negative for a signal; None if it has not ended."""
        return None if self._process is None or self._process.is_alive else self._process.exit_code

    @property
    def took_s(self) -> float:
        """Seconds since the process was started."""
        return time.monotonic() - self._begun_s

    def begin(self, *arguments: Any) -> None:
        """Start a process. If the system cannot start one, log a warning; there is no process then."""
        self.close()
        self._begun_s = time.monotonic()
        try:
            self._process = ChildProcess(self._name, _work, self._work, arguments, conduct=self._conduct)
        except WorkerLostError as error:
            _log.warning("%s", error)

    def join(self, timeout_s: float) -> None:
        """Wait until the process ends, at most ``timeout_s``."""
        if self._process is not None:
            self._process.join(timeout_s)

    def close(self) -> None:
        """Kill the process if it still runs, and release it."""
        process, self._process = self._process, None
        if process is not None:
            process.close()


def _work(_pipe: Pipe, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    work(*arguments)
