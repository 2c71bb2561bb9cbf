"""Runs mutations in children of a process that has imported everything once: importing takes longer than most checks.

A child puts the mistake into the loaded module: each function whose code is another in the mutated source gets that code. What is done
at import (constants, decorators, the bodies of classes) cannot be changed in this way. Then the child becomes a fresh interpreter, which
imports the mutated source.
"""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

from tests.proof.mutating import Mutation, mutated

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0


class Ended(NamedTuple):
    """The exit status of a mutation, and what it has printed."""

    code: int
    said: str


class Forked:
    """The process. ``program`` is a module that names its mutations, and whose command line takes such a name::

    preload()             imports what the checks need
    mutation_of(name)
    run(name)             checks: 0 if the mutation is noticed
    """

    def __init__(self, program: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._said = folder / "said.txt"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.proof.forked", program, str(self._said)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, name: str) -> Ended:
        """Run a mutation in a child."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        watch = threading.Timer(PATIENCE_S, self.close)
        watch.start()
        try:
            stdin.write(f"{name}\n")
            stdin.flush()
            answer = stdout.readline()
        finally:
            watch.cancel()
        said = self._said.read_text() if self._said.exists() else ""
        assert answer, f"no answer after {PATIENCE_S:.0f} s, or no process: {said}"
        return Ended(int(answer), said)

    def close(self) -> None:
        """End the process, and its child if there is one."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
        with self._process:  # closes its pipes
            pass


class _Change(NamedTuple):
    """A function that is another in the mutated source. One that is made by a function is patched where it is there already."""

    before: CodeType
    after: CodeType
    is_made: bool


def patched(module: ModuleType, mutation: Mutation) -> bool:
    """Put a mistake into a loaded module; whether that is possible."""
    path = module.__file__
    assert path is not None
    source = Path(path).read_text()
    found = _changes(compile(source, path, "exec"), compile(mutated(mutation, source), path, "exec"))
    changes = {_place(one.before): one for one in found}
    functions = [
        one
        for one in gc.get_objects()
        if type(one) is FunctionType and one.__code__.co_filename == path and _place(one.__code__) in changes
    ]
    missing = changes.keys() - {_place(one.__code__) for one in functions}
    if not changes or not all(changes[one].is_made for one in missing):
        return False
    if any(one.before.co_freevars != one.after.co_freevars for one in found):
        return False
    for one in functions:
        one.__code__ = changes[_place(one.__code__)].after
    return True


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _changes(before: CodeType, after: CodeType, *, is_made: bool = False) -> list[_Change]:
    """All functions that differ. What is no function, and differs, counts as one that cannot be found."""
    if _shape(before) == _shape(after):
        return []
    old, new = (_inner(one) for one in (before, after))
    is_function = bool(before.co_flags & inspect.CO_OPTIMIZED)
    found: list[_Change] = []
    if is_function or _own(before) != _own(after) or len(old) != len(new):
        found.append(_Change(before, after, is_made))
    if len(old) == len(new):
        for one, other in zip(old, new, strict=True):
            found += _changes(one, other, is_made=is_made or is_function)
    return found


def _inner(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def _own(code: CodeType) -> tuple[object, ...]:
    """All of a piece of code but the pieces in it, and its lines."""
    constants = [repr(one) for one in code.co_consts if not isinstance(one, CodeType)]
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_qualname, code.co_code, constants, names, code.co_flags


def _shape(code: CodeType) -> tuple[object, ...]:
    return *_own(code), *map(_shape, _inner(code))


def _child(program: ModuleType, name: str, said: str) -> int:
    opened = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    mutation: Mutation = program.mutation_of(name)
    module = sys.modules.get(mutation.module)
    if module is None or not patched(module, mutation):
        os.execv(sys.executable, [sys.executable, "-m", program.__name__, name])
    code: int = program.run(name)
    sys.stdout.flush()
    return code


def main(program: str, said: str) -> None:
    """Take names from standard input, and answer each with the exit status of a child."""
    loaded = import_module(program)
    loaded.preload()
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            code = 70
            try:
                code = _child(loaded, line.strip(), said)
            except BaseException as error:  # noqa: BLE001  # whatever it is, the child must not go on as its parent
                sys.excepthook(type(error), error, error.__traceback__)
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)  # noqa: T201  # the answer


if __name__ == "__main__":
    main(*sys.argv[1:])
