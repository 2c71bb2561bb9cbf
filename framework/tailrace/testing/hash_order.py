"""A look at the source of handlers for what depends on the hash seed: the order of a set, and ``hash()``.

It is for apps of which no other process can have the code, where ``other_seed`` cannot try. It sees what is written in a
handler, and in functions and methods of the same module that it calls by name:

    for x in {a, b}, list(set(xs)), next(iter(s)), s.pop(), ", ".join(s), [*s], f"{s}"     where s is a set made there
    hash(x)

It does not see sets that come from elsewhere (a field of an event, an argument, what a function of another module
returns), and it does not know whether the order matters. ``sorted(s)``, ``len(s)``, ``x in s``, ``min(s)`` and the like are
left alone.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, Final

from tailrace.core.declare.plan import Plan

_SETS: Final = ("set", "frozenset")
_SET_METHODS: Final = ("union", "intersection", "difference", "symmetric_difference", "copy")
_IN_ORDER: Final = (
    "list",
    "tuple",
    "iter",
    "enumerate",
    "zip",
    "map",
    "filter",
    "str",
    "repr",
    "print",
    "deque",
)
_WITHOUT_ORDER: Final = ("sorted", "set", "frozenset", "len", "min", "max", "any", "all", "sum")


class HashOrderWarning(UserWarning):
    """A handler may depend on the hash seed, so that a replay in another process may give something else."""


def warn_of_hash_order(plan: Plan) -> None:
    """Warn of each place in the handlers of an app that may depend on the hash seed."""
    for function in dict.fromkeys(_handlers(plan)):
        for file, line, what in found_in(function):
            warnings.warn_explicit(
                f"{what}, which differs from process to process, and no other process can replay the app {plan.app!r} "
                "to see whether it matters: sort it, or declare the app in a module.",
                HashOrderWarning,
                file,
                line,
            )


def _handlers(plan: Plan) -> Iterator[Callable[..., Any]]:
    for one in plan.inputs:
        for route in one.routes:
            yield route.call
    for routes in plan.routes_of_stream:
        for route in routes:
            yield route.call
    for actor in plan.actors:
        for route in (*actor.event_timers.values(), *actor.processing_timers.values()):
            yield route.call
        for message in actor.messages.values():
            yield message.route.call


def found_in(function: Callable[..., Any]) -> list[tuple[str, int, str]]:
    """The places in a function, and in what it calls in its module: file, line, and what is done there."""
    found: dict[tuple[str, int, str], None] = {}
    waiting, seen = [function], set[Any]()
    while waiting:
        one = inspect.unwrap(waiting.pop())
        if not isinstance(one, FunctionType) or one in seen or one.__module__ != function.__module__:
            continue
        seen.add(one)
        try:
            lines, first = inspect.getsourcelines(one)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue  # it has no source that can be read by itself
        look = _Look(tree)
        for line, what in look.found:
            found[inspect.getsourcefile(one) or one.__module__, first + line - 1, what] = None
        waiting += _called(one, look.names, look.methods)
    return [*found]


def _called(function: FunctionType, names: set[str], methods: set[str]) -> Iterator[Any]:
    closure = inspect.getclosurevars(function)
    for name in names:
        yield closure.nonlocals.get(name, closure.globals.get(name))
    owner = closure.nonlocals.get("__class__") or _class_of(function)
    for name in methods:
        yield getattr(owner, name, None)


def _class_of(function: FunctionType) -> Any:
    """The class of a method of a module's class."""
    first, *others = function.__qualname__.split(".")[:-1] or [""]
    found: Any = function.__globals__.get(first)
    for part in others:
        found = getattr(found, part, None)
    return found


class _Look(ast.NodeVisitor):
    """Goes through one function."""

    def __init__(self, tree: ast.AST) -> None:
        self.found: list[tuple[int, str]] = []
        self.names: set[str] = set()
        self.methods: set[str] = set()
        self._sets: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and self._is_set(node.value):
                self._sets |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                head = (
                    node.annotation.value if isinstance(node.annotation, ast.Subscript) else node.annotation
                )
                if isinstance(head, ast.Name) and head.id in _SETS:
                    self._sets.add(node.target.id)
        self.visit(tree)

    def _is_set(self, node: ast.AST) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return name in self._sets
            case ast.Call(func=ast.Name(id=name)):
                return name in _SETS
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                return name in _SET_METHODS and self._is_set(value)
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return self._is_set(left) or self._is_set(right)
            case _:
                return False

    def _note(self, node: ast.expr, what: str) -> None:
        self.found.append((node.lineno, what))

    def _ordered(self, node: ast.expr) -> None:
        if self._is_set(node):
            self._note(node, "a set is gone through in its order")

    def visit_For(self, node: ast.For) -> None:
        """``for x in s``."""
        self._ordered(node.iter)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        """``[... for x in s]``; what makes a set again has no order."""
        self._comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        """A dict keeps the order in which it was filled."""
        self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        """See ``visit_Call`` for those whose order does not matter."""
        self._comprehension(node)

    def _comprehension(self, node: ast.ListComp | ast.DictComp | ast.GeneratorExp) -> None:
        for one in node.generators:
            self._ordered(one.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        """``[*s]``, ``f(*s)``."""
        self._ordered(node.value)
        self.generic_visit(node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> None:
        """``f"{s}"``."""
        self._ordered(node.value)
        self.generic_visit(node)

    def visit_Set(self, node: ast.Set) -> None:
        """``{*s}`` has no order."""
        for one in node.elts:
            self.visit(one.value if isinstance(one, ast.Starred) else one)

    def visit_Call(self, node: ast.Call) -> None:
        """Functions that go by the order of what they are given, and those that do not."""
        arguments: list[ast.expr] = [*node.args]
        match node.func:
            case ast.Name(id="hash"):
                self._note(node, "hash() is called")
            case ast.Name(id=name) if name in _WITHOUT_ORDER:
                for one in list(arguments):
                    if isinstance(one, ast.GeneratorExp | ast.ListComp):
                        arguments.remove(one)
                        self.generic_visit(one)
            case ast.Name(id=name):
                self.names.add(name)
                if name in _IN_ORDER:
                    for one in arguments:
                        self._ordered(one)
            case ast.Attribute(value=value, attr=name):
                if isinstance(value, ast.Name) and value.id == "self":
                    self.methods.add(name)
                if name == "pop" and not arguments and self._is_set(value):
                    self._note(node, "an element of a set is taken by its order")
                if name in ("join", "fromkeys", "extend"):
                    for one in arguments:
                        self._ordered(one)
            case _:
                pass
        self.visit(node.func)
        for one in (*arguments, *(keyword.value for keyword in node.keywords)):
            self.visit(one)
