"""One service on its log, kept by the command line, and beside it what the oracle knows: what it has read, under which code."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import TailraceError
from tailrace.log.options import LogOptions
from tailrace.runtime import host
from tailrace.runtime.worker import Worker
from tests.cast.struck_log import StruckLog
from tests.cast.world import drop
from tests.cli.commands import Ended
from tests.cli.commands import run as command
from tests.months import reading
from tests.months.apps import MODULE, Note, Version, app_of, reference, versions_of
from tests.months.oracle import Given, Happened, Run, State, Under, World, world_after
from tests.proof.strikes import Kill

SET_ASIDE = 3
PATIENCE_S = 8.0
"""For how long a service that runs may stand still and not be as it must be. It only passes where something is wrong."""
FIRST_MS = 1_700_000_000_000


class Service:
    """The service of a seed. ``history`` is what it has read, ``pending`` what lies in its inputs unread."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.random = Random(f"months {seed}")
        self.ends = Random(f"ends {seed}")
        self.folder = folder
        self.versions = versions_of(seed)
        self.number = 0
        self.history: list[Happened] = []
        self.pending: list[Given] = []
        self.said: list[str] = []
        """What was done in the last step, for who reads of a failure."""
        self.rebuilds = 0
        self.started = False
        """Whether it has read anything: one that has not has no commit."""
        self.snapshots = ""
        """Where there is a snapshot of it, as of some time."""
        self.over = False
        """Whether nothing can be asked of it any more."""
        self.deleted = False
        """Whether the log has lost its beginning, which is in the archive."""
        done = self.call("topics", "apply", "--app", self.app)
        assert done.code == 0, done.err

    # --- its code

    @property
    def version(self) -> Version:
        return self.versions[self.number][1]

    @property
    def app(self) -> str:
        return reference(self.seed, self.version)

    @property
    def plan(self) -> Plan:
        return app_of(self.seed, self.version.number).plan()

    @property
    def world(self) -> World:
        """What must be there."""
        return world_after(self.history, self.version.partitions)

    @property
    def one_version(self) -> bool:
        """Whether the same code has run from the beginning, and nothing else has changed the state."""
        return all(isinstance(one, Run) and one.version == self.version for one in self.history)

    # --- commands

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def call(self, *arguments: object, stdin: bytes = b"", on_log: bool = True) -> Ended:
        """Any command, on its log if that is an option of it."""
        words = [str(one).replace(str(self.folder), "…") for one in arguments]
        self.said.append(" ".join(word.replace(f"{MODULE}:seed_{self.seed}_", "") for word in words))
        return command(*arguments, *(("--log", self.log) if on_log else ()), stdin=stdin)

    def done(self, *arguments: object, stdin: bytes = b"", on_log: bool = True) -> Ended:
        """A command that has to succeed."""
        ended = self.call(*arguments, stdin=stdin, on_log=on_log)
        assert ended.code == 0, f"exit code {ended.code}: {ended.out}{ended.err}"
        return ended

    def append(self, events: list[Given]) -> None:
        """Append events to their topics, in this order."""
        for topic, is_note in (("sales", False), ("notes", True)):
            lines = [
                msgspec.json.encode(one.event) for one in events if isinstance(one.event, Note) == is_note
            ]
            if lines:
                self.done("log", "append", topic, "--app", self.app, stdin=b"\n".join(lines))
        self.pending += events

    def run_to_end(self, *options: object, ends: bool = False, after_crash: bool = False) -> None:
        """``tailrace run --until-end`` or ``--end-of-input``; all that was pending is read."""
        letters = self.world.letters
        # An input may fall idle in a run, or not: then only the end says how far it comes.
        ends = ends or after_crash or self.version.idle or self.ends.random() < 0.5
        self._read(ended=ends)
        ended = self.run("--end-of-input" if ends else "--until-end", *options)
        wanted = {SET_ASIDE if self.world.letters > letters else 0}
        if after_crash:
            wanted.add(0)  # the letters were made before it
        assert ended.code in wanted, f"exit code {ended.code}, and not {wanted}: {ended.err}"

    def run_live(self, *options: object) -> None:
        """``tailrace run`` until it has come to rest, then SIGTERM."""
        self._read(ended=False)
        with _stopped_when_empty(self.differences_now):
            ended = self.run(*options)
        assert ended.code == 0, ended.err

    def crash(self, operations: int, ended: bool, *options: object) -> None:
        """A run that dies after so many operations of the log, unless it comes to rest before."""
        pending, history = list(self.pending), list(self.history)
        with _killed_after(operations):
            if ended:
                self._read(ended=True)
                self.run("--end-of-input", *options)
            else:
                self.run_live(*options)
        self.pending, self.history = pending, history

    def redrive(self) -> None:
        """What has failed is appended once more, and read."""
        events = [Given(one, redriven=True) for one in self.world.failed]
        self.done("dead-letters", "redrive", "months", "--all")
        self.pending += events
        self.run_to_end()

    def run(self, *options: object) -> Ended:
        """``tailrace run`` of this version."""
        fixed = ("--state", self.folder / "state", "--change-inputs", "--create-topics", "--after-end")
        with _quiet_logs():
            return self.call("run", self.app, *fixed, *options)

    def _read(self, *, ended: bool) -> None:
        self.started = self.started or bool(self.pending)
        self.history.append(Run(self.version, tuple(self.pending), ended))
        self.pending = []

    def lose_state(self) -> None:
        """The state folders are gone."""
        shutil.rmtree(self.folder / "state", ignore_errors=True)

    # --- checks

    def differences_now(self) -> list[str]:
        """The same of a service that runs, and may not have made its topics yet."""
        try:
            return self.differences()
        except TailraceError as error:
            return [str(error)]

    def differences(self) -> list[str]:
        """Where the service is not as the oracle says."""
        world = self.world
        with closing(reading.open_log(self.log)) as log:
            found = different_states(
                world.state(self.version), reading.committed(log, self.plan, self.version)
            )
            emitted, letters = reading.outputs(log), reading.letters(log)
        for one in (emitted - world.outputs).elements():
            found.append(f"it has emitted, and must not have: {one}")
        for one in (world.outputs - emitted).elements():
            found.append(f"it has not emitted: {one}")
        if letters != world.letters:
            found.append(f"{letters} dead letters, and not {world.letters}")
        return found

    def check_snapshot(self, uri: str, under: Under) -> None:
        """A snapshot holds what the oracle says of history under a version."""
        world = world_after(self.history, self.version.partitions, under)
        found = reading.rebuilt(uri, self.plan, self.version)
        assert_no_differences(different_states(world.state(self.version), found), uri)

    def check(self) -> None:
        """Everything is as the oracle says."""
        assert_no_differences(self.differences(), "the service")


