"""Parts of a log on their own, made as ``EmbeddedLog`` makes them; and what happens at their statements, by the hooks of SQLite."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw

from tailrace.log.embedded.appending import Appender
from tailrace.log.embedded.lock import LOCK, AppendLock, Note
from tailrace.log.embedded.rows import Changes
from tailrace.log.embedded.view import View


def view(folder: Path) -> View:
    """A view that looks in each moment whether its files are those of the log."""
    return View(folder, lambda _: None, look_s=0.0)


@contextmanager
def turn(folder: Path) -> Generator[Changes]:
    """A turn of another process."""
    with closing(_appender(folder)) as appender, appender.turn() as changes:
        yield changes


def checkpoint(folder: Path) -> None:
    """Copy the WAL into the database."""
    with closing(_appender(folder)) as appender:
        appender.checkpoint()


def note(folder: Path) -> Note:
    """What the last holder of the append lock has noted."""
    return AppendLock(folder).last_note()


def another_boot(folder: Path) -> None:
    """The machine was down since all processes so far have ended."""
    (folder / LOCK).write_bytes(note(folder)._replace(boot=b"another life of the machine".ljust(36)).packed())


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


def _appender(folder: Path) -> Appender:
    return Appender(view(folder), AppendLock(folder), fsync="interval", fsync_interval_s=1_000)
