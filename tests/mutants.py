"""Mutants of the engine, drawn from its syntax trees: the share of them that the quick tests notice.

    python -m tests.mutants [--number 60] [--seed 0] [--all] [FILE ...]

Each mutant has one mistake in one function: a call that is dropped, a comparison, condition or constant that is another, a function
that returns early. It runs in a process of its own (``tests.proof.mutating``), and the tests of its file must fail. What they do not
notice is printed with its place: either a test is missing, or the mistake changes nothing. The exit status is 1 if the share of
noticed mutants is below ``FLOOR``.
"""

from __future__ import annotations

import argparse
import ast
import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from tests.proof.mutating import NOTICED, SURVIVED, Mutant, path_of, runs

FLOOR = 0.7
"""The least share of mutants that must be noticed. Some cannot be: they change only how fast the code is, or nothing."""

_ENGINE = (
    *("tests/proof/test_laws.py", "tests/core/test_ordered.py", "tests/core/test_merge.py"),
    *("tests/core/test_watermarks.py", "tests/core/test_timers.py", "tests/proof/test_replay.py"),
    *("tests/proof/test_independent.py", "tests/oracle/test_oracle.py"),
    *("tests/proof/test_event_time.py", "tests/proof/test_simulation.py", "tests/proof/test_stops.py"),
)
_RUNTIME = (
    "tests/runtime/test_partition.py",
    "tests/runtime/test_partition_time.py",
    "tests/runtime/test_shared_transaction.py",
    "tests/runtime/test_nights.py",
    *_ENGINE,
)
_EMBEDDED = ("tests/log/embedded/test_contract.py", "tests/log/embedded/test_tasks.py")
FILES: dict[str, tuple[str, ...]] = {
    "core/engine/task.py": _ENGINE,
    "core/engine/ordered_task.py": _ENGINE,
    "core/engine/units.py": _ENGINE,
    "core/engine/watermarks.py": _ENGINE,
    "core/engine/firing.py": _ENGINE,
    "core/engine/merge.py": _ENGINE,
    "runtime/commits.py": _RUNTIME,
    "runtime/slices.py": _RUNTIME,
    "log/embedded/writer.py": _EMBEDDED,
}
"""The files that get mistakes, with the tests that must notice them, the fastest first."""
_NOT_SLOW = "-k 'not two_tasks and not by_hand'"
SEEDS = 20
PATIENCE_S = 600.0
TIMES_SLOWER = 3.0
"""A mutant that runs this many times longer than the tests without a mistake does not end, which its tests notice."""
AT_ONCE = 2

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_NO_CODE = frozenset({"annotation", "returns", "decorator_list", "type_params", "type_ignores", "msg"})


class Site(NamedTuple):
    """A place in a syntax tree where one node takes the place of another."""

    line: int
    before: ast.AST
    after: ast.AST
    put: Callable[[], None]


def sites(tree: ast.Module) -> list[Site]:
    """Every mistake that can be put into the functions of a module, always in the same order."""
    return [*_sites(tree, inside=False)]


def _sites(parent: ast.AST, *, inside: bool) -> Iterator[Site]:
    for field, value in ast.iter_fields(parent):
        if field in _NO_CODE or isinstance(parent, ast.Raise | ast.JoinedStr):
            continue  # what an error says is not what it guards
        is_list = isinstance(value, list)
        for at, node in enumerate(value if is_list else [value]):
            if not isinstance(node, ast.AST):
                continue
            is_function = isinstance(node, ast.FunctionDef | ast.Lambda)
            changed = inside or is_function
            for after in (*_replaced(node), *_negated(parent, field, node)) if changed else ():
                yield Site(
                    getattr(node, "lineno", 0),
                    node,
                    after,
                    partial(_set, parent, field, at if is_list else None, after),
                )
            yield from _sites(node, inside=inside or is_function)


def _set(parent: ast.AST, field: str, at: int | None, after: ast.AST) -> None:
    if at is None:
        setattr(parent, field, after)
    else:
        getattr(parent, field)[at] = after


