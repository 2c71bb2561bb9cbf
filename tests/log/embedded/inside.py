"""Parts of a log on their own, made as ``EmbeddedLog`` makes them; and what happens at their statements, by the hooks of SQLite."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw

from tailrace.log.embedded import appending
from tailrace.log.embedded.appending import Appender
from tailrace.log.embedded.database import Connection, connect
from tailrace.log.embedded.lock import Note, NoteFile, last_note
from tailrace.log.embedded.rows import Changes
from tailrace.log.embedded.view import View


def view(folder: Path) -> View:
    """A view that looks in each moment whether its files are those of the log."""
    return View(folder, look_s=0.0)


@contextmanager
def turn(folder: Path) -> Generator[Changes]:
    """A turn of another process."""
    with closing(appender(folder)) as one, one.turn() as changes:
        yield changes


def checkpoint(folder: Path) -> None:
    """Copy the WAL into the database."""
    with closing(appender(folder)) as one:
        one.checkpoint()


def note(folder: Path) -> Note:
    """What is known of a log apart from its database."""
    return last_note(folder)


@contextmanager
def before(part: str, call: Callable[[], object]) -> Generator[None]:
    """Calls ``call`` before each statement of this process that contains ``part``. What it raises, the statement raises."""
    calling = False

    def trace(_cursor: object, statement: str, _bindings: object) -> bool:
        nonlocal calling
        if part in statement and not calling:
            calling = True
            try:
                call()
            finally:
                calling = False
        return True

    with _each_connection(lambda one: one.set_exec_trace(trace), lambda one: one.set_exec_trace(None)):
        yield


@contextmanager
def failing_commits(code: int, *, written: bool) -> Generator[None]:
    """Commits of this process fail with an error of SQLite, before they are written or after."""

    def fail(*_: object) -> int:
        error: Any = apsw.exception_for(code)
        error.args = ("struck",)
        raise error

    if not written:
        with before("COMMIT", fail):
            yield
        return
    with _each_connection(lambda one: one.set_wal_hook(fail), lambda one: one.set_wal_hook(None)):
        yield


class _WithoutCheckpoints:
    """A connection whose checkpoints fail."""

    def __init__(self, connection: Connection, code: int) -> None:
        self._connection, self._code = connection, code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def wal_checkpoint(self, *_: object) -> None:
        raise apsw.exception_for(self._code)


@contextmanager
def failing_checkpoints(code: int) -> Generator[None]:
    """Checkpoints of appenders that open the log inside the block fail with an error of SQLite."""

    def harmed(folder: Path, **options: Any) -> Any:
        return _WithoutCheckpoints(connect(folder, **options), code)

    with patch.object(appending, "connect", harmed):
        yield


@contextmanager
def _each_connection(
    begin: Callable[[apsw.Connection], None], end: Callable[[apsw.Connection], None]
) -> Generator[None]:
    apsw.connection_hooks.append(begin)
    for one in apsw.connections():
        begin(one)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(begin)
        for one in apsw.connections():
            end(one)


def appender(folder: Path) -> Appender:
    """What writes to a log."""
    return Appender(view(folder), NoteFile(folder), fsync="interval", fsync_interval_s=1_000)
