"""Runs tests on a framework that has a mistake in one module, each time in a child of a process that has imported everything else.

The tree is never edited: the child imports the module from a changed syntax tree. Importing the other packages takes longer than most
checks, so the parent does it once.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import shlex
import signal
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
NOTICED, SURVIVED, BROKEN = 0, 1, 70
"""How the run of a mutant ends: a check fails, every test passes, the tests do not run. A run that is killed ends with less than 0."""

_OWN = ("tailrace", "tests", "schemas", "services")
_OPTIONS = [
    *("-q", "-x", "--no-header", "--tb=line", "-p", "no:cacheprovider"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
    *("-p", "no:unraisableexception"),  # what a failed run leaves open is not why it has failed
]


class Mutant(NamedTuple):
    """A mistake: a module, how its syntax tree is changed, and the tests (as arguments of pytest) that must notice it.

    A ``strict`` one is noticed by what a check raises alone. Otherwise any failure counts, also one of a fixture or an import.
    """

    name: str
    module: str
    change: Callable[[ast.Module], None]
    tests: tuple[str, ...]
    strict: bool = False


class Run(NamedTuple):
    """How the tests of a mutant ended, after how many seconds, and what they printed."""

    mutant: Mutant
    ended: int
    took_s: float
    output: str


def path_of(module: str) -> Path:
    """The source of a module of the framework."""
    return ROOT.joinpath("framework", *module.split(".")).with_suffix(".py")


def runs(
    mutants: Iterable[Mutant], *, seeds: int, patience_s: float = 300.0, at_once: int = 1
) -> Iterator[Run]:
    """Run the tests of each mutant in a process of its own, so many at once, and yield each when it has ended."""
    _preload()
    context = multiprocessing.get_context("fork")
    running: dict[ForkProcess, tuple[Mutant, float, Path]] = {}
    with TemporaryDirectory() as folder:
        try:
            for number, mutant in enumerate(mutants):
                output = Path(folder) / str(number)
                child = context.Process(target=_child, args=(mutant, output, seeds))
                child.start()
                running[child] = mutant, time.monotonic(), output
                while len(running) >= at_once:
                    yield from _ended(running, patience_s)
            while running:
                yield from _ended(running, patience_s)
        finally:
            for child in running:
                _kill(child)


def _ended(running: dict[ForkProcess, tuple[Mutant, float, Path]], patience_s: float) -> Iterator[Run]:
    wait([one.sentinel for one in running], timeout=1.0)
    for child, (mutant, begun_s, output) in [*running.items()]:
        took_s = time.monotonic() - begun_s
        if child.is_alive() and took_s < patience_s:
            continue
        if child.is_alive():
            _kill(child)
        child.join()
        del running[child]
        assert child.exitcode is not None
        yield Run(mutant, child.exitcode, took_s, output.read_text() if output.exists() else "")


def _kill(child: ForkProcess) -> None:
    """Kill a child and the processes that its tests have started."""
    assert child.ident is not None
    with suppress(ProcessLookupError):  # it has just begun or ended, or has no group yet
        os.killpg(child.ident, signal.SIGKILL)
    child.kill()


def _preload() -> None:
    """Import what the framework and the tests import, and forget their own modules: a child imports these itself."""
    for name in ("hypothesis", "pytest_timeout", "xdist.plugin", "tailrace.cli.main", "tests.cast.world"):
        import_module(name)
    assert {**import_module("tailrace.cli.main").tailrace.commands}  # loads them all
    for name in [one for one in sys.modules if one.partition(".")[0] in _OWN]:
        del sys.modules[name]


def _child(mutant: Mutant, output: Path, seeds: int) -> None:
    os.setsid()
    opened = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    os.environ |= {"TAILRACE_SEEDS": str(seeds), "TAILRACE_MUTATED": "1"}
    os.chdir(ROOT)
    sys.meta_path.insert(0, _Finder(mutant))
    ended = BROKEN
    try:
        import_module(mutant.module)
        ended = _tested(mutant)
    except BaseException as error:  # noqa: BLE001  # the import of a mutant may fail in any way
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended)


def _tested(mutant: Mutant) -> int:
    found = _Failures()
    code = pytest.main([*_OPTIONS, *(word for one in mutant.tests for word in shlex.split(one))], [found])
    if not mutant.strict:
        return SURVIVED if code is pytest.ExitCode.OK else NOTICED
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return BROKEN
    return NOTICED if found.count else SURVIVED


class _Failures:
    """A plugin that counts the tests that failed as a check does: any other exception says that the check is broken."""

    def __init__(self) -> None:
        from tailrace.core.errors import TailraceError

        self.count = 0
        self._kinds = AssertionError, TailraceError, RuntimeError, pytest.fail.Exception

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        self.count += (
            call.when == "call" and call.excinfo is not None and call.excinfo.errisinstance(self._kinds)
        )


class _Finder(importlib.abc.MetaPathFinder):
    """Imports one module with its mistake."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec whose loader changes the tree, for the one module."""
        if fullname != self._mutant.module:
            return None
        loader = _Loader(fullname, str(path_of(fullname)))
        loader.change = self._mutant.change
        return importlib.util.spec_from_loader(fullname, loader)


class _Loader(importlib.machinery.SourceFileLoader):
    change: Callable[[ast.Module], None]

    def get_code(self, fullname: str) -> types.CodeType:
        tree = ast.parse(self.get_data(self.path))
        self.change(tree)
        return compile(ast.fix_missing_locations(tree), self.path, "exec")