def _replaced(node: ast.AST) -> Iterator[ast.AST]:
    """What may take the place of a node, wherever it stands."""
    match node:
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Return(value=ast.expr()) if not isinstance(
            node.value, ast.Constant
        ):  # which is changed itself
            yield ast.Return(ast.Constant(None))
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                yield _with(node, ops=[*ops[:at], _COMPARISONS[type(op)](), *ops[at + 1 :]])
        case ast.BoolOp(op=op):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Name(id="min" | "max"):
            yield ast.Name("max" if node.id == "min" else "min")
        case ast.FunctionDef(returns=ast.Constant(value=None)):
            yield _with(node, body=[ast.Return()])
        case _:
            pass


def _negated(parent: ast.AST, field: str, node: ast.AST) -> Iterator[ast.AST]:
    """A condition that is another: a single comparison has that already."""
    if field != "test" or isinstance(parent, ast.Assert):
        return
    match node:
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.Compare():
            pass
        case ast.expr():
            yield ast.UnaryOp(ast.Not(), node)
        case _:
            pass


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def put(number: int, tree: ast.Module) -> None:
    """Put the mistake of this number into a module."""
    sites(tree)[number].put()


def _module_of(file: str) -> str:
    return "tailrace." + file.removesuffix(".py").replace("/", ".")


def mutants(files: Sequence[str]) -> list[Mutant]:
    """Every mutant of these files."""
    found: list[Mutant] = []
    for file in files:
        module = _module_of(file)
        for number, site in enumerate(sites(ast.parse(path_of(module).read_text()))):
            before, after = (" ".join(ast.unparse(one).split()) for one in (site.before, site.after))
            if isinstance(site.before, ast.FunctionDef):
                before, after = f"def {site.before.name}", "return"
            name = f"{file}:{site.line}: {before[:70]}  ->  {after[:70]}"
            found.append(Mutant(name, module, partial(put, number), (*FILES[file], _NOT_SLOW)))
    return found


def drawn(files: Sequence[str], number: int, seed: int) -> list[Mutant]:
    """Some mutants; the same for the same seed and code."""
    everything = mutants(files)
    return Random(seed).sample(everything, min(number, len(everything)))


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # what the command shows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests without a mistake, then on each mutant."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE", default=[*FILES], help=f"of {', '.join(FILES)}")
    parser.add_argument("--number", type=int, default=60, help="number of mutants (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn (default: 0)")
    parser.add_argument("--all", action="store_true", help="every mutant")
    options = parser.parse_args(arguments)
    chosen = mutants(options.files) if options.all else drawn(options.files, options.number, options.seed)
    suites = {FILES[file]: file for file in options.files}
    sound = [
        Mutant(f"{file} without a mistake", _module_of(file), lambda tree: None, (*tests, _NOT_SLOW))
        for tests, file in suites.items()
    ]
    slowest_s = 20.0
    for one in runs(sound, seeds=SEEDS, patience_s=PATIENCE_S, at_once=AT_ONCE):
        slowest_s = max(slowest_s, one.took_s)
        _say(f"{one.took_s:6.1f} s  {one.mutant.name}")
        if one.ended != SURVIVED:
            _say(f"the tests fail without a mistake: {one.ended}\n{one.output[-3_000:]}")
            return 2
    survived: list[str] = []
    for one in runs(chosen, seeds=SEEDS, patience_s=TIMES_SLOWER * slowest_s, at_once=AT_ONCE):
        said = {NOTICED: "noticed ", SURVIVED: "SURVIVED"}.get(one.ended, f"ended {one.ended:2}")
        survived += [one.mutant.name] if one.ended == SURVIVED else []
        _say(f"{one.took_s:6.1f} s  {said}  {one.mutant.name}")
    share = 1 - len(survived) / len(chosen)
    _say("\n".join(["", "not noticed:", *sorted(survived), ""]))
    _say(
        f"{share:.0%} of {len(chosen)} mutants were noticed (seed {options.seed}); at least {FLOOR:.0%} must be"
    )
    return int(share < FLOOR)


if __name__ == "__main__":
    sys.exit(main())