def different_states(wanted: State, found: State) -> list[str]:
    """In words."""
    return [
        f"{actor} {key!r} is {found.get((actor, key))}, and must be {wanted.get((actor, key))}"
        for actor, key in sorted(wanted.keys() | found.keys())
        if wanted.get((actor, key)) != found.get((actor, key))
    ]


def assert_no_differences(found: list[str], where: str) -> None:
    """Say the first of them, if there are any."""
    assert not found, "\n".join([f"{where}:", *found[:20]])


@contextmanager
def _quiet_logs() -> Generator[None]:
    """A run sets up the logs of its process; here these are others'."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)


@contextmanager
def _stopped_when_empty(differences: Callable[[], list[str]]) -> Generator[None]:
    """SIGTERM to this process once there are no differences, or they stay the same: as often as it takes to be heard."""
    over = threading.Event()
    failures: list[BaseException] = []

    def watch() -> None:
        left: list[str] = []
        since_s = time.monotonic()
        try:
            while not over.wait(0.02) and (found := differences()):
                if found != left:
                    left, since_s = found, time.monotonic()
                elif time.monotonic() - since_s > PATIENCE_S:
                    break
        except BaseException as error:  # noqa: BLE001  # it is raised where it is seen
            failures.append(error)
        while not over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            over.wait(0.05)

    def unheard(*_: Any) -> None:
        """The service has not begun to listen, or does no longer."""

    before = signal.signal(signal.SIGTERM, unheard)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGTERM, before)
    if failures:
        raise failures[0]


@contextmanager
def _killed_after(operations: int) -> Generator[None]:
    """A service that runs in here dies at an operation of the log."""
    left = operations

    def tick(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Kill

    def opened(path: Path, options: LogOptions, *, create: bool) -> StruckLog:
        return StruckLog(path, tick, options)

    live = Worker.live

    def until_killed(worker: Worker, begin: Callable[[], None]) -> None:
        try:
            live(worker, begin)
        except Kill:
            drop(worker)
            raise

    with patch.object(host, "open_log", opened), patch.object(Worker, "live", until_killed):
        try:
            yield
        except Kill:
            pass
