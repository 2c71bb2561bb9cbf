"""What a handler's code may emit to and send to: topics, streams, actors. Read from its bytecode, without running it.

Followed are global names, names of enclosing functions, attributes of those (``schemas.topics.alerts``), containers,
defaults, methods of the handler's own class by their name, and plain functions of the same package.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from tailrace.core.declare.topic import Edge, Stream, Topic

_LOADS = {
    "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE", "LOAD_FROM_DICT_OR_DEREF",
    "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FAST",
}  # fmt: skip
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"}
_NOTHING = object()


@dataclass(frozen=True)
class Emissions:
    """Where events and messages may go. ``hidden`` are places where the code does not show it."""

    edges: frozenset[Edge[Any, Any]]
    actors: frozenset[type[Any]]
    hidden: tuple[str, ...] = ()


def emissions_of(
    calls: Iterable[Callable[..., Any]],
    cls: type[Any] | None,
    topics: Iterable[Topic[Any, Any]],
    streams: Iterable[Stream[Any]],
    actors: Iterable[type[Any]],
) -> Emissions:
    """What some handlers may emit to, of these topics and streams, and send to, of these actors.

    ``cls`` is the class whose methods the handlers are, or None.
    """
    edges = {*topics, *streams}
    takers = set(actors)
    emitted: set[Edge[Any, Any]] = set()
    sent: set[type[Any]] = set()
    for call in calls:
        found = list(_reached(call, cls))
        if "emit" in (name for _, names in found for name in names):
            emitted |= {one for one, _ in found if isinstance(one, Edge) and one in edges}
        for one, names in found:
            if "send" in names and isinstance(one, type) and one in takers:
                sent.add(one)
    return Emissions(frozenset(emitted), frozenset(sent))


def _reached(call: Callable[..., Any], cls: type[Any] | None) -> Iterator[tuple[object, tuple[str, ...]]]:
    """The objects that a handler, and what it calls, refers to; each with the names used in the same code."""
    seen: set[CodeType] = set()
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
            yield _NOTHING, code.co_names
            for one in _referred(code, names, cls):
                for part in _parts(one):
                    if isinstance(part, Edge | type):
                        yield part, code.co_names
                    if _belongs(part, package, cls):
                        follow(part)


def _parts(one: object, depth: int = 4) -> Iterator[object]:
    if depth and isinstance(one, Mapping):
        for part in one.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _parts(part, depth - 1)  # pyright: ignore[reportUnknownArgumentType]
    elif depth and isinstance(one, list | tuple | set | frozenset):
        for part in one:  # pyright: ignore[reportUnknownVariableType]
            yield from _parts(part, depth - 1)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(one, partial):
        yield from _parts((one.func, one.args, one.keywords), depth)
    else:
        yield one


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of what is defined within it: lambdas, comprehensions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names(function: FunctionType) -> dict[str, object]:
    names: dict[str, object] = dict(function.__globals__)
    code = function.__code__
    # What super() refers to is the class itself, and nothing that is said with it.
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            names[name] = _NOTHING if name == "__class__" else cell.cell_contents
        except ValueError:
            pass  # not bound yet
    for name in code.co_varnames:
        names[name] = _NOTHING
    defaults = function.__defaults__ or ()
    names.update(
        zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    )
    names.update(function.__kwdefaults__ or {})
    return names


def _referred(code: CodeType, names: dict[str, object], cls: type[Any] | None) -> Iterator[object]:
    current: object = _NOTHING
    for one in dis.get_instructions(code):
        name = one.argval if isinstance(one.argval, str) else ""
        if one.opname in _LOADS:
            current = names.get(name, _NOTHING)
        elif one.opname in _ATTRIBUTES:
            # An attribute of what is not known here may be the instance's own method.
            owner = cls if current is _NOTHING else current
            current = _NOTHING if owner is None else _attribute(owner, name)
        else:
            current = _NOTHING
            continue
        if current is not _NOTHING:
            yield current


def _attribute(owner: object, name: str) -> object:
    for scope in owner.__mro__ if isinstance(owner, type) else (owner, *type(owner).__mro__):
        if name in getattr(scope, "__dict__", ()):
            return vars(scope)[name]
    return _NOTHING


def _belongs(one: object, package: str, cls: type[Any] | None) -> bool:
    if cls is not None and any(one is value for scope in cls.__mro__ for value in vars(scope).values()):
        return not str(getattr(one, "__module__", "")).startswith("tailrace.")
    return isinstance(one, FunctionType) and one.__module__.partition(".")[0] == package != "tailrace"
