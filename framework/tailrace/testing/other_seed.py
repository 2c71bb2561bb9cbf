"""A replay in a process with another hash seed, which finds handlers that depend on the order of a set or on ``hash()``.

A hash seed belongs to a process. So the replay needs a second process, and that one needs the app's code: it imports the
module that defines the app. An app that is created within a function cannot be replayed there.

The second process is started with the first replay and serves all later ones, because its start takes longer than most
replays. It ends with the process that started it.

The replay is compared with the log: state with the changelog, and outputs. The replay in the test's own process comes first,
and has already compared the store with the changelog.
"""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar, TypeAlias, cast

import msgspec

from tailrace.core.declare.app import App
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.schema import encode_schemas
from tailrace.core.engine.task import TaskSettings
from tailrace.core.errors import TailraceError
from tailrace.history.replay.replaying import ReplayOptions, replay
from tailrace.processes.hash_seeds import HASH_SEED, another_seed
from tailrace.testing.memory_log import MemoryLog

_SERVE = "import sys; from tailrace.testing.other_seed import serve; serve(int(sys.argv[1]))"
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Request:
    """What to replay: the app's place and declarations, the log, and the settings of the first run."""

    module: str
    file: str
    attribute: str
    path: tuple[str, ...]
    folder: str
    partitions: int
    declared: bytes
    log: MemoryLog
    settings: TaskSettings


@dataclass(frozen=True)
class Answer:
    """The differences, or the reason why nothing could be replayed."""

    differences: tuple[str, ...] = ()
    why_not: str = ""


_Ours: TypeAlias = "Connection[Request, Answer]"
_Theirs: TypeAlias = "Connection[Answer, Request]"


def replay_under_another_seed(app: App, plan: Plan, log: MemoryLog, settings: TaskSettings) -> Answer:
    """Replay what is committed in a process with another hash seed, and compare it with the log."""
    place = _place_of(app, plan)
    if place is None:
        return Answer(why_not=f"the app {plan.app!r} is no attribute of a module")
    module, attribute, file = place
    request = Request(
        module,
        file,
        attribute,
        tuple(sys.path),
        str(Path.cwd()),
        plan.partitions,
        _declared(plan),
        log,
        settings,
    )
    return _Other.current().ask(request)


def _place_of(app: App, plan: Plan) -> tuple[str, str, str] | None:
    """Module, attribute and file under which another process finds an app; None if it cannot find it."""
    for name in dict.fromkeys(_modules_of(plan)):
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if module is None or not file or not Path(file).is_file() or name in ("__main__", "__mp_main__"):
            continue
        for attribute, value in vars(module).items():
            if value is app:
                return name, attribute, file
    return None


def _modules_of(plan: Plan) -> Iterator[str]:
    for actor in plan.actors:
        yield actor.cls.__module__
    for one in plan.inputs:
        for route in one.routes:
            yield route.call.__module__


def _declared(plan: Plan) -> bytes:
    """A description of an app's declarations: the same in another process unless the app differs there."""
    return msgspec.json.encode(
        [
            [plan.app, plan.version, plan.on_error, plan.outputs, plan.inbox_topic],
            encode_schemas({actor.name: actor.schema for actor in plan.actors}),
            [[one.name, one.time_kind, [route.name for route in one.routes]] for one in plan.inputs],
        ]
    )


class _Other:
    """The other process, as seen from this one. There is at most one."""

    _current: ClassVar[_Other | None] = None

    def __init__(self) -> None:
        ours, theirs = cast("tuple[_Ours, _Theirs]", Pipe())
        path = os.pathsep.join(one for one in sys.path if one)
        self._pid = os.getpid()
        self._pipe = ours
        self._process = subprocess.Popen(  # noqa: S603 (this very Python)
            [sys.executable, "-c", _SERVE, str(theirs.fileno())],
            env={**os.environ, HASH_SEED: str(another_seed()), "PYTHONPATH": path},
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()

    @classmethod
    def current(cls) -> _Other:
        """The running process; a new one if there is none, or if this process is a fork of the one that started it."""
        known = cls._current
        if known is None or known._pid != os.getpid():
            known = cls._current = cls()
        return known

    def ask(self, request: Request) -> Answer:
        """Send a request and wait for the answer."""
        try:
            self._pipe.send(request)
            return self._pipe.recv()
        except (OSError, EOFError):
            self.close()
            return Answer(why_not=f"the process for it ended with code {self._process.returncode}")
        except BaseException:
            self.close()  # it may be in the middle of an answer
            raise

    def close(self) -> None:
        """End the process."""
        type(self)._current = None
        self._pipe.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@atexit.register
def close() -> None:
    """End the other process, if there is one."""
    if _Other._current is not None and _Other._current._pid == os.getpid():
        _Other._current.close()


# --- in the other process


def serve(handle: int) -> None:
    """Answer requests until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    pipe: _Theirs = Connection(handle)
    while True:
        try:
            request = pipe.recv()
        except (OSError, EOFError):
            return
        pipe.send(_answer(request))


def _answer(request: Request) -> Answer:
    sys.path[:] = request.path
    os.chdir(request.folder)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(request.module)
    except BaseException as error:  # noqa: BLE001  # whatever a module raises: it is not to be had here
        said = "".join(traceback.format_exception_only(error)).strip()
        return Answer(why_not=f"{request.module} cannot be imported by another process: {said}")
    file, app = getattr(module, "__file__", None), getattr(module, request.attribute, None)
    if not file or not Path(file).samefile(request.file) or not isinstance(app, App):
        return Answer(why_not=f"{request.module} is another module for another process")
    plan = replace(app.plan(), partitions=request.partitions)
    if _declared(plan) != request.declared:
        return Answer(why_not=f"{request.module}:{request.attribute} was changed after its import")
    try:
        report = replay(plan, request.log, ReplayOptions(compare=True, settings=request.settings))
    except TailraceError as error:
        return Answer((str(error),))
    return Answer(tuple(map(str, report.differences.shown)))
