"""The processes of a development session: each runs a command, or looks at the code.

All end with the session, however it ends. The look at new code is a process of its own, so that code which cannot be imported, or has
no valid declarations, stops nothing that runs.
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tailrace.core.declare.app import App
from tailrace.processes.app_loading import find_app
from tailrace.processes.child_process import ChildProcess, Conduct, Pipe

Command = Callable[[Sequence[str]], object]
"""Runs a command by its arguments. Raises TailraceError."""


class Code(NamedTuple):
    """What the code of an app is."""

    files: frozenset[Path]
    """The files of its modules, wherever they are, but those of Python and of installed packages."""
    inputs: list[str]
    """The topics that others write."""
    asked: list[str]
    """Paths of what can be asked over HTTP, with ``KEY`` for the key."""


def code_of(app: str) -> Code:
    """Import an app in a process of its own. Raises TailraceError."""
    looking = ChildProcess("the process that imports the app", _look, app)
    try:
        code: Code = looking.receive()
        return code
    finally:
        looking.close()


def begun(name: str, app: str, command: Command, *arguments: str) -> ChildProcess:
    """Start a command on an app as a process. The error that ends it is its last message."""
    return ChildProcess(name, _run, app, command, arguments, conduct=Conduct(leaves_by_itself=True))


def _imported(app: str) -> App:
    """The app. No compiled code is read: of two changes within a second, it may be that of the first."""
    before, sys.pycache_prefix = sys.pycache_prefix, os.devnull
    try:
        return find_app(app)
    finally:
        sys.pycache_prefix = before


def _look(pipe: Pipe, app: str) -> None:
    before = {*sys.modules}
    plan = _imported(app).plan()
    files = {
        Path(file).resolve()
        for name, module in [*sys.modules.items()]
        if name not in before and (file := getattr(module, "__file__", None)) and file.endswith(".py")
    }
    python = Path(sysconfig.get_path("stdlib")).resolve()
    own = frozenset(
        one for one in files if not one.is_relative_to(python) and "site-packages" not in one.parts
    )
    tables = [f"/tables/{name}/KEY" for name, topic in plan.topics.items() if topic.is_table]
    asked = [*(f"/actors/{one.name}/KEY" for one in plan.actors[:1]), *tables[:1]]
    written = {plan.inbox_topic, *(one.name for one in plan.published)}
    pipe.send(Code(own, [one.name for one in plan.inputs if one.name not in written], asked))


def _run(pipe: Pipe, app: str, command: Command, arguments: Sequence[str]) -> None:
    threading.Thread(target=_leave_with_parent, args=(pipe,), daemon=True).start()
    _imported(app)
    command(arguments)


def _leave_with_parent(pipe: Pipe) -> None:
    try:
        pipe.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
