"""Mistakes put into a named function of the framework on purpose, to show that its tests are able to fail.

The text of a mutation is compared with the function as ``ast.unparse`` writes it: without comments, in single quotes, a statement a
line. So no formatting of the code matters, nor where else in the module the same text occurs. A name or a text that is not there is
an error.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pytest

SEEDS = "400"
"""Of the property tests that must notice a mutation, up to the first that does; see ``tests/conftest.py``."""


class Mutation(NamedTuple):
    """One mistake: in which function ("module:Class.method") or constant, what stands there, and what is put in its place."""

    place: str
    before: str
    after: str
    law: int = 0
    tests: tuple[str, ...] = ()
    """The tests that must notice it, as arguments of pytest; none: the check of the law must."""
    first: str = ""
    """How the name of the test begins that notices it. It is run before the others, as they may take ten seconds."""

    @property
    def module(self) -> str:
        """The name of the module that is changed."""
        return f"tailrace.{self.place.partition(':')[0]}"


class NotFoundError(LookupError):
    """What a mutation replaces is not there, or more than once."""


def mutated(mutation: Mutation, source: str) -> ast.Module:
    """A module with its mistake. Raises NotFoundError if it does not fit."""
    tree = ast.parse(source)
    wanted = mutation.place.partition(":")[2]
    found = [
        (body, at)
        for name, body, at in _named(tree, "")
        if name == wanted and mutation.before in ast.unparse(body[at])
    ]
    times = [ast.unparse(body[at]).count(mutation.before) for body, at in found]
    if times != [1]:
        raise NotFoundError(f"{mutation.before!r} is {sum(times)} times in {mutation.place}")
    ((body, at),) = found
    (changed,) = ast.parse(ast.unparse(body[at]).replace(mutation.before, mutation.after)).body
    body[at] = changed
    return tree


def _named(parent: ast.AST, path: str) -> Iterator[tuple[str, list[ast.stmt], int]]:
    """Every definition below, by its name: the statements that it is one of, and its place among them."""
    for field in ("body", "orelse", "finalbody"):
        body = getattr(parent, field, [])
        # The body of a lambda is an expression.
        for at, one in enumerate(body if isinstance(body, list) else ()):
            match one:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    yield f"{path}{name}", body, at
                    yield from _named(one, f"{path}{name}.")
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    yield f"{path}{name}", body, at
                case _:
                    yield from _named(one, path)


class Mutator(importlib.abc.MetaPathFinder):
    """Imports one module with its mistake."""

    def __init__(self, mutation: Mutation) -> None:
        self.mutation = mutation
        self.applied = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec whose loader changes the source, for the one module."""
        if fullname != self.mutation.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(fullname, spec.origin, self))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, mutator: Mutator) -> None:
        super().__init__(fullname, path)
        self._mutator = mutator

    def get_code(self, fullname: str) -> types.CodeType:
        tree = mutated(self._mutator.mutation, self.get_data(self.path).decode())
        self._mutator.applied = True
        return compile(tree, self.path, "exec")


def failures() -> tuple[type[BaseException], ...]:
    """The exceptions of a check that notices a mistake. Any other says that the check is broken."""
    import pytest

    from tailrace.core.errors import TailraceError

    return AssertionError, TailraceError, RuntimeError, pytest.fail.Exception


class _Failures:
    """A plugin that counts the tests that failed as a check does, and not in a fixture. It runs the ``first`` before the others."""

    def __init__(self, first: str) -> None:
        self.count = 0
        self._first = first

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        assert any(one.name.startswith(self._first) for one in items), f"there is no test {self._first}"
        items.sort(key=lambda one: not one.name.startswith(self._first))

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        if call.when == "call" and call.excinfo is not None and call.excinfo.errisinstance(failures()):
            self.count += 1


def noticed(tests: Sequence[str], first: str = "") -> bool:
    """Whether one of these tests fails, by one of ``failures``."""
    import shlex

    import pytest

    found = _Failures(first)
    os.environ |= {"TAILRACE_SEEDS": SEEDS, "TAILRACE_MUTATED": "1"}
    options = ["-q", "-x", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options += ["-p", "no:unraisableexception"]  # what a failed run leaves open is not why it has failed
    code = pytest.main([*options, *(word for one in tests for word in shlex.split(one))], [found])
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), f"the tests did not run: {code}"
    return found.count > 0
