"""What a handler's code refers to: topics, streams, actors. Read from its bytecode, without running it.

Followed are global names, names of enclosing functions, attributes of those (``schemas.topics.alerts``), methods of the
handler's own class by their name, and plain functions of the same package. Not followed is what is only known when
it runs: a topic out of a dict, or one passed as an argument.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tailrace.core.declare.topic import Edge

_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_NOTHING = object()


def reached(
    call: Callable[..., Any], cls: type[Any] | None, wanted: Callable[[object], bool]
) -> Iterator[object]:
    """The objects that ``wanted`` picks out of all that a handler, and what it calls, refers to; each once."""
    seen: set[CodeType] = set()
    found: list[object] = []
    waiting: list[FunctionType] = []
    package = str(getattr(call, "__module__", "")).partition(".")[0]

    def follow(one: object) -> None:
        function = getattr(one, "__wrapped__", one)
        function = getattr(function, "__func__", getattr(function, "fget", function))
        if isinstance(function, FunctionType) and function.__code__ not in seen:
            seen.add(function.__code__)
            waiting.append(function)

    follow(call)
    while waiting:
        function = waiting.pop()
        names = _names(function)
        for code in _codes(function.__code__):
            for one in _referred(code, names, cls):
                if wanted(one):
                    if not any(one is known for known in found):
                        found.append(one)
                        yield one
                elif _belongs(one, package, cls):
                    follow(one)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of what is defined within it: lambdas, comprehensions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names(function: FunctionType) -> dict[str, object]:
    names: dict[str, object] = dict(function.__globals__)
    # What super() refers to is the class itself, and nothing that is said with it.
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            names[name] = _NOTHING if name == "__class__" else cell.cell_contents
        except ValueError:
            pass  # not bound yet
    return names


def _referred(code: CodeType, names: dict[str, object], cls: type[Any] | None) -> Iterator[object]:
    current: object = _NOTHING
    for one in dis.get_instructions(code):
        name = one.argval if isinstance(one.argval, str) else ""
        if one.opname in _LOADS:
            current = names.get(name, _NOTHING)
        elif one.opname in _ATTRIBUTES:
            # An attribute of what is not known here may be the instance's own method.
            owner = (
                cls if current is _NOTHING else current if isinstance(current, ModuleType | type) else None
            )
            current = _NOTHING if owner is None else _attribute(owner, name)
        else:
            current = _NOTHING
            continue
        if current is not _NOTHING:
            yield current


def _attribute(owner: object, name: str) -> object:
    for scope in owner.__mro__ if isinstance(owner, type) else (owner,):
        if name in vars(scope):
            return vars(scope)[name]
    return _NOTHING


def _belongs(one: object, package: str, cls: type[Any] | None) -> bool:
    if cls is not None and any(one is value for scope in cls.__mro__ for value in vars(scope).values()):
        return not str(getattr(one, "__module__", "")).startswith("tailrace.")
    return isinstance(one, FunctionType) and one.__module__.partition(".")[0] == package != "tailrace"


@dataclass(frozen=True, slots=True)
class Emissions:
    """Where the handlers of one operator may emit and send to, as far as their code shows."""

    edges: frozenset[Edge[Any, Any]]
    actors: frozenset[type[Any]]
    hidden: tuple[str, ...] = ()


def emissions_of(
    calls: Iterable[Callable[..., Any]],
    cls: type[Any] | None,
    topics: Iterable[Edge[Any, Any]],
    streams: Iterable[Edge[Any, Any]],
    actors: Iterable[type[Any]],
) -> Emissions:
    """What the code of some handlers refers to."""
    edges = {id(one): one for one in (*topics, *streams)}
    classes = {id(one): one for one in actors}

    def wanted(one: object) -> bool:
        return id(one) in edges or id(one) in classes

    found = {id(one) for call in calls for one in reached(call, cls, wanted)}
    return Emissions(
        frozenset(edges[one] for one in found if one in edges),
        frozenset(classes[one] for one in found if one in classes),
    )
